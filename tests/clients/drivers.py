"""The clients, each behind the same five calls, so that one set of tests speaks of all of them.

Every call does what the client's own users would do; where a client can say a token, it says it in its own way.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

import boto3  # type: ignore[import-untyped]
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import ClientError
from minio import Minio
from minio.commonconfig import REPLACE, CopySource
from minio.error import S3Error

from tests.clients.gateway_process import BUCKET, Target
from tests.conftest import REGION

TIMEOUT_S = 120
T = TypeVar("T")


class Failed(Exception):
    """The client gave up. The text is what its user sees."""

    def __init__(self, text: str, exit_status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.exit_status = exit_status


class Driver(Protocol):
    """A client. Calls raise `Failed`."""

    tells_token_on: ClassVar[frozenset[str]]
    """Those of upload, copy and delete with which it can send a token."""

    def upload(self, path: Path, key: str, token: str | None = None) -> None: ...
    def download(self, key: str, path: Path) -> None: ...
    def copy(self, source: str, key: str, token: str | None = None) -> None: ...
    def delete(self, key: str, token: str | None = None) -> None: ...
    def names(self, prefix: str) -> set[str]: ...


def say_token(client: Any, token: str | None) -> None:
    """Have a boto3 or aiobotocore client send the token with every request, signed."""
    if token is not None:
        client.meta.events.register("before-call.s3", lambda params, **_: params["headers"].update({HEADER: token}))


HEADER = "X-Fencing-Token"


class Boto3:
    """boto3's client with its transfer manager."""

    tells_token_on = frozenset({"upload", "copy", "delete"})

    def __init__(self, target: Target, home: Path) -> None:
        self._target = target
        self._session = boto3.session.Session()

    def _do(self, token: str | None, call: Callable[[Any], T]) -> T:
        client = self._session.client(
            "s3",
            endpoint_url=self._target.url,
            region_name=REGION,
            aws_access_key_id=self._target.credentials.access_key,
            aws_secret_access_key=self._target.credentials.secret_key,
            config=Config(proxies={}),
        )
        say_token(client, token)
        try:
            return call(client)
        except (ClientError, boto3.exceptions.S3UploadFailedError) as error:
            raise Failed(str(error)) from error
        finally:
            client.close()

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.upload_file(str(path), BUCKET, key))

    def download(self, key: str, path: Path) -> None:
        self._do(None, lambda s3: s3.download_file(BUCKET, key, str(path)))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.copy({"Bucket": BUCKET, "Key": source}, BUCKET, key))

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.delete_object(Bucket=BUCKET, Key=key))

    def names(self, prefix: str) -> set[str]:
        pages = self._do(
            None, lambda s3: list(s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix))
        )
        return {found["Key"] for page in pages for found in page.get("Contents", [])}


class Aiobotocore:
    """aiobotocore's client, in a loop for each call."""

    tells_token_on = frozenset({"upload", "copy", "delete"})

    def __init__(self, target: Target, home: Path) -> None:
        self._target = target
        self._session = get_session()

    def _do(self, token: str | None, call: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self._session.create_client(
                "s3",
                endpoint_url=self._target.url,
                region_name=REGION,
                aws_access_key_id=self._target.credentials.access_key,
                aws_secret_access_key=self._target.credentials.secret_key,
                config=AioConfig(proxies={}),
            ) as client:
                say_token(client, token)
                return await call(client)

        try:
            return asyncio.run(run())
        except ClientError as error:
            raise Failed(str(error)) from error

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        async def put(s3: Any) -> None:
            with path.open("rb") as body:
                await s3.put_object(Bucket=BUCKET, Key=key, Body=body)

        self._do(token, put)

    def download(self, key: str, path: Path) -> None:
        async def get(s3: Any) -> None:
            answer = await s3.get_object(Bucket=BUCKET, Key=key)
            async with answer["Body"] as body:
                path.write_bytes(await body.read())

        self._do(None, get)

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        place = {"Bucket": BUCKET, "Key": source}
        self._do(token, lambda s3: s3.copy_object(CopySource=place, Bucket=BUCKET, Key=key))

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.delete_object(Bucket=BUCKET, Key=key))

    def names(self, prefix: str) -> set[str]:
        answer = self._do(None, lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix))
        return {found["Key"] for found in answer.get("Contents", [])}


class MinioPy:
    """minio-py. It has no place for a header on DELETE; on the others user metadata carries the token, signed."""

    tells_token_on = frozenset({"upload", "copy"})

    def __init__(self, target: Target, home: Path) -> None:
        self._client = Minio(
            endpoint=target.host,
            access_key=target.credentials.access_key,
            secret_key=target.credentials.secret_key,
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


def environment(target: Target, home: Path) -> dict[str, str]:
    """What a program finds in its environment: the endpoint, the credentials, no other configuration."""
    rclone = home / "rclone.conf"
    rclone.touch()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "AWS_ACCESS_KEY_ID": target.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": target.credentials.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": target.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "RCLONE_CONFIG": str(rclone),
        "RCLONE_CONFIG_GATEWAY_TYPE": "s3",
        "RCLONE_CONFIG_GATEWAY_PROVIDER": "Other",
        "RCLONE_CONFIG_GATEWAY_ENV_AUTH": "true",
        "RCLONE_CONFIG_GATEWAY_ENDPOINT": target.url,
    }


class Program:
    """What the drivers of programs share: a run in a home of its own."""

    def __init__(self, target: Target, home: Path) -> None:
        self.target = target
        self._home = home

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._home,
            env=environment(self.target, self._home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(done.stderr + done.stdout, done.returncode)
        return done.stdout


class AwsCli(Program):
    """The AWS CLI's `aws s3`. User metadata carries the token; there is none on DELETE."""

    tells_token_on = frozenset({"upload", "copy"})

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._copy(str(path), f"s3://{BUCKET}/{key}", token)

    def download(self, key: str, path: Path) -> None:
        self._copy(f"s3://{BUCKET}/{key}", str(path), None)

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._copy(f"s3://{BUCKET}/{source}", f"s3://{BUCKET}/{key}", token)

    def _copy(self, source: str, place: str, token: str | None) -> None:
        said = ["--metadata", f"fencing-token={token}"] if token else []
        self.run("aws", "s3", "cp", "--no-progress", source, place, *said)

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self.run("aws", "s3", "rm", f"s3://{BUCKET}/{key}")

    def names(self, prefix: str) -> set[str]:
        command = ["aws", "s3api", "list-objects-v2", "--bucket", BUCKET, "--prefix", prefix]
        listed = self.run(*command, "--query", "Contents[].[Key]", "--output", "text")
        return set(listed.splitlines()) - {"None"}


class Rclone(Program):
    """rclone, told to try once. Its `--header` is not signed: only for clients that need not sign their token."""

    tells_token_on = frozenset({"upload", "copy", "delete"})
    options = ("--retries", "1", "--s3-upload-cutoff", "16M")

    def _rclone(self, *command: str, token: str | None = None) -> str:
        said = ["--header", f"{HEADER}: {token}"] if token else []
        return self.run("rclone", *command, *self.options, *said)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._rclone("copyto", str(path), f"gateway:{BUCKET}/{key}", token=token)

    def download(self, key: str, path: Path) -> None:
        self._rclone("copyto", f"gateway:{BUCKET}/{key}", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._rclone("copyto", f"gateway:{BUCKET}/{source}", f"gateway:{BUCKET}/{key}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        self._rclone("deletefile", f"gateway:{BUCKET}/{key}", token=token)

    def names(self, prefix: str) -> set[str]:
        return {
            prefix + name
            for name in self._rclone("lsf", "-R", "--files-only", f"gateway:{BUCKET}/{prefix}").splitlines()
        }


class S3cmd(Program):
    """s3cmd. It adds headers to uploads and copies, signed, and to no DELETE."""

    tells_token_on = frozenset({"upload"})

    def _s3cmd(self, *command: str, token: str | None = None) -> str:
        host = self.target.host
        said = [f"--add-header={HEADER}:{token}"] if token else []
        where = ["--no-ssl", f"--host={host}", f"--host-bucket={host}", f"--region={REGION}", "--no-progress"]
        return self.run("s3cmd", *where, *command, *said)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._s3cmd("put", str(path), f"s3://{BUCKET}/{key}", token=token)

    def download(self, key: str, path: Path) -> None:
        self._s3cmd("get", f"s3://{BUCKET}/{key}", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._s3cmd("cp", f"s3://{BUCKET}/{source}", f"s3://{BUCKET}/{key}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self._s3cmd("del", f"s3://{BUCKET}/{key}")

    def names(self, prefix: str) -> set[str]:
        listed = self._s3cmd("ls", "--recursive", f"s3://{BUCKET}/{prefix}")
        return {line.partition(f"s3://{BUCKET}/")[2] for line in listed.splitlines()}


class Curl(Program):
    """curl --aws-sigv4, which signs every header it is given."""

    tells_token_on = frozenset({"upload", "copy", "delete"})

    def _curl(self, path: str, *options: str, token: str | None = None) -> str:
        pair = self.target.credentials
        said = ["-H", f"{HEADER}: {token}"] if token else []
        return self.run(
            *("curl", "-sS", "--fail-with-body", "--noproxy", "*", "--retry", "3", "--path-as-is"),
            *("--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{pair.access_key}:{pair.secret_key}"),
            *("-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", *said, *options, f"{self.target.url}/{BUCKET}{path}"),
        )

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-T", str(path), token=token)

    def download(self, key: str, path: Path) -> None:
        self._curl(f"/{quote(key)}", "-o", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-X", "PUT", "-H", f"x-amz-copy-source: {BUCKET}/{quote(source)}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-X", "DELETE", token=token)

    def names(self, prefix: str) -> set[str]:
        document = ElementTree.fromstring(self._curl(f"?list-type=2&prefix={quote(prefix, safe='')}"))
        return {found.text or "" for found in document.iterfind(".//{*}Contents/{*}Key")}
