"""The clients that are Python libraries, in the tests' own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import boto3  # type: ignore[import-untyped]
import s3fs  # type: ignore[import-untyped]
import smart_open
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import ClientError
from minio import Minio
from minio.commonconfig import REPLACE, CopySource
from minio.error import S3Error

from tests.clients import boto
from tests.clients.drivers import ALL, Failed
from tests.clients.gateway import BUCKET
from tests.conftest import REGION
from tests.gateway_process import Target

T = TypeVar("T")


def connection(target: Target) -> dict[str, str | None]:
    """What boto3 and aiobotocore clients are made with."""
    return {
        "endpoint_url": target.url,
        "region_name": REGION,
        "aws_access_key_id": target.credentials.access_key,
        "aws_secret_access_key": target.credentials.secret_key,
        "aws_session_token": target.credentials.session_token,
    }


class Boto3:
    """boto3's client with its transfer manager."""

    tells_token_on = ALL
    calls: type[boto.Boto3 | boto.Aiobotocore] = boto.Boto3

    def __init__(self, target: Target, home: Path) -> None:
        self._calls = self.calls(BUCKET, **connection(target))

    def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except boto.ERRORS as error:
            raise Failed(str(error)) from error

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._do(self._calls.upload, str(path), key, token)

    def download(self, key: str, path: Path) -> None:
        self._do(self._calls.download, key, str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._do(self._calls.copy, source, key, token)

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(self._calls.delete, key, token)

    def names(self, prefix: str) -> set[str]:
        return set(self._do(self._calls.names, prefix))


class Aiobotocore(Boto3):
    """aiobotocore's client, in a loop for each call."""

    calls = boto.Aiobotocore


class SmartOpen(Boto3):
    """smart_open, over a boto3 client; it writes in parts. For copies, deletes and lists its users have that client."""

    def __init__(self, target: Target, home: Path) -> None:
        super().__init__(target, home)
        self._connection = connection(target)
        self._session = boto3.session.Session()

    def _open(self, key: str, mode: str, token: str | None = None) -> Any:
        client = self._session.client("s3", config=Config(proxies={}), **self._connection)
        boto.say_token(client, token)
        return smart_open.open(f"s3://{BUCKET}/{key}", mode, transport_params={"client": client}, compression="disable")

    def _write(self, path: str, key: str, token: str | None) -> None:
        with open(path, "rb") as source, self._open(key, "wb", token) as sink:
            while block := source.read(1 << 20):
                sink.write(block)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        try:
            self._do(self._write, str(path), key, token)
        except ValueError as error:
            raise Failed(str(error)) from error

    def download(self, key: str, path: Path) -> None:
        with self._do(self._open, key, "rb") as source:
            path.write_bytes(source.read())


class S3fs:
    """s3fs. The hook of its aiobotocore client says the token."""

    tells_token_on = ALL

    def __init__(self, target: Target, home: Path) -> None:
        self._target = target
        self._session = get_session()

    def _do(self, token: str | None, call: Callable[[Any], T]) -> T:
        pair = self._target.credentials
        fs = s3fs.S3FileSystem(
            key=pair.access_key,
            secret=pair.secret_key,
            token=pair.session_token,
            endpoint_url=self._target.url,
            client_kwargs={"region_name": REGION},
            session=self._session,
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        boto.say_token(fs.connect(), token)
        try:
            return call(fs)
        except (OSError, ClientError) as error:
            raise Failed(str(error)) from error
        finally:
            fs.close_session(fs.loop, fs.s3)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._do(token, lambda fs: fs.put_file(str(path), f"{BUCKET}/{key}"))

    def download(self, key: str, path: Path) -> None:
        self._do(None, lambda fs: fs.get_file(f"{BUCKET}/{key}", str(path)))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._do(token, lambda fs: fs.cp_file(f"{BUCKET}/{source}", f"{BUCKET}/{key}"))

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(token, lambda fs: fs.rm_file(f"{BUCKET}/{key}"))

    def names(self, prefix: str) -> set[str]:
        found = self._do(None, lambda fs: fs.find(BUCKET, prefix=prefix))
        return {name.removeprefix(f"{BUCKET}/") for name in found}


class MinioPy:
    """minio-py. It has no place for a header on DELETE; on the others user metadata carries the token, signed."""

    tells_token_on = frozenset({"upload", "copy"})

    def __init__(self, target: Target, home: Path) -> None:
        self._client = Minio(
            endpoint=target.host,
            access_key=target.credentials.access_key,
            secret_key=target.credentials.secret_key,
            session_token=target.credentials.session_token,
            secure=False,
            region=REGION,
        )

    def _do(self, call: Callable[[Minio], T]) -> T:
        try:
            return call(self._client)
        except (S3Error, ValueError) as error:
            raise Failed(str(error)) from error
        finally:
            self._client._http.clear()

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        said: Any = {"fencing-token": token} if token else None
        self._do(lambda s3: s3.fput_object(bucket_name=BUCKET, object_name=key, file_path=str(path), metadata=said))

    def download(self, key: str, path: Path) -> None:
        self._do(lambda s3: s3.fget_object(bucket_name=BUCKET, object_name=key, file_path=str(path)))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        said: Any = {"metadata": {"fencing-token": token}, "metadata_directive": REPLACE} if token else {}
        place = CopySource(bucket_name=BUCKET, object_name=source)
        self._do(lambda s3: s3.copy_object(bucket_name=BUCKET, object_name=key, source=place, **said))

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self._do(lambda s3: s3.remove_object(bucket_name=BUCKET, object_name=key))

    def names(self, prefix: str) -> set[str]:
        found = self._do(lambda s3: list(s3.list_objects(bucket_name=BUCKET, prefix=prefix, recursive=True)))
        return {one.object_name for one in found if one.object_name}
