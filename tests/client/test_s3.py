"""S3 clients that carry the token of a lease: written under it, refused once it is stale, silent once it is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import s3fs
from botocore.config import Config
from botocore.exceptions import ClientError

from gateway.client import GatewayClient, LeaseLost, SyncGatewayClient, fenced_s3, fenced_session
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from tests.client.rig import BOUND_S, Served, served
from tests.conftest import s3_client
from tests.server.rig import CREDENTIALS

OWN = {"aws_access_key_id": CREDENTIALS.access_key, "aws_secret_access_key": CREDENTIALS.secret_key}
"""The worker's own credentials, which are bound to nothing."""


def options(gateway: Served, **more: Any) -> dict[str, Any]:
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="s3v4")
    return {"endpoint_url": gateway.s3_url, "region_name": "us-east-1", "config": config, **more}


@pytest.fixture(scope="module")
def nameless() -> Iterator[Served]:
    """A gateway with two clients, so that a lease comes with credentials of neither."""
    with served(clients=(Client(CREDENTIALS), Client(Credentials("AKIDOTHER", "other-secret")))) as one:
        yield one


def written(gateway: Served, name: str) -> dict[str, str]:
    """The fence's own metadata of an object, as it lies in the store."""
    stored = gateway.rig.stored(name)
    assert stored is not None
    return {name: value for name, value in stored.metadata if "fencing" in name}


def test_boto3_with_the_lease_s_credentials(gateway: Served, key: str) -> None:
    """Nothing but the lease has to be named: each write, and each presigned URL, is under its key and token."""
    with SyncGatewayClient(gateway.url) as client, client.lease(key) as lease:
        assert lease.credentials is not None
        s3 = fenced_s3(lease, **options(gateway))
        s3.put_object(Bucket="b", Key="boto3", Body=b"rendered")
        assert str(lease.token) in written(gateway, "boto3").values()
        url = s3.generate_presigned_url("put_object", {"Bucket": "b", "Key": "presigned"})
        assert lease.credentials.access_key_id in url
        s3.close()


def test_the_endpoint_comes_with_the_credentials(gateway: Served, key: str) -> None:
    """Nothing has to be said of where the gateway is; one that listens everywhere names no place but the one that its
    settings say."""
    with SyncGatewayClient(gateway.url) as client, client.lease(key) as lease:
        assert lease.credentials is not None
        assert lease.credentials.endpoint_url == gateway.s3_url
        s3 = fenced_s3(lease, region_name="us-east-1")
        s3.put_object(Bucket="b", Key="nothing-said", Body=b"rendered")
        s3.close()
    assert str(lease.token) in written(gateway, "nothing-said").values()
    for said in (None, "https://s3.example.com"):
        with (
            served(s3_address=("0.0.0.0", 0), s3_endpoint_url=said) as everywhere,
            SyncGatewayClient(everywhere.url) as client,
            client.lease(key) as lease,
        ):
            assert lease.credentials is not None
            assert lease.credentials.endpoint_url == said


async def test_the_endpoint_is_the_lease_s_also_for_other_credentials_and_sessions(gateway: Served, key: str) -> None:
    """Where none is named it is never AWS's own, which knows of no fence; one that is named stays."""
    region: dict[str, Any] = {"region_name": "us-east-1"}
    with SyncGatewayClient(gateway.url) as client, client.lease(key) as lease:
        for named, endpoint in (({}, gateway.s3_url), ({"endpoint_url": "http://named:1"}, "http://named:1")):
            s3 = fenced_s3(lease, **region, **OWN, **named)
            assert s3.meta.endpoint_url == endpoint
            s3.close()
            async with fenced_session(lease).create_client("s3", **region, **named) as aio:
                assert aio.meta.endpoint_url == endpoint
        async with fenced_session(lease).create_client("sts", **region) as sts:
            assert sts.meta.endpoint_url.endswith("amazonaws.com")


def test_boto3_with_credentials_of_its_own(nameless: Served, key: str) -> None:
    """Without bound credentials, and with others, the token is a header, and signed."""
    with SyncGatewayClient(nameless.url) as client, client.lease(key) as lease:
        assert lease.credentials is None
        s3 = fenced_s3(lease, **options(nameless, **OWN))
        s3.put_object(Bucket="b", Key="boto3", Body=b"rendered")
        assert str(lease.token) in written(nameless, "boto3").values()
        s3.close()


def test_a_stale_holder_is_refused_by_the_gateway(nameless: Served, key: str) -> None:
    """Overtaken and not yet told, the client sends, and the gateway refuses."""
    with SyncGatewayClient(nameless.url) as client, client.lease(key, ttl_s=BOUND_S) as lease:
        s3 = fenced_s3(lease, **options(nameless, **OWN))
        nameless.take_over(key)
        with pytest.raises(ClientError) as refused:
            s3.put_object(Bucket="b", Key="stale", Body=b"late")
        assert refused.value.response["Error"]["FencingReason"] == "StaleToken"
        s3.close()


def test_a_lost_lease_sends_nothing(gateway: Served, key: str) -> None:
    """Once the loss is known each call raises `LeaseLost`, reads too, and no request leaves the process."""

    def work(client: SyncGatewayClient) -> None:
        with client.lease(key, ttl_s=0.6) as lease:
            s3 = fenced_s3(lease, **options(gateway))
            gateway.take_over(key)
            assert lease.lost.wait(BOUND_S)
            before = len(gateway.rig.log)
            for call in (s3.list_buckets, lambda: s3.put_object(Bucket="b", Key="lost", Body=b"late")):
                with pytest.raises(LeaseLost):
                    call()
            s3.close()
            assert not [line for line in gateway.rig.log[before:] if line["event"] == "request"]

    with SyncGatewayClient(gateway.url) as client, pytest.raises(LeaseLost):
        work(client)


async def test_aiobotocore(gateway: Served, nameless: Served, key: str) -> None:
    """An asynchronous lease gives a context with aiobotocore's client, under either kind of credentials."""
    for served_by, own in ((gateway, {}), (nameless, OWN)):
        async with GatewayClient(served_by.url) as client, client.lease(key) as lease:
            async with fenced_s3(lease, **options(served_by, config=None, **own)) as s3:
                await s3.put_object(Bucket="b", Key="aio", Body=b"rendered")
            assert str(lease.token) in written(served_by, "aio").values()


def test_s3fs(gateway: Served, nameless: Served, key: str) -> None:
    """A file system over a fenced session: what is written is written under the lease."""
    for served_by, own in (
        (gateway, {}),
        (nameless, {"key": CREDENTIALS.access_key, "secret": CREDENTIALS.secret_key}),
    ):
        with SyncGatewayClient(served_by.url) as client, client.lease(key) as lease:
            files = s3fs.S3FileSystem(
                session=fenced_session(lease),
                endpoint_url=served_by.s3_url,
                skip_instance_cache=True,
                **own,
            )
            with files.open("b/s3fs", "wb") as file:
                file.write(b"rendered")
            s3fs.S3FileSystem.close_session(files.loop, files.s3)
            assert str(lease.token) in written(served_by, "s3fs").values()


def test_they_serve_as_long_as_the_lease(key: str) -> None:
    """Credentials whose time is over go on while the lease is held, for clients and file systems that were given them
    once; with the lease they end."""
    with served(session_lifetime_s=0) as gateway, SyncGatewayClient(gateway.url) as client:
        with client.lease(key) as lease:
            given = lease.credentials
            assert given is not None
            plain = s3_client(
                gateway.s3_url, Credentials(given.access_key_id, given.secret_access_key, given.session_token)
            )
            plain.put_object(Bucket="b", Key="late", Body=b"rendered")
            s3 = fenced_s3(lease, **options(gateway))
            s3.copy_object(Bucket="b", Key="later", CopySource="b/late")
            s3.close()
            files = s3fs.S3FileSystem(
                session=fenced_session(lease), endpoint_url=gateway.s3_url, skip_instance_cache=True
            )
            assert files.cat("b/later") == b"rendered"
            s3fs.S3FileSystem.close_session(files.loop, files.s3)
        with pytest.raises(ClientError, match="ExpiredToken"):
            plain.put_object(Bucket="b", Key="late", Body=b"after it")
        plain.close()


def test_a_package_that_is_missing(gateway: Served, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be installed is said."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with (
        SyncGatewayClient(gateway.url) as client,
        client.lease(key) as lease,
        pytest.raises(ImportError, match="pip install boto3"),
    ):
        fenced_s3(lease)


async def test_keys_of_objects_need_no_header(nameless: Served) -> None:
    """The key of an object itself is its place: it is named by no header, and written under the lease all the same."""
    async with GatewayClient(nameless.url) as client, client.lease("object:b/own") as lease:
        async with fenced_s3(lease, **options(nameless, config=None, **OWN)) as s3:
            await s3.put_object(Bucket="b", Key="own", Body=b"rendered")
        assert str(lease.token) in written(nameless, "own").values()
