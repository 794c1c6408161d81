"""Towards the store over TLS: whom the client believes, what it tells of those it does not, and that the commit point
and the reset are where they are without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.tls import client_context
from gateway.upstream import tied_exec
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.embedded import find_weed
from tests.authority import Authority, Pair
from tests.conftest import REGION, StoreServer
from tests.gateway_process import GatewayProcess, Target, before
from tests.upstream.peer import BOUND_S, GET, OK, PUT

ON_BOTH_LOOPS = True
RECORD_BYTES = 16384
"""The most that a TLS record holds (RFC 8446, 5.1)."""


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1")


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


# --- a real store


@pytest.fixture(scope="module")
def tls_store(
    store_server: StoreServer, authority: Authority, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A second S3 front of the session's SeaweedFS, which speaks TLS and wants a certificate."""
    directory = tmp_path_factory.mktemp("front")
    filer = json.loads((store_server.directory / "ports.json").read_bytes())["filer"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [
        *("-logtostderr=true", "s3", f"-filer=127.0.0.1:{filer}", "-ip.bind=127.0.0.1", f"-port={port}"),
        *(f"-port.grpc={port + 10000 if port < 50000 else port - 10000}", "-port.iceberg=0", "-port.lance=0"),
        *(f"-config={store_server.directory / 's3.json'}", f"-localSocket={directory / 's3.sock'}"),
        *(f"-cert.file={pair.cert}", f"-key.file={pair.key}", f"-cacert.file={authority.file}"),
        *("-tlsVerifyClientCert=true", "-iam=false"),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()), str(find_weed()), *arguments],
            cwd=directory,
            env={"PATH": os.defpath, "HOME": str(directory)},
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (directory / "log").read_text()
            threading.Event().wait(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [1 << 20, 16 << 20])
async def test_a_real_store_keeps_nothing_of_a_cut_upload(
    tls_store: str, store_server: StoreServer, authority: Authority, bucket: str, size: int
) -> None:
    """SeaweedFS over TLS with a client's certificate: a PUT goes through byte by byte; one that is cut before its tail
    leaves nothing behind, and an object that was there as it was."""
    tls = client_context(authority.file, *authority.issue("gateway"))
    client = UpstreamClient(
        tls_store, region=REGION, credentials=StaticCredentials(store_server.credentials), tls=lambda: tls
    )
    body = os.urandom(size)
    await (await client.send(UpstreamRequest("PUT", bucket, "there", "", ()), b"before", BOUND_S)).read(100)
    for key in ("new", "there"):
        exchange = await client.open(UpstreamRequest("PUT", bucket, key, "", ()), size)
        await exchange.write(body[:-1])
        exchange.abort()
    exchange = await client.open(UpstreamRequest("PUT", bucket, "whole", "", ()), size)
    await exchange.write(body[:-1])
    exchange.commit()
    await exchange.write(body[-1:])
    assert (await exchange.response(BOUND_S)).status == 200
    for key, expected in (("new", None), ("there", b"before"), ("whole", body)):
        response = await client.read(UpstreamRequest("GET", bucket, key, "", (), EMPTY_SHA256))
        got = await response.read(size + 1)
        assert response.status == (404 if expected is None else 200)
        assert expected is None or sha256(got).digest() == sha256(expected).digest()
    await client.close()


def test_a_gateway_before_a_store_with_tls(
    tls_store: str, store_server: StoreServer, authority: Authority, bucket: str, tmp_path: Path
) -> None:
    """By its configuration a gateway shows the store its certificate and believes the store's: fenced writes of both
    kinds, and a stale one, go as ever. After a SIGHUP with a stranger's authority `status` says that the store is not
    believed any more."""
    shown, trusted = authority.issue("gateway"), tmp_path / "ca.pem"
    trusted.write_bytes(authority.file.read_bytes())
    configuration = f'[upstream]\ntls_ca = "{trusted}"\ntls_cert = "{shown.cert}"\ntls_key = "{shown.key}"\n'
    settings = before(Target(tls_store, store_server.credentials))
    # Each connection serves one request: after the reload the next one has to be opened.
    with GatewayProcess(
        tmp_path, "upstream.idle_connection_timeout_s=0.001", configuration=configuration, **settings
    ) as g:
        for size in (10, 1 << 20):
            body = os.urandom(size)
            g.s3.put_object(Bucket=bucket, Key="k", Body=body, Metadata={"fencing-token": "34"})
            assert g.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
        with pytest.raises(ClientError, match="Token 33 is stale"):
            g.s3.put_object(Bucket=bucket, Key="k", Body=b"stale", Metadata={"fencing-token": "33"})
        assert g.ask("status").exit_code == 0
        trusted.write_bytes(Authority(tmp_path).file.read_bytes())
        g.process.send_signal(signal.SIGHUP)
        while g.log().count('"event":"tls-loaded"') < 2:
            assert g.process.poll() is None
            time.sleep(0.01)
        with pytest.raises(ClientError, match="no authority that is known here"):
            g.s3.put_object(Bucket=bucket, Key="k", Body=b"new", Metadata={"fencing-token": "34"})
        told = g.ask("status")
        assert told.exit_code == 3
        assert "upstream: no TLS connection to 127.0.0.1" in told.stderr
