"""Bodies from end to end over the real store: every way to send one, every promise broken, and clients that fail."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.s3.payload import PayloadMode, PayloadSpec
from gateway.s3.request import Headers
from gateway.server import body as body_module
from gateway.server.body import Progress, RequestBody
from gateway.server.http import Request
from gateway.server.listener import Limits
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryUpstream
from tests.conftest import REGION, StoreServer
from tests.s3.bodies import Signing, crc32, signed_chunks, split, unsigned_chunks
from tests.server.rig import BUCKET, CREDENTIALS, Rig, Wire, real, running, signed

SMALL, LARGE = b"small" * 200, bytes(range(256)) * 1200
OLDER = b"what was there before"
KEY = "object"
CHUNK = 40_000


@pytest.fixture(scope="module")
def bucket(store_server: StoreServer) -> str:
    """One bucket for all: each test writes an object of its own."""
    name = f"body-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
async def rig(store_server: StoreServer) -> AsyncIterator[Rig]:
    async with running(upstream=real(store_server)) as rig:
        yield rig


class Upload:
    """A PUT in one of S3's ways to send a body, with one promise to be broken at will."""

    def __init__(self, target: str, payload: bytes, mode: PayloadMode, fault: str = "") -> None:
        fields: list[tuple[str, str]] = [("x-fencing-token", "5")]
        announced = len(payload) + {"longer": 1, "shorter": -1}.get(fault, 0)
        trailer = f"x-amz-checksum-crc32:{crc32(b'other' if fault == 'trailer' else payload)}"
        if fault == "checksum":
            fields.append(("x-amz-checksum-crc32", crc32(b"other")))
        if mode.chunked:
            fields += [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", str(announced))]
        if mode.trailer:
            fields.append(("x-amz-trailer", "x-amz-checksum-crc32"))
        digest = hashlib.sha256(b"other" if fault == "digest" else payload).hexdigest()
        value = digest if mode is PayloadMode.SIGNED_HASH else mode.value
        now = time.time()
        pieces = split(payload, CHUNK if len(payload) > CHUNK else 400)
        if mode is PayloadMode.UNSIGNED_CHUNKS_TRAILER:
            self.body = unsigned_chunks(pieces, trailer)
            fields.append(("content-length", str(len(self.body))))
        elif mode.signed_chunks:
            size = len(signed_chunks(pieces, trailer if mode.trailer else None))
            fields.append(("content-length", str(size)))
        else:
            self.body = payload
            fields.append(("content-length", str(announced)))
        self.head = signed("PUT", target, fields, payload=value, now=now)
        if mode.signed_chunks:
            seed = self.head.partition(b"Signature=")[2][:64].decode()
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
            signing = Signing(CREDENTIALS.secret_key, stamp, f"{stamp[:8]}/{REGION}/s3/aws4_request", seed)
            self.body = signed_chunks(pieces, trailer if mode.trailer else None, signing=signing)
        if fault == "chunk":
            second = self.body.index(b"chunk-signature=", self.body.index(b"chunk-signature=") + 1) + 16
            self.body = self.body[:second] + b"0" * 64 + self.body[second + 64 :]
        if fault == "trailer signature":
            at = self.body.index(b"x-amz-trailer-signature:") + 24
            self.body = self.body[:at] + b"0" * 64 + self.body[at + 64 :]


async def stored(server: StoreServer, bucket: str, key: str) -> bytes | None:
    """The object's bytes past the gateway; None where there is none."""

    def get() -> bytes | None:
        try:
            got: Any = server.client.get_object(Bucket=bucket, Key=key)
        except server.client.exceptions.NoSuchKey:
            return None
        data: bytes = got["Body"].read()
        return data

    return await asyncio.to_thread(get)


@pytest.mark.parametrize("payload", [b"", b"1", SMALL, LARGE], ids=["empty", "one byte", "small", "large"])
@pytest.mark.parametrize("mode", PayloadMode, ids=lambda mode: mode.name)
async def test_every_way_to_send_a_body(
    rig: Rig, store_server: StoreServer, bucket: str, mode: PayloadMode, payload: bytes
) -> None:
    """What arrives is stored exactly, whichever way it was sent, with its ETag and without the framing."""
    key = f"{mode.name}-{len(payload)}"
    upload = Upload(f"/{bucket}/{key}", payload, mode)
    answer = await rig.say(upload.head + upload.body, "PUT")
    assert answer.status == 200, answer.body
    assert answer.header("etag") == f'"{hashlib.md5(payload).hexdigest()}"'
    assert await stored(store_server, bucket, key) == payload
    assert rig.record["bytes_in"] == len(upload.body)
    shown = await rig.ask("HEAD", f"/{bucket}/{key}")
    assert shown.header("content-encoding") is None
    assert shown.header("x-fencing-object-token") == "5"


FAULTS = [
    (PayloadMode.SIGNED_HASH, "digest", 400, "XAmzContentSHA256Mismatch"),
    (PayloadMode.SIGNED_HASH, "checksum", 400, "BadDigest"),
    (PayloadMode.UNSIGNED, "checksum", 400, "BadDigest"),
    (PayloadMode.SIGNED_CHUNKS, "chunk", 403, "SignatureDoesNotMatch"),
    (PayloadMode.SIGNED_CHUNKS, "longer", 400, "IncompleteBody"),
    (PayloadMode.SIGNED_CHUNKS, "shorter", 400, "IncompleteBody"),
    (PayloadMode.SIGNED_CHUNKS_TRAILER, "chunk", 403, "SignatureDoesNotMatch"),
    (PayloadMode.SIGNED_CHUNKS_TRAILER, "trailer", 400, "BadDigest"),
    (PayloadMode.SIGNED_CHUNKS_TRAILER, "trailer signature", 403, "SignatureDoesNotMatch"),
    (PayloadMode.UNSIGNED_CHUNKS_TRAILER, "trailer", 400, "BadDigest"),
    (PayloadMode.UNSIGNED_CHUNKS_TRAILER, "longer", 400, "IncompleteBody"),
    (PayloadMode.UNSIGNED_CHUNKS_TRAILER, "shorter", 400, "IncompleteBody"),
]


@pytest.mark.parametrize("older", [True, False], ids=["over an older object", "new"])
@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("mode", "fault", "status", "code"), FAULTS, ids=lambda v: getattr(v, "name", str(v)))
async def test_a_broken_promise_leaves_nothing_behind(
    rig: Rig,
    store_server: StoreServer,
    bucket: str,
    mode: PayloadMode,
    fault: str,
    status: int,
    code: str,
    payload: bytes,
    older: bool,
) -> None:
    """A body that is not what its head or its chunks promised is refused, and the object is as it was, or absent."""
    key = f"broken-{secrets.token_hex(6)}"
    if older:
        assert (await rig.ask("PUT", f"/{bucket}/{key}", [("x-fencing-token", "4")], OLDER)).status == 200
    upload = Upload(f"/{bucket}/{key}", payload, mode, fault)
    answer = await rig.say(upload.head + upload.body, "PUT")
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.header("x-fencing-reason") is None
    assert await stored(store_server, bucket, key) == (OLDER if older else None)
    again = await rig.ask("PUT", f"/{bucket}/{key}", [("x-fencing-token", "5")], b"right")
    assert again.status == 200
    assert await stored(store_server, bucket, key) == b"right"


async def test_expect_and_both_kinds_of_chunks_together(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """Expect, chunked transfer coding, aws-chunked and a trailer in one request: `100`, then stored."""
    framed = unsigned_chunks(split(LARGE, CHUNK), f"x-amz-checksum-crc32:{crc32(LARGE)}")
    fields = [
        ("x-fencing-token", "5"),
        ("expect", "100-continue"),
        ("transfer-encoding", "chunked"),
        ("content-encoding", "aws-chunked,gzip"),
        ("x-amz-decoded-content-length", str(len(LARGE))),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ]
    wire = await rig.wire()
    await wire.send(signed("PUT", f"/{bucket}/{KEY}", fields, payload=PayloadMode.UNSIGNED_CHUNKS_TRAILER.value))
    assert (await wire.answer()).status == 100
    for piece in split(framed, 7001):
        await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    await wire.send(b"0\r\n\r\n")
    assert (await wire.answer("PUT")).status == 200
    assert await stored(store_server, bucket, KEY) == LARGE
    assert (await rig.ask("HEAD", f"/{bucket}/{KEY}")).header("content-encoding") == "gzip"
    # and the connection goes on
    await wire.send(signed("GET", f"/{bucket}/{KEY}"))
    assert (await wire.answer()).body == LARGE


# --- clients that fail in mid-body


class Staging(MemoryUpstream):
    """Says when the first bytes of a body arrive and when its exchange is aborted."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.staged, self.aborted = asyncio.Event(), asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        upstream = self

        class Exchange(MemoryExchange):
            async def write(self, data: bytes) -> None:
                await super().write(data)
                upstream.staged.set()
                if upstream.hold is not None:
                    await upstream.hold.wait()

            def abort(self) -> None:
                super().abort()
                upstream.aborted.set()

        return Exchange(self, request, content_length)


async def _begun(rig: Rig, upstream: Staging, sent: int) -> Wire:
    """A connection in mid-PUT of LARGE, its first bytes staged."""
    wire = await rig.wire()
    await wire.send(signed("PUT", f"/b/{KEY}", [("x-fencing-token", "5")], LARGE) + LARGE[:sent])
    await asyncio.wait_for(upstream.staged.wait(), 5)
    return wire


@pytest.mark.parametrize("end", ["reset", "fin"])
@pytest.mark.parametrize("left", [1, 100_000])
async def test_a_client_that_goes_away_in_mid_body_leaves_nothing(end: str, left: int) -> None:
    """Less than Content-Length and then the end, by reset or FIN: staging is aborted, nothing is visible."""
    upstream = Staging()
    async with running(upstream=upstream) as rig:
        wire = await _begun(rig, upstream, len(LARGE) - left)
        if end == "fin":
            wire.finish()
        else:
            wire.abort()
        await asyncio.wait_for(upstream.aborted.wait(), 5)
        assert rig.stored(KEY) is None
        await rig.answered(1)
        assert (rig.record["decision"], rig.record["reason"]) == ("failed", "ClientGone")
        assert rig.gateway.fences.unsettled() == []
        assert (await rig.put(KEY, b"again", 5)).status == 200


@pytest.mark.parametrize("size", [len(SMALL), len(LARGE)], ids=["small", "large"])
async def test_a_body_that_stalls_is_given_up(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte for `idle_timeout_s`: 400 RequestTimeout, the connection closed, nothing upstream."""
    monkeypatch.setattr(body_module, "SWEEP_S", 0.02)
    async with running(limits=Limits(idle_timeout_s=0.2)) as rig:
        body = b"x" * size
        wire = await rig.wire()
        await wire.send(signed("PUT", f"/b/{KEY}", [("x-fencing-token", "5")], body) + body[:-1])
        answer = await wire.answer("PUT")
        assert (answer.status, answer.code, answer.closes) == (400, "RequestTimeout", True)
        assert await wire.rest() == b""
        assert rig.stored(KEY) is None
        assert rig.record["reason"] == "RequestTimeout"


async def test_a_client_that_stops_reading_is_given_up() -> None:
    """An answer that nobody takes holds its connection no longer than `idle_timeout_s`."""
    async with running(limits=Limits(idle_timeout_s=0.2)) as rig:
        assert (await rig.put(KEY, b"x" * (64 << 20), 5)).status == 200
        wire = await rig.wire()
        await wire.send(signed("GET", f"/b/{KEY}"))
        async with asyncio.timeout(10):
            while rig.record["operation"] != "GetObject":
                await asyncio.sleep(0.05)
        assert (rig.record["decision"], rig.record["reason"]) == ("failed", "ClientGone")
        assert rig.gateway.handler.running == 0


async def test_a_slow_upstream_is_not_held_against_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time that the client lets pass counts: while the upstream takes its time, no body is given up."""
    monkeypatch.setattr(body_module, "SWEEP_S", 0.02)
    upstream = Staging()
    upstream.hold = asyncio.Event()
    async with running(upstream=upstream, limits=Limits(idle_timeout_s=0.1)) as rig:
        wire = await _begun(rig, upstream, len(LARGE))
        assert await wire.nothing_for(0.4)
        upstream.hold.set()
        assert (await wire.answer("PUT")).status == 200


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"zz\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("when", ["with the head", "while it is read", "after the refusal"])
async def test_chunks_that_are_no_chunks(chunks: bytes, when: str, caplog: pytest.LogCaptureFixture) -> None:
    """A line feed in a chunk's extension, a bad size or end: refused, nothing upstream, no traceback in any log."""
    async with running() as rig:
        await rig.put(KEY, OLDER, 4)
        token = "3" if when == "after the refusal" else "5"
        coding = [("transfer-encoding", "chunked"), ("x-amz-decoded-content-length", "5")]
        head = signed("PUT", f"/b/{KEY}", [("x-fencing-token", token), *coding], payload="UNSIGNED-PAYLOAD")
        wire = await rig.wire()
        if when == "with the head":
            await wire.send(head + chunks)
            answer = await wire.answer("PUT")
            assert (answer.status, answer.code) == (400, "IncompleteBody")
        elif when == "while it is read":
            await wire.send(head)
            await rig.floor("object:b/" + KEY, 5)
            await wire.send(chunks)
            answer = await wire.answer("PUT")
            assert (answer.status, answer.code) == (400, "IncompleteBody")
        else:
            await wire.send(head)
            answer = await wire.answer("PUT")
            assert (answer.status, answer.code) == (412, "PreconditionFailed")
            await wire.send(chunks)
        assert answer.closes
        assert await wire.rest() == b""
        assert not caplog.records
        assert rig.told == ["request", "request"]
        found = rig.stored(KEY)
        assert found is not None
        assert found.data == OLDER


# What a body costs


class Nobody:
    """A connection to which nothing is said."""

    address, scheme = "", "http"

    def write(self, data: bytes, *, whole: bool = False) -> None: ...

    async def drained(self) -> None: ...

    def read_on(self) -> None: ...

    def cut(self) -> None: ...


async def test_small_frames_cost_no_more_memory_than_large_ones() -> None:
    """A body that is read whole, in frames of two bytes each: what is kept of it is its payload."""
    payload = b"ab" * 16384
    sent = unsigned_chunks([payload[at : at + 2] for at in range(0, len(payload), 2)])
    request = Request(Nobody(), "POST", "/b?delete", Headers([("content-length", str(len(sent)))]), "1.1", True)
    for at in range(0, len(sent), 4096):
        request.body.feed(sent[at : at + 4096])
    request.body.end()
    spec = PayloadSpec(PayloadMode.UNSIGNED_CHUNKS_TRAILER, len(payload))
    body = RequestBody(request, spec, None, Progress(SystemClock(), 60, 0))
    tracemalloc.start()
    try:
        assert await body.read() == payload
        assert tracemalloc.get_traced_memory()[1] < 8 * len(payload)
    finally:
        tracemalloc.stop()
