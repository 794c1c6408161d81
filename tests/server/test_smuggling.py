"""Framing that two readers might take differently: it is refused and ends the connection, or has its one meaning.

Behind each request stands another. It is a request of its own only where the first one's end is beyond doubt (RFC 9112,
6.3); never is a part of a body, or what follows a refusal, taken for one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.server.rig import HOST, Answer, Pairs, Rig, raw, running, signed

TOKEN = ("x-fencing-token", "3")
CHUNKED = ("transfer-encoding", "chunked")
DECODED = ("x-amz-decoded-content-length", "1")
BODY = b"1\r\nx\r\n0\r\n\r\n"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        yield rig


def put(key: str, *fields: tuple[str, str], version: str = "HTTP/1.1") -> bytes:
    """The head of a PUT under these fields alone, not framed by anything else."""
    return signed("PUT", f"/b/{key}", [TOKEN, *fields], payload="UNSIGNED-PAYLOAD", version=version)


FOLLOWING = put("second", ("content-length", "1")) + b"y"


async def all_answers(rig: Rig, data: bytes) -> list[Answer]:
    """Send it, say that no more will come, and read to the end."""
    wire = await rig.wire()
    await wire.send(data)
    wire.finish()
    found: list[Answer] = []
    while not found or not found[-1].closes:
        try:
            found.append(await wire.answer("PUT"))
        except EOFError:
            break
    assert await wire.rest() == b""
    return found


# --- refused


@pytest.mark.parametrize(
    "coding",
    [
        "xchunked",
        "chunked, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "identity",
        '"chunked"',
        "chunked;q=1",
        "\x0bchunked",
    ],
)
async def test_transfer_codings_that_are_not_chunked_alone(rig: Rig, coding: str) -> None:
    """Whatever another reader would make of it, there is one refusal and an end."""
    (only,) = await all_answers(rig, put("first", ("transfer-encoding", coding), DECODED) + BODY + FOLLOWING)
    assert (only.status in (400, 501), only.closes) == (True, True)
    assert (rig.stored("first"), rig.stored("second")) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        [CHUNKED, CHUNKED],
        [("transfer-encoding", "identity"), CHUNKED],
        [CHUNKED, ("transfer-encoding", "identity")],
        [("content-length", "1"), CHUNKED],
        [CHUNKED, ("content-length", "11")],
        [("content-length", "1"), ("content-length", "1")],
        [("content-length", "1, 1")],
        [("content-length", "0x1")],
        [("content-length", "1_0")],
        [("content-length", "1 1")],
        [("content-length", "")],
        [("content-length", "9" * 40)],
        [("content-length", str(2**64 + 1))],
    ],
    ids=str,
)
async def test_lengths_that_contradict_or_are_none(rig: Rig, fields: Pairs) -> None:
    """Two lengths, a length beside a coding, and what is no number: one refusal and an end."""
    (only,) = await all_answers(rig, put("first", DECODED, *fields) + BODY + FOLLOWING)
    assert (only.status in (400, 501), only.closes) == (True, True)
    assert (rig.stored("first"), rig.stored("second")) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"0x1\r\nx\r\n0\r\n\r\n",
        b"-1\r\nx\r\n0\r\n\r\n",
        b"+1\r\nx\r\n0\r\n\r\n",
        b" 1\r\nx\r\n0\r\n\r\n",
        b"1 \r\nx\r\n0\r\n\r\n",
        b"1\nx\n0\n\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1;a\nb\r\nx\r\n0\r\n\r\n",
        b"1;a\rb\r\nx\r\n0\r\n\r\n",
        b'1;a="\r\n"\r\nx\r\n0\r\n\r\n',
        b"1" + b"0" * 20 + b"\r\nx\r\n0\r\n\r\n",
        b"1\r\nxZ0\r\n\r\n",
        b"1\r\nx\r\n0\r\ncontent-length: 5\r\n\r\n",
        b"1\r\nx\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n0\r\na: b\r\n c\r\n\r\n",
        b"1\r\nx\r\n0\r\na: b\n\n",
        b"1\r\nx\r\n0\r\na : b\r\n\r\n",
    ],
)
async def test_chunks_that_are_none(rig: Rig, body: bytes) -> None:
    """Sizes, line ends, extensions and trailers that some readers take: the body is incomplete, and that is the end."""
    (only,) = await all_answers(rig, put("first", CHUNKED, DECODED) + body + FOLLOWING)
    assert (only.status, only.code, only.closes) == (400, "IncompleteBody", True)
    assert (rig.stored("first"), rig.stored("second")) == (None, None)


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT b:80 HTTP/1.1\r\nhost: b\r\ncontent-length: 3\r\n\r\n",
        b"CONNECT b:80 HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /b/k HTTP/3.0\r\nhost: a\r\n\r\n",
        b"GET /b/k http/1.1\r\nhost: a\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\n host: a\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\nx\t: y\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nhost: a\r\n: y\r\n\r\n",
        b"GET /b/k HTTP/1.1\rhost: a\r\r",
    ],
)
async def test_heads_that_end_the_connection(rig: Rig, head: bytes) -> None:
    """Tunnels, other protocols and fields that are none: one refusal, whatever follows."""
    (only,) = await all_answers(rig, head + FOLLOWING)
    assert (only.status, only.closes) == (400, True)
    assert rig.stored("second") is None


async def test_what_follows_http_1_0_in_chunks_is_no_request(rig: Rig) -> None:
    """HTTP/1.0 has no transfer coding: the connection is not used again (RFC 9112, 6.1)."""
    answers = await all_answers(rig, put("first", CHUNKED, DECODED, version="HTTP/1.0") + BODY + FOLLOWING)
    assert len(answers) == 1
    assert answers[0].closes
    assert rig.stored("second") is None


# --- with their one meaning


@pytest.mark.parametrize(
    "first",
    [
        put("first", ("content-length", "1")) + b"x",
        put("first", ("content-length", "0001")) + b"x",
        put("first", ("transfer-encoding", "Chunked"), DECODED) + BODY,
        put("first", CHUNKED, DECODED) + b"1;ext=value;other\r\nx\r\n0;last\r\n\r\n",
        put("first", CHUNKED, DECODED) + b"0" * 1000 + b"1\r\nx\r\n" + b"0" * 1000 + b"\r\n\r\n",
        put("first", CHUNKED, DECODED) + b"1\r\nx\r\n0\r\nx-trailer: y\r\nhost: elsewhere\r\n\r\n",
        b"\r\n\r\n" + put("first", ("content-length", "1")) + b"x" + b"\r\n",
    ],
)
async def test_a_body_ends_where_its_framing_says(rig: Rig, first: bytes) -> None:
    """Leading line ends, extensions, zeros and trailers change nothing: two requests, two answers, two objects."""
    answers = await all_answers(rig, first + FOLLOWING)
    assert [answer.status for answer in answers] == [200, 200]
    stored = [rig.stored("first"), rig.stored("second")]
    assert [one and one.data for one in stored] == [b"x", b"y"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
async def test_a_body_where_none_is_due_is_no_request(rig: Rig, method: str) -> None:
    """A request that stands in the body of another is never answered."""
    inner = put("inner", ("content-length", "1")) + b"z"
    wire = await rig.wire()
    await wire.send(signed(method, "/b/first", [TOKEN], inner) + inner + FOLLOWING)
    first = await wire.answer(method)
    if not first.closes:
        assert (await wire.answer("PUT")).status == 200
    else:
        assert await wire.rest() == b""
    assert rig.stored("inner") is None


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_a_request_without_length_has_no_body(rig: Rig, method: str) -> None:
    """What follows a head that frames no body is the next request; an upload that says no length is told so."""
    first, second = await all_answers(rig, signed(method, "/b/first", [TOKEN], payload="UNSIGNED-PAYLOAD") + FOLLOWING)
    assert first.status in (405, 411)
    assert second.status == 200


async def test_each_host_of_a_pipeline_is_its_own(rig: Rig) -> None:
    """The second request of a connection is judged by its own head alone."""
    wire = await rig.wire()
    await wire.send(
        put("first", ("content-length", "1")) + b"x" + raw("PUT /b/second HTTP/1.1", [("host", HOST), TOKEN])
    )
    assert (await wire.answer("PUT")).status == 200
    assert (await wire.answer("PUT")).status == 403
    assert rig.stored("second") is None
