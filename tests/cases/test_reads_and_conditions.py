"""GET, HEAD and ranges as at the store; a client's own conditions keep S3's meaning under the fence."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator

import pytest

from tests.cases.sides import Sides
from tests.server.rig import Answer, Pairs, Rig, rule, running

DATA, LARGE = bytes(range(10)), bytes(range(256)) * 1000
PAST, FUTURE = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2065 07:28:00 GMT"
ETAG = f'"{hashlib.md5(DATA).hexdigest()}"'
TOKEN = ("x-fencing-token", "5")


# --- reads


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-1,5-6",
        "bytes=0-",
        "bytes=-0",
        "bytes=5-1",
        "bytes=0-0",
        "bytes=-3",
        "bytes=-100",
        "bytes=9-",
        "bytes=9-9",
        "bytes=10-",
        "bytes=0-1000",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes= 0-1",
        "bytes=0-1, 3-4",
        "BYTES=0-1",
        "lines=0-1",
        "bytes=18446744073709551616-",
    ],
)
async def test_ranges_as_at_the_store(sides: Sides, asked: str) -> None:
    """Of an object, of an empty one and of a large one, by GET and HEAD: status, Content-Range, length and bytes."""
    for key, data in (("some", DATA), ("empty", b""), ("large", LARGE)):
        await sides.ask("PUT", "/{b}/" + key, [], data)
        for method in ("GET", "HEAD"):
            (await sides.ask(method, "/{b}/" + key, [("range", asked)])).alike()


@pytest.mark.parametrize(
    "fields",
    [
        (),
        [("if-none-match", ETAG)],
        [("if-none-match", "*")],
        [("if-none-match", '"other"')],
        [("if-none-match", f'"other", {ETAG}')],
        [("if-match", ETAG)],
        [("if-match", '"other"')],
        [("if-match", "*")],
        [("if-modified-since", PAST)],
        [("if-modified-since", FUTURE)],
        [("if-modified-since", "no date")],
        [("if-unmodified-since", PAST)],
        [("if-none-match", ETAG), ("if-modified-since", PAST)],
        [("if-range", ETAG), ("range", "bytes=0-1")],
        [("if-range", '"other"'), ("range", "bytes=0-1")],
        [("if-none-match", ETAG), ("range", "bytes=0-1")],
        [("if-match", '"other"'), ("range", "bytes=0-1")],
    ],
    ids=str,
)
async def test_conditional_reads_as_at_the_store(sides: Sides, fields: Pairs) -> None:
    """304 keeps the ETag and has no body, HEAD keeps Content-Length, also 0; whatever was asked for."""
    for key, data in (("some", DATA), ("empty", b"")):
        await sides.ask("PUT", "/{b}/" + key, [("x-amz-meta-a", "1"), ("cache-control", "no-store")], data)
        for method in ("GET", "HEAD"):
            (await sides.ask(method, "/{b}/" + key, fields)).alike()


@pytest.mark.parametrize(
    "query", ["response-content-type=a%2Fb", "response-content-disposition=x", "partNumber=1", "partNumber=2"]
)
async def test_reads_with_a_query_as_at_the_store(sides: Sides, query: str) -> None:
    """What a query asks of a read is the store's matter."""
    await sides.ask("PUT", "/{b}/k", [], DATA)
    for method in ("GET", "HEAD"):
        (await sides.ask(method, "/{b}/k?" + query)).alike()


@pytest.mark.parametrize("accepted", ["gzip", "identity", None])
async def test_a_packed_object_as_at_the_store(sides: Sides, accepted: str | None) -> None:
    """Content-Encoding belongs to the object: nothing is packed or unpacked, on the way in or out."""
    fields = [] if accepted is None else [("accept-encoding", accepted)]
    for key, body in (("packed", gzip.compress(LARGE)), ("lies", b"no gzip at all"), ("none", b"")):
        (await sides.ask("PUT", "/{b}/" + key, [("content-encoding", "gzip")], body)).alike()
        both = await sides.ask("GET", "/{b}/" + key, fields)
        both.alike()
        assert both.through.body == body
        (await sides.ask("HEAD", "/{b}/" + key, fields)).alike()


# --- conditions on writes


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A gateway before a store in memory, which knows conditions as S3 does."""
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        yield rig


OTHER = '"' + "0" * 32 + '"'
ABSENT = [("if-none-match", "*")]
RIGHT, WRONG = [("if-match", ETAG)], [("if-match", OTHER)]
FAILED, UNKNOWN, GONE = (412, "PreconditionFailed"), (501, "NotImplemented"), (404, "NoSuchKey")
FINE = (200, "")
ON_PUT: list[tuple[Pairs, tuple[int, str], tuple[int, str]]] = [
    # conditions, where the object is there, where it is not
    (ABSENT, FAILED, FINE),
    (RIGHT, FINE, GONE),
    (WRONG, FAILED, GONE),
    ([("if-match", ETAG.strip('"'))], FINE, GONE),
    ([("if-match", "*")], UNKNOWN, UNKNOWN),
    ([("if-none-match", OTHER)], UNKNOWN, UNKNOWN),
    ([*ABSENT, *RIGHT], UNKNOWN, UNKNOWN),
]
ON_DELETE: list[tuple[Pairs, tuple[int, str], tuple[int, str]]] = [
    (RIGHT, (204, ""), GONE),
    (WRONG, FAILED, GONE),
    ([("if-match", "*")], (204, ""), GONE),
    (ABSENT, UNKNOWN, UNKNOWN),
    ([("if-none-match", OTHER)], UNKNOWN, UNKNOWN),
]


async def write(rig: Rig, how: str, key: str, fields: Pairs) -> Answer:
    """One conditional write of an object, by PUT (small or streamed), copy, DELETE or Complete."""
    said = [*fields, TOKEN] if key.startswith("renders") else list(fields)
    match how:
        case "PUT":
            return await rig.ask("PUT", f"/b/{key}", said, b"new")
        case "streamed PUT":
            return await rig.ask("PUT", f"/b/{key}", said, LARGE)
        case "copy":
            await rig.ask("PUT", "/b/source", [], b"new")
            return await rig.ask("PUT", f"/b/{key}", [*said, ("x-amz-copy-source", "b/source")], b"")
        case "DELETE":
            return await rig.ask("DELETE", f"/b/{key}", said)
    token = said[-1:] if key.startswith("renders") else []
    created = await rig.ask("POST", f"/b/{key}?uploads", token, b"")
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    part = await rig.ask("PUT", f"/b/{key}?partNumber=1&uploadId={upload_id}", [], b"new")
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
    document += "</CompleteMultipartUpload>"
    return await rig.ask("POST", f"/b/{key}?uploadId={upload_id}", fields, document.encode())


@pytest.mark.parametrize("key", ["plain", "renders/7/out"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "absent"])
@pytest.mark.parametrize("how", ["PUT", "streamed PUT", "copy", "Complete", "DELETE"])
async def test_a_clients_own_condition_means_what_it_means_on_s3(rig: Rig, how: str, there: bool, key: str) -> None:
    """With and without a fence: S3's status and code, no reason of the fence's, and the object as it ought to be."""
    for fields, present, absent in ON_DELETE if how == "DELETE" else ON_PUT:
        await rig.ask("DELETE", f"/b/{key}", [TOKEN] if key.startswith("renders") else [])
        if there:
            assert (await write(rig, "PUT", key, [])).status == 200
            stored = rig.stored(key)
            assert stored is not None
            etag = stored.etag.strip('"')
            fields = [(n, v.replace(ETAG.strip('"'), etag)) for n, v in fields]
        before = rig.stored(key)
        answer = await write(rig, how, key, fields)
        expected = present if there else absent
        assert (answer.status, answer.code if answer.status >= 300 else "") == expected, (fields, answer.body)
        assert answer.header("x-fencing-reason") is None
        if answer.status >= 300:
            assert rig.stored(key) == before
        else:
            assert rig.stored(key) != before


@pytest.mark.parametrize("fields", [ABSENT, WRONG, [("if-match", "*")], [("if-none-match", OTHER)]], ids=str)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_conditional_writes_as_at_the_store(sides: Sides, method: str, fields: Pairs) -> None:
    """Without a fence the store's own answer, whatever it is."""
    for key in ("there", "absent"):
        await sides.ask("PUT", "/{b}/there", [], DATA)
        (await sides.ask(method, "/{b}/" + key, fields, b"new" if method == "PUT" else None)).alike()
        (await sides.ask("GET", "/{b}/" + key)).alike()


async def test_a_stale_token_is_told_before_the_condition(rig: Rig) -> None:
    """The fence speaks first, with its reason: a stale writer is not told what it could do with another condition."""
    await rig.ask("PUT", "/b/renders/7/out", [("x-fencing-token", "6")], b"6")
    for fields in (ABSENT, RIGHT, WRONG):
        answer = await rig.ask("PUT", "/b/renders/7/out", [*fields, TOKEN], b"5")
        assert (answer.status, answer.header("x-fencing-reason")) == (412, "StaleToken")
