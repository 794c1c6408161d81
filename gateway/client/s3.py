"""S3 clients whose every request carries the token of a lease, added before it is signed.

boto3 and aiobotocore are not the client's own dependencies: they are imported when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, overload
from urllib.parse import quote

from gateway.client.blocking import SyncJob, SyncLease
from gateway.client.guarded import Guarded
from gateway.client.lease import Job, Lease
from gateway.core.keys import OBJECT_NAMESPACE

_EVENT = "before-call.s3"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@overload
def fenced_s3(lease: SyncLease | SyncJob, **options: Any) -> Any: ...
@overload
def fenced_s3(lease: Lease | Job, **options: Any) -> AbstractAsyncContextManager[Any]: ...
def fenced_s3(lease: Guarded, **options: Any) -> Any:
    """An S3 client for the holder of `lease`: boto3's, or for an asynchronous lease a context with aiobotocore's.

    `options` are those of `boto3.client`. Credentials and endpoint are the lease's own where it has them and none are
    named, else what boto3 finds. Once the lease is lost, each call raises `LeaseLost` without sending anything. URLs
    that it presigns carry the token only with the lease's own credentials. Raises `ImportError` where the package is
    missing."""
    own = {} if "aws_access_key_id" in options else _credentials(lease)
    options = {**_endpoint(lease), **own, **options}
    if isinstance(lease, Lease | Job):
        return _aio_client(lease, options)
    client = _package("boto3").client("s3", **options)
    client.meta.events.register(_EVENT, _carrying(lease))
    return client


def fenced_session(lease: Guarded) -> Any:
    """A session of aiobotocore whose S3 clients are fenced in the same way, for what takes one:
    `s3fs.S3FileSystem(session=fenced_session(lease), skip_instance_cache=True)`. Credentials and endpoint are the
    lease's where none are named. Raises `ImportError`."""
    session = _package("aiobotocore.session").get_session()
    if pair := lease.credentials:
        session.set_credentials(pair.access_key_id, pair.secret_access_key, pair.session_token)
    session.register(_EVENT, _carrying(lease))
    create = session.create_client

    def create_client(service_name: str, *arguments: Any, **options: Any) -> Any:
        own = _endpoint(lease) if service_name == "s3" else {}
        return create(service_name, *arguments, **{**own, **options})

    session.create_client = create_client
    return session


@asynccontextmanager
async def _aio_client(lease: Guarded, options: dict[str, Any]) -> AsyncIterator[Any]:
    async with _package("aiobotocore.session").get_session().create_client("s3", **options) as client:
        client.meta.events.register(_EVENT, _carrying(lease))
        yield client


def _carrying(lease: Guarded) -> Callable[..., None]:
    headers = {"X-Fencing-Token": str(lease.token)}
    if not lease.key.startswith(OBJECT_NAMESPACE):  # no header can name these, and none needs to
        headers["X-Fencing-Key"] = quote(lease.key, safe="")

    def carry(params: dict[str, Any], **_: Any) -> None:
        lease.check()
        params["headers"].update(headers)

    return carry


def _credentials(lease: Guarded) -> dict[str, str]:
    pair = lease.credentials
    if pair is None:
        return {}
    return {
        "aws_access_key_id": pair.access_key_id,
        "aws_secret_access_key": pair.secret_access_key,
        "aws_session_token": pair.session_token,
    }


def _endpoint(lease: Guarded) -> dict[str, str]:
    """Where the gateway is, unless the environment names a place: boto3 finds that by itself."""
    pair = lease.credentials
    if pair is None or pair.endpoint_url is None or any(map(os.environ.get, _ENDPOINT_VARIABLES)):
        return {}
    return {"endpoint_url": pair.endpoint_url}


def _package(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f"fenced S3 clients of {name} need {name}: pip install {name}") from error
