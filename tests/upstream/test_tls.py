"""Towards the store over TLS: whom the client believes, what it tells of those it does not, and that the commit point
and the reset are where they are without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.tls import client_context
from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from tests.authority import Authority, Pair
from tests.conftest import REGION
from tests.upstream.peer import BOUND_S, GET, OK, PUT

ON_BOTH_LOOPS = True
RECORD_BYTES = 16384
"""The most that a TLS record holds (RFC 8446, 5.1)."""


class TlsPeer:
    """The upstream's end of one connection, as decrypted bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), BOUND_S)

    async def bytes(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), BOUND_S)

    async def end(self) -> str:
        """How the client ended the connection, what came before thrown away."""
        try:
            while await asyncio.wait_for(self.reader.read(1 << 20), BOUND_S):
                pass
        except ConnectionResetError:
            return "reset"
        return "closed"


@asynccontextmanager
async def upstream(
    served: ssl.SSLContext, tls: Callable[[], ssl.SSLContext], url: str = "https://127.0.0.1", **options: Any
) -> AsyncIterator[tuple[UpstreamClient, asyncio.Queue[TlsPeer]]]:
    """A client, and the peers of its connections."""
    peers: asyncio.Queue[TlsPeer] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await peers.put(TlsPeer(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=served, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    client = UpstreamClient(f"{url}:{port}", region=REGION, credentials=StaticCredentials(None), tls=tls, **options)
    try:
        yield client, peers
    finally:
        await client.close()
        server.close()
        for writer in writers:
            writer.transport.abort()


async def first(peers: asyncio.Queue[TlsPeer]) -> TlsPeer:
    return await asyncio.wait_for(peers.get(), BOUND_S)


# --- the commit point and the reset


@pytest.mark.parametrize("size", [2, RECORD_BYTES, RECORD_BYTES + 1, RECORD_BYTES + 2, 10 * RECORD_BYTES + 7])
async def test_all_but_the_tail_arrives_before_the_commit(authority: Authority, pair: Pair, size: int) -> None:
    """What has been written arrives whole, wherever the tail's place in a record is: nothing but the tail is held, and
    the tail goes when it is released, not before."""
    body = os.urandom(size)
    async with upstream(pair.served, lambda: authority.trusted) as (client, peers):
        exchange = await client.open(PUT, size)
        await exchange.write(body[:-1])
        peer = await first(peers)
        await peer.head()
        assert await peer.bytes(size - 1) == body[:-1]
        tail = asyncio.ensure_future(peer.bytes(1))
        peer.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # a round trip: whatever was on its way has come
        await peer.writer.drain()
        assert not tail.done()
        exchange.commit()
        await exchange.write(body[-1:])
        assert await tail == body[-1:]
        peer.writer.write(OK)
        assert (await exchange.response(BOUND_S)).status == 200


async def test_an_abort_resets_and_says_no_farewell(authority: Authority, pair: Pair) -> None:
    """An aborted upload ends by RST, not by TLS's close_notify, which a store could take for the body's end."""
    async with upstream(pair.served, lambda: authority.trusted) as (client, peers):
        exchange = await client.open(PUT, 100_000)
        await exchange.write(b"x" * 50_000)
        peer = await first(peers)
        await peer.head()
        await peer.bytes(50_000)
        exchange.abort()
        assert await peer.end() == "reset"


async def test_an_abort_drops_what_waits_for_the_socket(authority: Authority, pair: Pair) -> None:
    """With an upstream that reads nothing, what lies in the buffers of TLS and of the kernel is dropped: it never
    arrives."""
    piece, written = b"x" * 65536, 0
    async with upstream(pair.served, lambda: authority.trusted) as (client, peers):
        exchange = await client.open(PUT, 1 << 40)
        peer = await first(peers)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while True:
            writing = asyncio.ensure_future(exchange.write(piece))
            written += len(piece)
            await asyncio.sleep(0)
            if not writing.done():
                break
        assert written < 64 << 20, "what lies ahead of the socket is bounded"
        exchange.abort()
        with pytest.raises(UpstreamNotReached):
            await writing
        got = 0
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionResetError):
            while data := await asyncio.wait_for(peer.reader.read(1 << 20), BOUND_S):
                got += len(data)
        assert got < written


@pytest.mark.parametrize("farewell", [True, False])
async def test_an_answer_that_ends_with_the_connection(authority: Authority, pair: Pair, farewell: bool) -> None:
    """Only close_notify ends an answer without a length: a connection that merely ends may have been cut by anybody
    (RFC 8446, 6.1)."""
    async with upstream(pair.served, lambda: authority.trusted) as (client, peers):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await first(peers)
        await peer.head()
        peer.writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        response = await reading
        if farewell:
            peer.writer.close()
            assert await response.read(100) == b"half of"
        else:
            with socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)
            with pytest.raises(UpstreamLost):
                await response.read(100)


# --- whom it believes


def old_tls(pair: Pair) -> ssl.SSLContext:
    """A server of TLS 1.1 and no later one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(*pair)
    return context


async def test_what_is_wrong_with_a_certificate_is_named(authority: Authority, tmp_path: Path) -> None:
    """Expired, not yet valid, for another name or address, of an unknown authority: no request is sent, and the message
    says which it is."""
    stranger = Authority(tmp_path)
    cases = [
        (authority.issue("127.0.0.1", from_days=-2, to_days=-1).served, "127.0.0.1", "its certificate has expired"),
        (authority.issue("127.0.0.1", from_days=1, to_days=2).served, "127.0.0.1", "is not valid yet"),
        (authority.issue("localhost").served, "127.0.0.1", r"for another name \(IP address mismatch.*'127\.0\.0\.1'"),
        (authority.issue("s3.example.com").served, "localhost", r"for another name \(Hostname mismatch.*'localhost'"),
        (stranger.issue("127.0.0.1").served, "127.0.0.1", r"no authority .* name its own in \[upstream\] tls_ca"),
    ]
    for served, host, words in cases:
        async with upstream(served, lambda: authority.trusted, f"https://{host}") as (client, peers):
            with pytest.raises(UpstreamNotReached, match=f"no TLS connection to {host}:[0-9]+: .*{words}"):
                await client.send(PUT, b"body", BOUND_S)
            assert client.tls_fault is not None
            assert peers.empty()


async def test_an_upstream_without_tls_is_named(authority: Authority) -> None:
    """https:// to a port that speaks plain HTTP says so."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = UpstreamClient(
        url, region=REGION, credentials=StaticCredentials(None), tls=lambda: authority.trusted, max_connections=1
    )
    for _ in range(2):  # the place in the pool is free again
        with pytest.raises(UpstreamNotReached, match="does not speak TLS there"):
            await client.send(PUT, b"body", BOUND_S)
    await client.close()
    server.close()


async def test_the_system_alone_is_not_enough(pair: Pair) -> None:
    """Without `tls` the system's authorities decide: one that is not among them is not believed."""
    async with upstream(pair.served, lambda: client_context()) as (client, _):
        with pytest.raises(UpstreamNotReached, match="no authority"):
            await client.send(PUT, b"body", BOUND_S)


async def test_a_chain_and_an_authority_between(tmp_path: Path) -> None:
    """A chain that the server shows is followed to the root; the authority between may also be the one named."""
    root = Authority(tmp_path)
    between = Authority(tmp_path, below=root)
    served = between.issue("127.0.0.1").served
    for trusted in (root.trusted, between.trusted):
        async with upstream(served, lambda trusted=trusted: trusted) as (client, peers):
            sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
            peer = await first(peers)
            await peer.head()
            peer.writer.write(OK)
            assert (await sending).status == 200


def test_a_named_authority_may_be_simple(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on contexts demand extensions that simple tools leave out: of the system's authorities, and not
    of one that somebody has named."""
    make = ssl.create_default_context

    def strict(*args: Any, **options: Any) -> ssl.SSLContext:
        context = make(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    assert client_context().verify_flags & ssl.VERIFY_X509_STRICT
    assert not client_context(authority.file).verify_flags & ssl.VERIFY_X509_STRICT


async def test_the_name_in_sni_is_the_endpoints(authority: Authority) -> None:
    """The server is told, and verified by, the name in the endpoint, in both addressing styles."""
    served = authority.issue("localhost").served
    told: list[str | None] = []
    served.sni_callback = lambda _connection, name, _context: told.append(name)
    for addressing in ("path", "virtual"):
        async with upstream(served, lambda: authority.trusted, "https://localhost", addressing=addressing) as (
            client,
            peers,
        ):
            sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
            peer = await first(peers)
            head = await peer.head()
            peer.writer.write(OK)
            assert (await sending).status == 200
            assert (b"host: bucket.localhost:" in head) == (addressing == "virtual")
    assert told == ["localhost", "localhost"]


async def test_new_connections_take_what_was_read_last(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    """After a reload new connections are verified anew, one that is open goes on; a fault is forgotten once something
    could be read."""
    trusted = [Authority(tmp_path).trusted]
    async with upstream(pair.served, lambda: trusted[-1]) as (client, peers):
        with pytest.raises(UpstreamNotReached):
            await client.read(GET)
        assert client.tls_fault is not None
        trusted.append(authority.trusted)
        peer: TlsPeer | None = None
        for _ in range(2):
            reading = asyncio.ensure_future(client.read(GET))
            peer = peer or await first(peers)
            await peer.head()
            peer.writer.write(OK)
            assert (await reading).status == 200
            assert client.tls_fault is None
            trusted.append(trusted[0])  # the open connection is used all the same


# --- who is believed


class Alerting:
    """A store that says by an alert why a handshake fails. A thread with blocking sockets: asyncio's servers say
    nothing, real ones do."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._sock.settimeout(BOUND_S)
        self.url = f"https://127.0.0.1:{self._sock.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                sock.settimeout(BOUND_S)
                with self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) as tls:
                    try:
                        tls.do_handshake()
                    except ssl.SSLError:
                        # The alert has been sent. What the client had sent meanwhile is read: left unread, it would
                        # have the kernel reset the connection, and the reset may overtake the alert.
                        with contextlib.suppress(OSError):
                            tls.shutdown(socket.SHUT_WR)
                            while socket.socket.recv(tls, 65536):
                                pass
                    else:
                        request = b""
                        while not request.endswith(b"body"):
                            request += tls.recv(65536)
                        self.requests.append(request)
                        tls.sendall(OK)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(BOUND_S)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_store_that_wants_a_certificate(
    authority: Authority, pair: Pair, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """The configured certificate opens it. Without one, or with a stranger's, nothing is in doubt, though in TLS 1.3
    the refusal comes when the request is already on its way: the store has not read it."""
    context = pair.served
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    context.maximum_version = version
    store = Alerting(context)
    own, strangers = authority.issue("gateway"), Authority(tmp_path).issue("gateway")
    try:
        for shown, accepted in ((None, False), (strangers, False), (own, True)):
            tls = client_context(authority.file, *(shown or ()))
            client = UpstreamClient(
                store.url, region=REGION, credentials=StaticCredentials(None), tls=lambda tls=tls: tls
            )
            if accepted:
                assert (await client.send(PUT, b"body", BOUND_S)).status == 200
            else:
                with pytest.raises(UpstreamNotReached, match=r"wants (one|a certificate)"):
                    await client.send(PUT, b"body", BOUND_S)
                assert client.tls_fault is not None
            await client.close()
        assert len(store.requests) == 1
    finally:
        await asyncio.to_thread(store.close)  # its thread waits for the client's farewell, which this loop sends


async def test_an_old_tls_is_named(authority: Authority) -> None:
    """A store that knows TLS 1.1 and nothing later is told apart."""
    store = Alerting(old_tls(authority.issue("127.0.0.1")))
    client = UpstreamClient(
        store.url, region=REGION, credentials=StaticCredentials(None), tls=lambda: authority.trusted
    )
    try:
        with pytest.raises(UpstreamNotReached, match=r"speaks no TLS 1\.2"):
            await client.send(PUT, b"body", BOUND_S)
    finally:
        await client.close()
        await asyncio.to_thread(store.close)  # its thread waits for the client's farewell, which this loop sends
