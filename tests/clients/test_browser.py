"""A page of another origin and the gateway: preflights, images, uploads in parts, and what a page may not read."""

from __future__ import annotations

import secrets
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.clients.browser import Browser
from tests.clients.drivers import Failed
from tests.clients.gateway import BUCKET, STRICT, WatchedGateway

pytestmark = pytest.mark.services
PUT = "const { status, headers } = await fetch(given[0], { method: 'PUT', headers: given[1], body: given[2] });"
ANSWER = "return [status, headers.get('X-Fencing-Floor'), headers.get('X-Fencing-Reason')];"


@pytest.fixture
def page(gateway: WatchedGateway, tmp_path: Path) -> Browser:
    return Browser(gateway.target(STRICT), tmp_path)


@pytest.fixture
def job(s3: Any) -> str:
    """A new job, which token 34 holds."""
    job = f"job-{secrets.token_hex(4)}"
    s3.put_object(Bucket=BUCKET, Key=f"renders/{job}/floor", Body=b"", Metadata={"fencing-token": "34"})
    return job


def png(width: int, height: int) -> bytes:
    """A grey image (PNG, W3C Recommendation, 5: Datastream structure)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def test_an_image_is_uploaded_and_shown(gateway: WatchedGateway, page: Browser, job: str, tmp_path: Path) -> None:
    """The browser asks by a preflight, puts under the token and shows the image, by one request each; the page reads
    the floor and the ETag."""
    (tmp_path / "image.png").write_bytes(png(30, 20))
    place = f"renders/{job}/im age+1&ü.png"
    url = page.presign("put_object", Key=place, Metadata={"fencing-token": "34"}, ContentType="image/png")
    headers = {"x-amz-meta-fencing-token": "34", "content-type": "image/png"}
    with gateway.recorded() as requests:
        told = page.call("return await upload(...given)", url, headers, str(tmp_path / "image.png"))
        size = page.call("return await show(given[0])", page.presign("get_object", Key=place))
    assert (told["status"], told["floor"]) == (200, "34")
    assert told["etag"]
    assert size == [30, 20]
    seen = [(line["operation"], line["status"]) for line in requests]
    assert seen == [("PreflightObject", 200), ("PutObject", 200), ("GetObject", 200)]


@pytest.mark.parametrize(("token", "status", "floor"), [("33", 412, "34"), (None, 428, "34"), ("034", 400, None)])
def test_a_page_reads_its_refusal(
    gateway: WatchedGateway, page: Browser, job: str, token: str | None, status: int, floor: str | None
) -> None:
    """A refusal is an answer with status and floor, no broken network; what the bucket does not expose stays hidden."""
    url = page.presign("put_object", token, Key=f"renders/{job}/a")
    headers = {} if token is None else {"X-Fencing-Token": token}
    with gateway.recorded() as requests:
        assert page.call(PUT + ANSWER, url, headers, "late") == [status, floor, None]
    assert Counter(line["status"] for line in requests if line["method"] == "PUT") == {status: 1}


def test_parts_from_a_page(page: Browser, s3: Any, job: str) -> None:
    """An upload that a server begins under its token takes parts from a page, which needs none; once a higher token has
    come, the page's parts are refused, and it can read why."""
    place = {"Bucket": BUCKET, "Key": f"renders/{job}/parts"}
    upload = s3.create_multipart_upload(**place, Metadata={"fencing-token": "34"})["UploadId"]

    def part(number: int) -> str:
        return page.presign("upload_part", Key=place["Key"], UploadId=upload, PartNumber=number)

    send = "return (await send(given[0], { method: 'PUT', body: given[1] })).headers.get('ETag')"
    tag = page.call(send, part(1), "a frame")
    parts = [{"PartNumber": 1, "ETag": tag}]
    s3.put_object(Bucket=BUCKET, Key=f"renders/{job}/floor", Body=b"", Metadata={"fencing-token": "35"})
    with pytest.raises(Failed, match="Token 34 is stale: token 35 now holds"):
        page.call(send, part(2), "another")
    with pytest.raises(s3.exceptions.ClientError, match="PreconditionFailed"):
        s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
    upload = s3.create_multipart_upload(**place, Metadata={"fencing-token": "35"})["UploadId"]
    parts = [{"PartNumber": 1, "ETag": page.call(send, part(1), "a frame")}]
    s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.get_object(**place)["Body"].read() == b"a frame"


def test_a_bucket_that_allows_no_page(gateway: WatchedGateway, page: Browser, s3: Any) -> None:
    """Where the bucket names no origin, the preflight is refused, nothing is put, and no answer can be read."""
    bucket = f"closed-{secrets.token_hex(4)}"
    s3.create_bucket(Bucket=bucket)
    url = page.presign("put_object", Bucket=bucket, Key="renders/job/a")
    with gateway.recorded() as requests:
        with pytest.raises(Failed, match="TypeError: Failed to fetch"):
            page.call(PUT + ANSWER, url, {}, "x")
        with pytest.raises(Failed, match="TypeError: Failed to fetch"):
            page.call("await fetch(given[0])", page.presign("get_object", Bucket=bucket, Key="a"))
    assert [(line["operation"], line["status"]) for line in requests] == [("PreflightObject", 403), ("GetObject", 404)]
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
