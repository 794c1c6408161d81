"""A stale write in each of the ways in which S3 can change an object: refused, logged, and nothing touched."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core.keys import WithoutToken
from gateway.s3.operations import OPERATIONS, Effect
from gateway.stores.values import EventKind, Upload
from tests.conftest import StoreServer
from tests.server.rig import Rig, real, rule, running

NEW, OLD = 34, 33
UPLOAD = "upload-of-the-old-token"
JOB = "7"
KEY = "renders/7/frame"
TAGS = [{"Key": "state", "Value": "final"}]


@dataclass(frozen=True)
class Way:
    """One request that would change `KEY`; `{b}` stands for the bucket."""

    operation: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = b""
    status: int = 412
    reason: str | None = "StaleToken"
    """None: allowed, since it touches no object."""

    def __str__(self) -> str:
        return f"{self.operation} {self.target.partition('?')[2]}".strip()


OBJECT = f"/{{b}}/{KEY}"
PART = f"{OBJECT}?partNumber=1&uploadId={UPLOAD}"
SOURCE = ("x-amz-copy-source", f"/{{b}}/{KEY}")
NEVER: dict[str, Any] = {"status": 501, "reason": "OperationNotFenced"}
BATCH = f"<Delete><Object><Key>{KEY}</Key></Object></Delete>".encode()
BATCH_OF_VERSION = f"<Delete><Object><Key>{KEY}</Key><VersionId>null</VersionId></Object></Delete>".encode()
DOCUMENT = b"<Anything/>"

WAYS = (
    Way("PutObject", "PUT", OBJECT, body=b"stale"),
    Way("PutObject", "PUT", OBJECT, body=b"s" * 100_000),
    Way("PutObject", "PUT", OBJECT, (("if-match", "*"),), b"stale"),
    Way("PutObject", "PUT", OBJECT, (("x-amz-write-offset-bytes", "0"),), b"stale"),
    Way("CopyObject", "PUT", OBJECT, (SOURCE, ("x-amz-metadata-directive", "REPLACE"))),
    Way("DeleteObject", "DELETE", OBJECT, body=None),
    Way("DeleteObject", "DELETE", f"{OBJECT}?versionId=null", body=None),
    Way("DeleteObjects", "POST", "/{b}?delete", body=BATCH, status=200),
    Way("DeleteObjects", "POST", "/{b}?delete", body=BATCH_OF_VERSION, status=200),
    Way("CreateMultipartUpload", "POST", f"{OBJECT}?uploads"),
    Way("UploadPart", "PUT", PART, body=b"stale"),
    Way("UploadPartCopy", "PUT", PART, (SOURCE,)),
    Way("CompleteMultipartUpload", "POST", f"{OBJECT}?uploadId={UPLOAD}", body=DOCUMENT),
    Way("AbortMultipartUpload", "DELETE", f"{OBJECT}?uploadId={UPLOAD}", body=None, status=404, reason=None),
    Way("PutObjectAcl", "PUT", f"{OBJECT}?acl", (("x-amz-acl", "public-read"),)),
    Way("PutObjectTagging", "PUT", f"{OBJECT}?tagging", body=DOCUMENT),
    Way("DeleteObjectTagging", "DELETE", f"{OBJECT}?tagging", body=None),
    Way("PutObjectLegalHold", "PUT", f"{OBJECT}?legal-hold", body=DOCUMENT),
    Way("PutObjectRetention", "PUT", f"{OBJECT}?retention", body=DOCUMENT),
    Way("PutObjectAnnotation", "PUT", f"{OBJECT}?annotation&annotationName=a", body=DOCUMENT),
    Way("DeleteObjectAnnotation", "DELETE", f"{OBJECT}?annotation&annotationName=a", body=None),
    Way("UpdateObjectEncryption", "PUT", f"{OBJECT}?encryption", body=DOCUMENT),
    Way("RestoreObject", "POST", f"{OBJECT}?restore", body=DOCUMENT),
    Way("RenameObject", "PUT", f"{OBJECT}?renameObject", (("x-amz-rename-source", f"/{KEY}"),), **NEVER),
    Way("PostObject", "POST", "/{b}", (("content-type", "multipart/form-data; boundary=x"),), b"--x", **NEVER),
    Way("CreateSession", "GET", "/{b}?session", body=None, **NEVER),
    Way("WriteGetObjectResponse", "POST", "/WriteGetObjectResponse", (("x-amz-request-route", "r"),), b"x", **NEVER),
)
RULES = (rule("renders/{job}/**", "{job}", without_token=WithoutToken.UNTIL_FENCED),)


def test_every_way_to_change_an_object_is_tried() -> None:
    """A new row of the operation table that may change an object needs a way here."""
    changing = {row.name for row in OPERATIONS if row.effect not in (Effect.READ, Effect.CONFIGURE)}
    assert changing == {way.operation for way in WAYS}


@pytest.fixture(scope="module")
def bucket(store_server: StoreServer) -> str:
    """One bucket for all: nothing here leaves anything behind, and the first object of a bucket costs 0.2 s."""
    name = f"stale-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
async def rig(store_server: StoreServer, bucket: str) -> AsyncIterator[Rig]:
    """A gateway over the real store, where token 34 has written the object and token 33 has an upload bound."""
    async with running(upstream=real(store_server), rules=RULES) as rig:
        fields = [("x-fencing-token", str(NEW)), ("x-amz-tagging", "state=final"), ("x-amz-meta-by", "new")]
        assert (await rig.ask("PUT", f"/{bucket}/{KEY}", fields, b"the new token's frame")).status == 200
        await rig.store.uploads.bind(Upload(UPLOAD, bucket, KEY, JOB, OLD, "nonce"))
        rig.upstream.writes.clear()
        yield rig


def state(server: StoreServer, bucket: str) -> dict[str, Any]:
    """The object as the store shows it past the gateway."""
    got = server.client.get_object(Bucket=bucket, Key=KEY)
    names = ("ETag", "Metadata", "LastModified", "ContentType", "ContentLength")
    tags = server.client.get_object_tagging(Bucket=bucket, Key=KEY)["TagSet"]
    return {"Body": got["Body"].read(), "Tags": tags} | {name: got[name] for name in names}


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_stale_write_changes_nothing(rig: Rig, store_server: StoreServer, bucket: str, way: Way) -> None:
    """The refusal is the interface's, the log has its reason, the object is as it was, and so is the floor."""
    before = await asyncio.to_thread(state, store_server, bucket)
    assert before["Tags"] == TAGS
    fields = [(n, v.format(b=bucket)) for n, v in way.headers]
    told = [] if "uploadId" in way.target else [("x-fencing-token", str(OLD))]
    answer = await rig.ask(way.method, way.target.format(b=bucket), [*fields, *told], way.body)
    assert (answer.status, rig.record["operation"]) == (way.status, way.operation), answer.body
    assert rig.record["reason"] == way.reason or way.reason is None
    if way.reason is not None:
        assert rig.record["decision"] == "refused"
        assert rig.upstream.writes == []
    if way.reason == "StaleToken":
        assert rig.record["token"] == OLD
        (event,) = await rig.events(JOB, EventKind.REFUSED)
        assert way.operation in event.detail
        assert "StaleToken" in event.detail
        if way.operation == "DeleteObjects":
            assert b"<Code>PreconditionFailed</Code>" in answer.body
            assert b"<Deleted>" not in answer.body
        else:
            assert answer.xml["FencingReason"] == answer.header("x-fencing-reason") == "StaleToken"
    assert await asyncio.to_thread(state, store_server, bucket) == before
    fence = await rig.fence(JOB)
    assert (fence.floor, fence.completed_floor) == (NEW, NEW)


@pytest.mark.parametrize("way", [w for w in WAYS if w.reason == "StaleToken" and "uploadId" not in w.target], ids=str)
async def test_a_write_without_a_token_changes_nothing(rig: Rig, bucket: str, way: Way) -> None:
    """The same ways without a token are refused once the key is fenced."""
    fields = [(n, v.format(b=bucket)) for n, v in way.headers]
    answer = await rig.ask(way.method, way.target.format(b=bucket), fields, way.body)
    assert answer.status == (200 if way.status == 200 else 428)
    assert b"<Code>FencingTokenRequired</Code>" in answer.body
    assert (rig.record["decision"], rig.record["reason"]) == ("refused", "TokenRequired")
    assert rig.upstream.writes == []


async def test_a_stale_token_may_read(rig: Rig, bucket: str) -> None:
    """Reads are no writes: a fence header on them means nothing."""
    answer = await rig.ask("GET", f"/{bucket}/{KEY}", [("x-fencing-token", str(OLD))])
    assert (answer.status, answer.body) == (200, b"the new token's frame")
    assert answer.header("x-fencing-object-token") == str(NEW)
    assert answer.header("x-fencing-object-key") == JOB
    assert not any(name.startswith("x-amz-meta-fencing") for name, _ in answer.headers)
