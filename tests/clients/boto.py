"""boto3's and aiobotocore's calls, and a program that makes them.

As a program, `boto.py {boto3|aiobotocore} BUCKET`, it runs where neither gateway nor tests are installed: it imports
the two libraries alone, and finds endpoint and credentials in its environment. It reads calls from standard input, a
line of JSON each: `["upload", path, key, token]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import boto3  # type: ignore[import-untyped]
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import ClientError

T = TypeVar("T")
ERRORS = (ClientError, boto3.exceptions.S3UploadFailedError)
PART_BYTES = 16 << 20


def say_token(client: Any, token: str | None) -> None:
    """Have a boto3 or aiobotocore client send the token with every request, signed."""
    if token is not None:
        client.meta.events.register(
            "before-call.s3", lambda params, **_: params["headers"].update({"X-Fencing-Token": token})
        )


class Boto3:
    """boto3's client with its transfer manager."""

    def __init__(self, bucket: str, **connection: str | None) -> None:
        self._bucket = bucket
        self._connection = connection
        self._session = boto3.session.Session()

    def _do(self, token: str | None, call: Callable[[Any], T]) -> T:
        client = self._session.client("s3", config=Config(proxies={}), **self._connection)
        say_token(client, token)
        try:
            return call(client)
        finally:
            client.close()

    def upload(self, path: str, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.upload_file(path, self._bucket, key))

    def download(self, key: str, path: str) -> None:
        self._do(None, lambda s3: s3.download_file(self._bucket, key, path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.copy({"Bucket": self._bucket, "Key": source}, self._bucket, key))

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.delete_object(Bucket=self._bucket, Key=key))

    def names(self, prefix: str) -> list[str]:
        wanted = {"Bucket": self._bucket, "Prefix": prefix}
        pages = self._do(None, lambda s3: list(s3.get_paginator("list_objects_v2").paginate(**wanted)))
        return [found["Key"] for page in pages for found in page.get("Contents", [])]


class Aiobotocore:
    """aiobotocore's client, in a loop for each call. It has no transfer manager: large files go up in parts by hand."""

    def __init__(self, bucket: str, **connection: str | None) -> None:
        self._bucket = bucket
        self._connection = connection
        self._session = get_session()

    def _do(self, token: str | None, call: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            async with self._session.create_client("s3", config=AioConfig(proxies={}), **self._connection) as client:
                say_token(client, token)
                return await call(client)

        return asyncio.run(run())

    def upload(self, path: str, key: str, token: str | None = None) -> None:
        async def put(s3: Any) -> None:
            with open(path, "rb") as body:
                if Path(path).stat().st_size <= PART_BYTES:
                    await s3.put_object(Bucket=self._bucket, Key=key, Body=body)
                else:
                    await self._in_parts(s3, key, body)

        self._do(token, put)

    async def _in_parts(self, s3: Any, key: str, body: Any) -> None:
        place = {"Bucket": self._bucket, "Key": key}
        place["UploadId"] = (await s3.create_multipart_upload(**place))["UploadId"]
        parts: list[dict[str, Any]] = []
        while block := body.read(PART_BYTES):
            number = len(parts) + 1
            answer = await s3.upload_part(**place, PartNumber=number, Body=block)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        await s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})

    def download(self, key: str, path: str) -> None:
        async def get(s3: Any) -> None:
            answer = await s3.get_object(Bucket=self._bucket, Key=key)
            async with answer["Body"] as body:
                Path(path).write_bytes(await body.read())

        self._do(None, get)

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        place = {"Bucket": self._bucket, "Key": source}
        self._do(token, lambda s3: s3.copy_object(CopySource=place, Bucket=self._bucket, Key=key))

    def delete(self, key: str, token: str | None = None) -> None:
        self._do(token, lambda s3: s3.delete_object(Bucket=self._bucket, Key=key))

    def names(self, prefix: str) -> list[str]:
        answer = self._do(None, lambda s3: s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix))
        return [found["Key"] for found in answer.get("Contents", [])]


def main(sdk: str, bucket: str) -> None:
    """Make the calls that come on standard input, answer each in a line; an error is what the call's user would see."""
    client = {"boto3": Boto3, "aiobotocore": Aiobotocore}[sdk](bucket)
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        try:
            told = {"answer": getattr(client, call)(*arguments)}
        except ERRORS as error:
            told = {"error": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
