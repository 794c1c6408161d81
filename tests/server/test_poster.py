"""The way to a receiver over real sockets: one address, one attempt, everything bounded, and faults told in words."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme

from gateway.server.poster import HttpPoster, retry_after_s
from gateway.service.courier import NotTaken
from gateway.service.webhooks import Answer
from gateway.tls import client_context

HIDDEN = "known-to-friends-alone"
"""Stands in path and query of every address."""
BODY = b'{"specversion":"1.0"}'
Say = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Listens on loopback; keeps what it was sent, and answers what `say` says."""

    def __init__(self, say: Say | bytes) -> None:
        self.say = say
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.port = 0
        self.tasks = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(len(BODY)))
                if isinstance(self.say, bytes):
                    writer.write(self.say)
                    await writer.drain()
                else:
                    await self.say(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            writer.close()

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}/{HIDDEN}?t={HIDDEN}"


@asynccontextmanager
async def serving(say: Say | bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(say)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks)


async def post(url: str, *, timeout_s: float = 5, tls: Callable[[], ssl.SSLContext] | None = None) -> Answer:
    """One post by a poster of its own."""
    poster = HttpPoster(url, timeout_s=timeout_s, tls=tls, wall=time.time)
    try:
        return await poster.post({"content-type": "application/cloudevents+json", "webhook-id": "completed:a:1"}, BODY)
    finally:
        await poster.close()


async def fault(url: str, **how: object) -> str:
    """What is told of a post that is not taken; of the address it holds at most host and port."""
    with pytest.raises(NotTaken) as raised:
        await post(url, **how)
    told = str(raised.value)
    assert HIDDEN not in told
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__, "a traceback would show the address"
    return told


OK = b"HTTP/1.1 204 No Content\r\n\r\n"


async def test_a_post() -> None:
    """The body as it is, with the headers that were given, to the address as it was written."""
    async with serving(OK) as server:
        assert await post(server.url()) == Answer(204, 0.0)
    (head,) = server.heads
    lines = head.lower().splitlines()
    assert head.startswith(f"POST /{HIDDEN}?t={HIDDEN} HTTP/1.1\r\n")
    assert {"content-type: application/cloudevents+json", "webhook-id: completed:a:1"} < set(lines)
    assert any(line.startswith("user-agent: fencing-gateway/") for line in lines)
    assert server.bodies == [BODY]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    """Where a receiver points to is not where the operator has sent announcements."""
    async with serving(OK) as elsewhere:
        answer = f"HTTP/1.1 {status} Go\r\nLocation: {elsewhere.url()}\r\nContent-Length: 0\r\n\r\n".encode()
        async with serving(answer) as server:
            assert (await post(server.url())).status == status
        assert elsewhere.connections == 0


async def test_no_proxy_and_no_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the environment for other programs, or what a receiver asks to be kept, changes no post."""
    async with serving(OK) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
        async with serving(answer) as server:
            poster = HttpPoster(server.url(), timeout_s=5, tls=None, wall=time.time)
            for _ in range(2):
                await poster.post({}, BODY)
            await poster.close()
        assert proxy.connections == 0
        assert len(server.heads) == 2
        assert server.connections == 1, "a connection that is still warm is used again"
        assert "cookie" not in "".join(server.heads).lower()


# --- receivers that fail


async def test_a_receiver_that_is_silent() -> None:
    """It is given up after the time-out."""

    async def silent(*_: object) -> None:
        await asyncio.sleep(30)

    async with serving(silent) as server:
        assert await fault(server.url(), timeout_s=0.2) == "it did not answer within 0.2 s"


@pytest.mark.parametrize("pause_s", [0.05, 30])
async def test_a_receiver_whose_answer_does_not_end(pause_s: float) -> None:
    """Its head has said that it took the announcement; the rest is not waited for."""

    async def drip(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(pause_s)

    async with serving(drip) as server:
        began = time.monotonic()
        assert (await post(server.url())).status == 200
        assert time.monotonic() - began < 4


async def test_a_head_that_drips() -> None:
    """A byte now and then keeps no post alive: the time-out is over the whole."""

    async def drip(_: object, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(drip) as server:
        assert await fault(server.url(), timeout_s=0.3) == "it did not answer within 0.3 s"


async def test_a_receiver_that_says_too_much() -> None:
    """Its answer counts; what comes beyond a bound is not read."""
    sent = 0

    async def flood(_: object, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with serving(flood) as server:
        assert (await post(server.url())).status == 200
    assert sent < 50_000_000


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"", "it closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "it did not answer in HTTP"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "it did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "it did not answer in HTTP"),
    ],
)
async def test_a_receiver_that_speaks_nonsense(says: bytes, told: str) -> None:
    """It has taken nothing."""

    async def say(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        await writer.drain()
        writer.close()

    async with serving(say) as server:
        assert told in await fault(server.url())


async def test_nobody_listens() -> None:
    """The words name host and port."""
    async with serving(OK) as server:
        pass
    assert await fault(server.url()) == f"no connection to 127.0.0.1:{server.port}: Connection refused"


async def test_a_name_that_does_not_exist() -> None:
    """Nor does the fault name more than it."""
    assert (await fault(f"http://nowhere.invalid/{HIDDEN}")).startswith("nowhere.invalid cannot be found: ")


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def shows(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def test_a_receiver_with_a_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    """One for which the named authority vouches is believed; the same without it, or for another name, is not."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trusting = client_context(tmp_path / "ca.pem")
    async with serving(OK, shows(authority, "127.0.0.1")) as server:
        assert (await post(server.url("https"), tls=lambda: trusting)).status == 204
        told = await fault(server.url("https"), tls=client_context)
        assert told.startswith("no TLS connection: no authority that is known here vouches for its certificate")
        assert "tls_ca" in told
    async with serving(OK, shows(authority, "elsewhere.example")) as server:
        told = await fault(server.url("https"), tls=lambda: trusting)
        assert "its certificate is for another name" in told
        assert server.heads == []


async def test_a_receiver_without_tls() -> None:
    """http:// where https:// was meant."""

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/{HIDDEN}"
        told = await fault(url, tls=client_context)
        assert told == "no TLS connection: it does not speak TLS there (is it http:// instead of https://?)"


# --- Retry-After


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("9" * 400, 999_999_999.0),
        (formatdate(NOW + 90, usegmt=True), 90.0),
        (formatdate(NOW - 90, usegmt=True), 0.0),
        ("", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("٧", 0.0),
    ],
)
def test_retry_after(text: str, seconds: float) -> None:
    """Seconds or a date (RFC 9110, 10.2.3); anything else says nothing."""
    assert retry_after_s(text, NOW) == seconds
