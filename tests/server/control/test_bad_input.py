"""What no client of the control API should send: each gets a clear 4xx as a problem, and nothing is changed."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.server.control import asked
from tests.server.control.contract import conforms
from tests.server.rig import BOUND_S, Rig, running

CHECK, RAISE = "/v1/fences/k/check", "/v1/fences/k/raise"
JSON = ("Content-Type", "application/json")
DEEP = 100_000


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        yield rig
        assert not [line for line in rig.log if line["event"] == "internal-error"]
        assert not await rig.store.fences(None, 1, ""), "nothing was changed"


async def say(rig: Rig, data: bytes, rest: bytes = b"") -> tuple[int, Any]:
    """Status and problem of what these bytes are answered with. `rest` follows the answer; then all is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.control_port)
    try:
        writer.write(data)
        async with asyncio.timeout(BOUND_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            assert fields["content-type"].startswith("application/problem+json"), head
            problem = json.loads(await reader.readexactly(int(fields["content-length"])))
            writer.write(rest)
            writer.write_eof()
            await reader.read()
        assert problem["status"] == int(head[0].split()[1])
        return problem["status"], problem
    finally:
        writer.close()


async def post(rig: Rig, path: str, body: bytes, *headers: tuple[str, str]) -> tuple[int, str]:
    """Status and reason."""
    fields = [("Host", "localhost"), ("Content-Length", str(len(body))), *headers]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    status, problem = await say(rig, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    conforms("POST", path, status, "application/problem+json", problem)
    return status, problem["reason"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "invalid"),
        (b"{", "invalid"),
        (b'{"token": 1}}', "invalid"),
        (b"{'token': 1}", "invalid"),
        (b'\xef\xbb\xbf{"token": 1}', "invalid"),
        (b'{"token": "\xff"}', "invalid"),
        (b'{"token": "\\ud800"}', "invalid"),
        (b'{"\\ud800": 1}', "invalid"),
        (b'{"token": NaN}', "invalid"),
        (b'{"token": Infinity}', "invalid"),
        (b'{"token": -0}', "TokenInvalid"),
        (b'{"token": 1e400}', "invalid"),
        (b'{"token": 1e308}', "TokenInvalid"),
        (b'{"token": 18446744073709551616}', "TokenInvalid"),
        (b'{"token": ' + b"9" * 5000 + b"}", "invalid"),
        (b'{"token": "' + b"9" * 5000 + b'"}', "TokenInvalid"),
        (b'{"token": 1' + b"0" * 40 + b"}", "TokenInvalid"),
        (b"[" * DEEP, "too-large"),
        (b"[" * 30000 + b"]" * 30000, "invalid"),
        (b'{"token": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "invalid"),
        (b'{"token": [[[[]]]]}', "TokenInvalid"),
        (b'{"token": 1, "\\u0000": 2}', "invalid"),
        (b'{"token": 1, "' + b"x" * 60000 + b'": 2}', "invalid"),
        (b'"token"', "invalid"),
        (b"null", "invalid"),
        (b'{"token": 1, "token": 2}', "invalid"),
        (b'{"token": 1, "t\\u006fken": 1}', "invalid"),
        (b'{"token": 1' + b', "x": 1' * 8000 + b"}", "invalid"),
    ],
)
async def test_a_body_that_cannot_be_meant(rig: Rig, body: bytes, reason: str) -> None:
    """Broken JSON, numbers that are none or too large, surrogates, depth, a member twice, and anything but an
    object."""
    status = 413 if reason == "too-large" else 400
    assert await post(rig, CHECK, body, JSON) == (status, reason)


@pytest.mark.parametrize(
    ("field", "value", "body", "status", "reason"),
    [
        ("Content-Type", "text/plain", b'{"token": 1}', 415, "unsupported-media-type"),
        ("Content-Type", "application/xml", b"<token/>", 415, "unsupported-media-type"),
        ("Content-Type", "multipart/form-data; boundary=x", b"--x--", 415, "unsupported-media-type"),
        ("Content-Type", "application/x-www-form-urlencoded", b"token=1", 400, "invalid"),
        ("Content-Encoding", "gzip", b"no gzip", 400, "invalid"),
        ("Content-Encoding", "deflate", b"\xff\xff", 400, "invalid"),
        ("Content-Encoding", "gzip", gzip.compress(b"[" * 10_000_000), 413, "too-large"),
        ("X-Request-Id", "a b", b'{"token": 1}', 400, "invalid"),
        ("X-Request-Id", "\xff\xfe", b'{"token": 1}', 400, "invalid"),
        ("X-Request-Id", "x" * 129, b'{"token": 1}', 400, "invalid"),
        ("X-Request-Id", "x\r\nX-Request-Id: y", b'{"token": 1}', 400, "invalid"),
    ],
)
async def test_a_header_that_cannot_be_meant(
    rig: Rig, caplog: pytest.LogCaptureFixture, field: str, value: str, body: bytes, status: int, reason: str
) -> None:
    """A body of another kind, or that cannot be unpacked, or unpacks to too much; what would go into the history. No
    traceback in anybody's log."""
    assert await post(rig, CHECK, body, (field, value)) == (status, reason)
    assert not caplog.records


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        ("%", 400, "KeyInvalid"),
        ("%zz", 400, "KeyInvalid"),
        ("%4", 400, "KeyInvalid"),
        ("%ED%A0%80", 400, "KeyInvalid"),
        ("%C0%AF", 400, "KeyInvalid"),
        ("%F4%90%80%80", 400, "KeyInvalid"),
        ("%00", 400, "KeyInvalid"),
        ("a%C2%85b", 400, "KeyInvalid"),
        ("k" * 513, 400, "KeyInvalid"),
        ("%C3%BC" * 257, 400, "KeyInvalid"),
        ("k" * 8500, 400, "invalid"),
        ("", 404, "not-found"),
        ("a/b", 404, "not-found"),
    ],
)
async def test_a_key_that_cannot_be_meant(rig: Rig, raw: str, status: int, reason: str) -> None:
    """Broken escapes, bytes that are no UTF-8, surrogates and controls, too long, or no segment of its own."""
    said = f'POST /v1/fences/{raw}/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{{"token": 1}}'
    answer, problem = await say(rig, said.encode())
    assert (answer, problem["reason"]) == (status, reason)


@pytest.mark.parametrize("target", ["POST /v1/leases/", "POST /v1/queues//jobs", "GET /v1/jobs/scene/7"])
async def test_a_name_that_makes_another_path(rig: Rig, target: str) -> None:
    """A job's name that a script has not set, or a slash as it is: the answer says what names have to be."""
    _, problem = await say(rig, f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    assert problem["detail"] == "there is no such path; a name in one must be percent-encoded, and not empty"


@pytest.mark.parametrize(
    "query",
    [
        *("limit=1&limit=2", "prefx=a", "=", "prefix=a;limit=1&x", "limit=%", "prefix=%FF", "prefix=%ED%A0%80"),
        *("limit=1_0", "limit=%D9%A1", "limit=+1", "limit=1.5", "limit=1.", "limit=", "limit", "limit=" + "9" * 30),
    ],
)
async def test_a_query_that_cannot_be_meant(rig: Rig, query: str) -> None:
    """A parameter that there is not, one that comes twice, broken escapes, and digits that only look like it."""
    status, problem = await say(rig, f"GET /v1/fences?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert (status, problem["reason"]) == (400, "invalid")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/fences HTTP/9.9\r\n\r\n",
        b"GET /v1/fences HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET /v1/fences HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /v1/fences/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/fences HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"POST /v1/fences/k/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/fences/k/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/fences/k/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http(rig: Rig, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is a problem like any other, and no traceback in anybody's log."""
    status, problem = await say(rig, data)
    assert (status, problem["reason"]) == (400, "invalid")
    assert not caplog.records


@pytest.mark.parametrize("field", ["Content-Length: 7\r\nContent-Encoding: gzip", "Transfer-Encoding: chunked"])
async def test_a_body_that_nobody_wants(rig: Rig, field: str, caplog: pytest.LogCaptureFixture) -> None:
    """Broken, and passed over after a refusal that did not look at it: that is no fault of the gateway's, and told to
    no log."""
    head = f"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\n{field}\r\n\r\n"
    assert (await say(rig, head.encode(), b"no gzip"))[0] == 404
    assert not caplog.records


async def test_a_body_that_does_not_come(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is awaited for a while, and no longer."""
    monkeypatch.setattr(asked, "BODY_TIMEOUT_S", 0.01)
    head = f"POST {RAISE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"
    status, problem = await say(rig, head.encode() + b'{"token"')
    assert (status, problem["reason"]) == (408, "timeout")


async def test_a_body_may_wait_to_be_asked_for(rig: Rig) -> None:
    """`Expect: 100-continue` is met; what is awaited then is read like any other body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.control_port)
    writer.write(
        f"POST {CHECK} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode()
    )
    async with asyncio.timeout(BOUND_S):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.parametrize(
    ("call", "status", "reason"),
    [
        (f"POST {CHECK}", 400, "invalid"),
        ("GET /v1/fences?limit=0", 400, "invalid"),
        ("GET /v1/nothing", 404, "not-found"),
        ("POST /v1/fences", 405, "method-not-allowed"),
    ],
)
async def test_an_expectation_that_nobody_knows(rig: Rig, call: str, status: int, reason: str) -> None:
    """It may be passed over (RFC 9110, 10.1.1), and is, also where there is nobody to pass it over."""
    said = f"{call} HTTP/1.1\r\nHost: localhost\r\nExpect: wonders\r\nContent-Length: 2\r\n\r\n{{}}"
    found, problem = await say(rig, said.encode())
    assert (found, problem["reason"]) == (status, reason)


async def test_a_target_in_absolute_form(rig: Rig) -> None:
    """As a client says it to a proxy (RFC 9112, 3.2.2): the key is the same."""
    status, problem = await say(rig, b"GET http://localhost/v1/fences/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, problem["reason"]) == (400, "KeyInvalid")


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ({"bucket": "b"}, "`outputs`: input should be an array"),
        (["b/k"], "`outputs.0`: input should be an object"),
        ([{"bucket": "b", "key": "k"}] * 101, "`outputs`: input should have at most 100 items"),
    ],
)
async def test_what_is_wrong_is_told_in_the_words_of_json(rig: Rig, outputs: object, told: str) -> None:
    """Callers need not know in which language the gateway is written."""
    body = json.dumps({"token": 1, "outputs": outputs}).encode()
    head = f"POST /v1/jobs/k/complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    _, problem = await say(rig, head.encode() + body)
    assert problem["detail"] == told
