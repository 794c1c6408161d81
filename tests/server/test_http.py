"""The S3 listener as HTTP: hostile heads, framing, Expect, pipelines, and answers that are exact to the byte."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from gateway.s3.sigv4 import Credentials
from gateway.server import listener
from gateway.service.waits import Timing
from gateway.stores.values import EventKind
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.server.rig import BUCKET, HOST, Answer, Rig, Stalled, raw, running, signed

MIB = 1 << 20


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        yield rig


def forged(head: bytes) -> bytes:
    """The same head with a signature that nobody made."""
    start = head.index(b"Signature=") + 10
    return head[:start] + b"0" * 64 + head[start + 64 :]


def is_s3_error(answer: Answer, status: int, code: str) -> bool:
    """A whole S3 error under the ids of its headers."""
    xml = answer.xml
    assert (answer.status, xml["Code"]) == (status, code)
    assert answer.header("content-type") == "application/xml"
    assert xml["RequestId"] == answer.header("x-amz-request-id") != ""
    assert xml["HostId"] == answer.header("x-amz-id-2") != ""
    return True


# --- heads that are not HTTP


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /b/k\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx: a\nb\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET /b/k HTTP/1.1\nhost: a\n\n",
        b"GET /b/k HTTP/1.1\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx-amz-security-token: " + b"s3cr3t" * 3000 + b"\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_in_s3s_form(
    rig: Rig, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that the parser refuses get S3's XML and one log line with the reason, without traceback or echo."""
    wire = await rig.wire()
    await wire.send(request_bytes)
    answer = await wire.answer()
    assert is_s3_error(answer, 400, "BadRequest")
    assert answer.closes
    assert await wire.rest() == b""
    assert rig.told == ["request"]
    assert rig.record["reason"] == "BadRequest"
    assert rig.record["message"] == answer.xml["Message"]
    assert "s3cr3t" not in rig.logged
    assert not caplog.records


async def test_a_head_of_64_kib_is_too_large_and_one_field_of_9_kib_is_not(rig: Rig) -> None:
    """The head as a whole is bounded, and a long session token fits into it."""
    fields = [(f"x-{i}", "v" * 1000) for i in range(70)]
    answer = await rig.say(signed("GET", "/b/k", fields))
    assert is_s3_error(answer, 400, "RequestHeaderSectionTooLarge")
    assert (await rig.put("k", b"there", 1)).status == 200
    assert (await rig.say(signed("GET", "/b/k", [("x-long", "v" * 9216)]))).body == b"there"


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("/b/k#part", "k#part"),
        ("/b/x/../k", "x/../k"),
        ("/b//k", "/k"),
        ("/b/k%23%3F", "k#?"),
        (f"http://{HOST}/b/absolute", "absolute"),
        (f"HTTP://{HOST}/b/absolute", "absolute"),
    ],
)
async def test_the_target_is_taken_as_it_was_sent(rig: Rig, target: str, key: str) -> None:
    """A fragment, dots, double slashes and the absolute form name the object that the signature covers."""
    path = target if target.startswith("/") else "/" + target.split("/", 3)[3]
    head = signed("PUT", path, [("x-fencing-token", "3")], b"x")
    head = head.replace(path.encode(), target.encode(), 1)
    assert (await rig.say(head + b"x")).status == 200
    assert rig.stored(key) is not None


async def test_http_1_0_is_answered_and_closed(rig: Rig) -> None:
    """An old client gets its answer without chunks, ended by the end of the connection."""
    await rig.put("k", b"old", 1)
    wire = await rig.wire()
    await wire.send(signed("GET", "/b/k", version="HTTP/1.0"))
    answer = await wire.answer()
    assert (answer.status, answer.body, answer.closes) == (200, b"old", True)
    assert await wire.rest() == b""


@pytest.mark.parametrize("target", ["*", "b:80", "ftp://b/k", "b/k"])
async def test_a_target_that_names_nothing_is_refused(rig: Rig, target: str) -> None:
    """Neither the asterisk, nor CONNECT's authority, nor a foreign scheme reaches an operation."""
    method = "CONNECT" if target == "b:80" else "OPTIONS"
    assert (await rig.say(raw(f"{method} {target} HTTP/1.1", [("host", HOST)]))).status == 400
    assert rig.upstream.requests == []


async def test_bytes_that_are_no_text_are_still_logged(rig: Rig) -> None:
    """Bytes that are no UTF-8 in what an error names cost neither the answer nor its line in the log."""
    answer = await rig.ask("GET", "/b/k", credentials=Credentials("AKID\udcff", "a-secret"))
    assert is_s3_error(answer, 403, "InvalidAccessKeyId")
    requests = [line for line in rig.log if line["event"] == "request"]
    assert [(line["reason"], line["client"]) for line in requests] == [("InvalidAccessKeyId", "AKID\udcff")]


# --- slow heads


async def test_a_head_may_come_byte_by_byte(rig: Rig) -> None:
    """Where the bytes are cut means nothing."""
    wire = await rig.wire()
    for byte in signed("PUT", "/b/k", [("x-fencing-token", "3")], b"xy") + b"xy":
        await wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await wire.answer()).status == 200


@pytest.mark.parametrize(("first", "bound"), [(b"", "keepalive_timeout_s"), (b"GET /b/k HT", "header_timeout_s")])
async def test_a_head_that_does_not_end_is_cut_off(first: bytes, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that sends no whole head is closed after `header_timeout_s`, a silent one after the keep-alive's."""
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    bounds: dict[str, Any] = {"header_timeout_s": 60, "keepalive_timeout_s": 60} | {bound: 0.1}
    async with running(limits=listener.Limits(**bounds)) as rig:
        wire = await rig.wire()
        await wire.send(first)
        assert await wire.rest() == b""


async def test_a_slow_head_on_a_used_connection_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for every head of a connection; between requests it is the keep-alive's."""
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    async with running(limits=listener.Limits(header_timeout_s=0.1, keepalive_timeout_s=60)) as rig:
        wire = await rig.wire()
        await wire.send(signed("GET", "/b"))
        await wire.answer()
        assert await wire.nothing_for(0.3)
        await wire.send(b"GET /b")
        assert await wire.rest() == b""


# --- pipelines


async def test_pipelined_requests_are_answered_in_their_order(rig: Rig) -> None:
    """Two requests in one packet get two answers."""
    await rig.put("one", b"1", 1)
    await rig.put("two", b"2", 1)
    wire = await rig.wire()
    await wire.send(signed("GET", "/b/one") + signed("GET", "/b/two"))
    assert [(await wire.answer()).body, (await wire.answer()).body] == [b"1", b"2"]


@pytest.mark.parametrize("whole", [True, False])
async def test_what_follows_a_refused_upload_is_no_request(rig: Rig, whole: bool) -> None:
    """A refusal before the body was read is the connection's last answer, whether the body had come or not."""
    await rig.put("k", b"new", 34)
    smuggled = signed("PUT", "/b/smuggled", [("x-fencing-token", "1")], b"")
    wire = await rig.wire()
    head = signed("PUT", "/b/k", [("x-fencing-token", "33")], smuggled)
    await wire.send(head + smuggled + smuggled if whole else head)
    answer = await wire.answer()
    assert is_s3_error(answer, 412, "PreconditionFailed")
    assert answer.closes
    if not whole:
        await wire.send(smuggled + smuggled)
    assert await wire.rest() == b""
    assert rig.stored("smuggled") is None


# --- Expect


@pytest.mark.parametrize("size_bytes", [0, MIB])
@pytest.mark.parametrize("fault", ["signature", "token"])
async def test_a_refused_expectation_is_answered_at_once_and_closed(rig: Rig, fault: str, size_bytes: int) -> None:
    """With a bad signature or a stale token the answer comes alone: no `100 Continue`, no byte of a body read. Where no
    body is to come either: botocore would take its status for that of the next answer, and wait for the rest."""
    await rig.put("k", b"new", 34)
    head = signed("PUT", "/b/k", [("x-fencing-token", "33"), ("expect", "100-continue")], b"x" * size_bytes)
    wire = await rig.wire()
    await wire.send(forged(head) if fault == "signature" else head)
    answer = await wire.answer()
    assert answer.status == (403 if fault == "signature" else 412)
    assert answer.closes
    assert await wire.rest() == b""
    assert rig.record["bytes_in"] == 0


async def test_continue_comes_after_admission(rig: Rig) -> None:
    """The `100 Continue` says that the floor is raised; until the body comes nothing has gone upstream."""
    wire = await rig.wire()
    await wire.send(signed("PUT", "/b/k", [("x-fencing-token", "33"), ("expect", "100-continue")], b"body"))
    assert await wire.answer() == Answer(100, "HTTP/1.1", (), b"")
    assert (await rig.fence("object:b/k")).floor == 33
    assert rig.upstream.writes == []
    await wire.send(b"body")
    assert (await wire.answer()).status == 200
    assert [event.kind for event in await rig.store.events("object:b/k", None, 9)] == [EventKind.RAISED]


async def test_continue_comes_after_the_hand_over() -> None:
    """While a lower token's write is still on its way, the higher token's client holds its body back."""
    upstream = Stalled()
    async with running(upstream=upstream, timing=Timing(handover_wait_s=5)) as rig:
        first = asyncio.create_task(rig.put("k", b"low", 1))
        await upstream.arrived.wait()
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [("x-fencing-token", "2"), ("expect", "100-continue")], b"high"))
        assert await wire.nothing_for(0.2)
        upstream.release.set()
        assert (await first).status == 200


async def test_http_1_0_is_told_no_continue(rig: Rig) -> None:
    """It knows no interim answers (RFC 9110, 10.1.1): the body is waited for in silence."""
    head = signed("PUT", "/b/k", [("x-fencing-token", "3"), ("expect", "100-continue")], b"x", version="HTTP/1.0")
    wire = await rig.wire()
    await wire.send(head)
    await rig.floor("object:b/k", 3)
    await wire.send(b"x")
    assert (await wire.answer()).status == 200


async def test_an_empty_body_that_waits_is_told_to_go_on(rig: Rig) -> None:
    """botocore says Expect for an empty file, too, and takes an answer that comes without a 100 for the next one's."""
    head = signed("PUT", "/b/k", [("x-fencing-token", "3"), ("expect", "100-continue")], b"")
    wire = await rig.wire()
    for _ in range(2):
        await wire.send(head)
        assert await wire.answer() == Answer(100, "HTTP/1.1", (), b"")
        assert (await wire.answer()).status == 200


# --- refusals that the client can read


@pytest.mark.parametrize("fault", ["signature", "token"])
async def test_a_client_that_reads_last_reads_its_refusal(rig: Rig, fault: str) -> None:
    """64 MiB sent without Expect to the end, then read: the refusal and an end of the stream, no reset."""
    await rig.put("k", b"new", 34)
    body = b"x" * (64 * MIB)
    head = signed("PUT", "/b/k", [("x-fencing-token", "33")], body, payload="UNSIGNED-PAYLOAD")
    wire = await rig.wire()
    await wire.send(forged(head) if fault == "signature" else head)
    for at in range(0, len(body), MIB):
        await wire.send(body[at : at + MIB])
    answer = await wire.answer()
    assert answer.status == (403 if fault == "signature" else 412)
    assert answer.closes
    assert await wire.rest() == b""


# --- answers


async def test_head_and_304_have_no_body(rig: Rig) -> None:
    """HEAD keeps Content-Length, also of an error and of nothing; 304 keeps the ETag; 204 has no length."""
    await rig.put("k", b"hello", 1)
    await rig.put("empty", b"", 1)
    wire = await rig.wire()
    await wire.send(signed("HEAD", "/b/k"))
    found = await wire.answer("HEAD")
    assert (found.status, found.header("content-length")) == (200, "5")
    await wire.send(signed("HEAD", "/b/empty"))
    assert (await wire.answer("HEAD")).header("content-length") == "0"
    await wire.send(signed("HEAD", "/b/absent"))
    assert (await wire.answer("HEAD")).status == 404
    await wire.send(signed("GET", "/b/k", [("if-none-match", found.header("etag") or "")]))
    unchanged = await wire.answer()
    assert (unchanged.status, unchanged.header("etag")) == (304, found.header("etag"))
    assert unchanged.header("content-length") is None
    await wire.send(signed("GET", "/b/k"))
    assert (await wire.answer()).body == b"hello"
    await wire.send(signed("DELETE", "/b/k", [("x-fencing-token", "1")]))
    gone = await wire.answer("DELETE")
    assert (gone.status, gone.header("content-length"), gone.header("transfer-encoding")) == (204, None, None)


async def test_each_answer_has_its_date(rig: Rig) -> None:
    """The gateway's own tell its clock (RFC 9110, 6.6.1), by which SDKs set theirs right when they are told that it is
    wrong; the store's keep the store's."""
    await rig.put("k", b"x", 2)
    rig.clock.ahead_s = 1000
    wrong = await rig.say(b"no HTTP at all\r\n\r\n")
    skewed, now = await rig.ask("GET", "/b/k"), rig.clock.wall()
    stale = await rig.ask("PUT", "/b/k", [("x-fencing-token", "1")], b"x", now=now)
    gone = await rig.ask("DELETE", "/b/absent", [("x-fencing-token", "1")], now=now)
    assert (skewed.code, stale.code, gone.status) == ("RequestTimeTooSkewed", "PreconditionFailed", 204)
    for answer in (wrong, skewed, stale, gone):
        date = answer.header("date") or ""
        assert date.endswith(" GMT")
        assert abs(parsedate_to_datetime(date).timestamp() - now) < 10
    old = "Fri, 01 Jan 2016 00:00:00 GMT"
    async with running(upstream=Odd([("date", old), ("content-length", "0")])) as other:
        assert (await other.ask("GET", "/b/k")).header("date") == old


class Odd(MemoryUpstream):
    """Answers each read with the fields and body it was given."""

    def __init__(self, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        super().__init__(BUCKET)
        self.answer = MemoryResponse(200, headers, body)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        return self.answer


async def test_metadata_cannot_split_an_answer() -> None:
    """A line end in an upstream's metadata begins no field and no body of its own."""
    odd = [("x-amz-meta-a", "1\r\nset-cookie: x=y\r\n\r\nbody"), ("x-amz-meta-b", "2\0\n"), ("content-length", "2")]
    async with running(upstream=Odd([("x-amz-meta-b", "2\0")])) as rig:
        assert (await rig.ask("GET", "/b/k")).header("x-amz-meta-b") == "2"
    async with running(upstream=Odd(odd, b"ok")) as rig:
        answer = await rig.ask("GET", "/b/k")
        assert answer.body == b"ok"
        assert answer.header("set-cookie") is None
        assert answer.header("x-amz-meta-b") == "2"


async def test_metadata_that_is_no_text_passes_byte_for_byte() -> None:
    """Bytes that are no UTF-8 in an upstream's metadata come out as they went in."""
    async with running(upstream=Odd([("x-amz-meta-a", "caf\udce9 é"), ("content-length", "0")])) as rig:
        answer = await rig.ask("GET", "/b/k")
        assert answer.header("x-amz-meta-a") == "caf\udce9 é"


async def test_an_answer_without_length_comes_in_chunks_and_a_head_without_one_claims_none() -> None:
    """What the upstream does not say of its length is not made up."""
    async with running(upstream=Odd([("etag", '"e"')], b"streamed")) as rig:
        answer = await rig.ask("GET", "/b/k")
        assert (answer.header("transfer-encoding"), answer.body) == ("chunked", b"streamed")
        assert (await rig.ask("HEAD", "/b/k")).header("content-length") is None
        wire = await rig.wire()
        await wire.send(signed("GET", "/b/k", version="HTTP/1.0"))
        assert (await wire.answer()).body == b"streamed"


async def test_compressed_bodies_pass_byte_for_byte(rig: Rig) -> None:
    """Content-Encoding belongs to the object: nothing is unpacked on the way in or out, small or large."""
    packed = gzip.compress(b"a" * 1000)
    large = gzip.compress(b"b" * 1000) + bytes(range(256)) * 400
    for key, body in (("small", packed), ("large", large), ("not-gzip", b"no gzip at all")):
        put = await rig.put(key, body, 1, ("content-encoding", "gzip"))
        assert put.status == 200, put.body
        stored = rig.stored(key)
        assert stored is not None
        assert stored.data == body
        got = await rig.ask("GET", f"/b/{key}", [("accept-encoding", "gzip")])
        assert (got.body, got.header("content-encoding")) == (body, "gzip")


# --- faults of the program


class Broken(MemoryUpstream):
    """Fails as nothing foresees."""

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        raise RuntimeError("a fault with /private/path in it")


async def test_an_unexpected_fault_is_an_internal_error_that_tells_nothing() -> None:
    """The client gets S3's 500, the log gets the traceback, and the next request is served."""
    async with running(upstream=Broken(BUCKET)) as rig:
        answer = await rig.ask("GET", "/b/k")
        assert is_s3_error(answer, 500, "InternalError")
        assert b"private" not in answer.body
        failure = next(line for line in rig.log if line["event"] == "internal-error")
        assert "RuntimeError: a fault" in failure["exception"]
        assert failure["request_id"] == rig.record["request_id"] == answer.header("x-amz-request-id")
        assert rig.record["status"] == 500
        assert (await rig.put("k", b"x", 1)).status == 200
