"""The client: what it puts on the wire, whom it connects to, and how it shares few connections among many."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.s3.request import Headers, parse_head
from gateway.s3.sigv4 import Credentials, parse_claim, verify
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamNotReached, UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from tests.conftest import REGION, StoreServer
from tests.contract.upstream_contract import UpstreamContract
from tests.upstream.peer import BOUND_S, GET, OK, PUT, Listener, Peer, conversation, used_once

ON_BOTH_LOOPS = True

CREDENTIALS = Credentials("AKIDEXAMPLE", "secret", "token")
CERTIFICATE = Path(__file__).with_name("localhost.pem")


class TestClientOnSeaweedFS(UpstreamContract):
    @pytest.fixture
    async def upstream(self, store_server: StoreServer) -> AsyncIterator[Upstream]:
        client = UpstreamClient(
            store_server.url, region=REGION, credentials=StaticCredentials(store_server.credentials)
        )
        yield client
        await client.close()


async def exchanged(client: UpstreamClient, listener: Listener, request: UpstreamRequest, body: bytes = b"") -> bytes:
    """What a request looks like on the wire."""
    sending = asyncio.ensure_future(client.send(request, body, BOUND_S))
    peer = await listener.accept()
    raw = await peer.request()
    await peer.send(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    await sending
    return raw


async def test_bytes_of_an_unsigned_request() -> None:
    """Target and headers go out byte for byte, with host and length and nothing else."""
    request = UpstreamRequest(
        "PUT",
        "bucket",
        "/a//../%2F%2f+ä\udcff;'",
        "x=%20&y&partNumber=1&=",
        (("x-amz-meta-a", "  \udcff\udcfe ä  b"), ("x-amz-meta-a", ""), ("accept", "*/*")),
    )
    async with conversation() as (client, listener):
        raw = await exchanged(client, listener, request, b"body")
        assert raw == (
            b"PUT /bucket//a//../%2F%2f+\xc3\xa4\xff;'?x=%20&y&partNumber=1&= HTTP/1.1\r\n"
            b"host: " + listener.url[7:].encode() + b"\r\ncontent-length: 4\r\n"
            b"x-amz-meta-a:   \xff\xfe \xc3\xa4  b\r\nx-amz-meta-a: \r\naccept: */*\r\n\r\nbody"
        )


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("PUT", b"", b"0"),
        ("POST", b"", b"0"),
        ("PUT", b"xy", b"2"),
        ("GET", b"", None),
        ("DELETE", b"", None),
        ("GET", b"x", b"1"),
    ],
)
async def test_content_length(method: str, body: bytes, length: bytes | None) -> None:
    """PUT and POST always say their length, the others where they have a body."""
    async with conversation() as (client, listener):
        raw = await exchanged(client, listener, UpstreamRequest(method, "bucket", "k", "", ()), body)
        said = [line[16:] for line in raw.split(b"\r\n") if line.startswith(b"content-length: ")]
        assert said == ([] if length is None else [length])


@pytest.mark.parametrize(
    ("addressing", "bucket", "raw_key", "host", "path"),
    [
        ("path", None, "", "", "/"),
        ("path", "bucket", "", "", "/bucket"),
        ("path", "bucket", "a/b", "", "/bucket/a/b"),
        ("virtual", None, "", "", "/"),
        ("virtual", "bucket", "", "bucket.", "/"),
        ("virtual", "my.bucket", "/a", "my.bucket.", "//a"),
        ("virtual", "Bucket", "a", "", "/Bucket/a"),
    ],
)
async def test_addressing(addressing: str, bucket: str | None, raw_key: str, host: str, path: str) -> None:
    """The bucket stands in the path or before the host, never in both; before the host capitals would be lost, and with
    them which bucket it is."""
    async with conversation(addressing=addressing) as (client, listener):
        raw = await exchanged(client, listener, UpstreamRequest("GET", bucket, raw_key, "", ()))
        assert raw.startswith(f"GET {path} HTTP/1.1\r\nhost: {host}{listener.url[7:]}\r\n".encode())


@pytest.mark.parametrize(("bucket", "raw_key", "path"), [("b", "", "/b/"), ("b", "k", "/b/k"), (None, "", "/")])
async def test_a_preflight_of_a_bucket_goes_with_its_slash(bucket: str | None, raw_key: str, path: str) -> None:
    """The embedded store answers it only so."""
    async with conversation() as (client, listener):
        raw = await exchanged(client, listener, UpstreamRequest("OPTIONS", bucket, raw_key, "list-type=2", ()))
        assert raw.startswith(f"OPTIONS {path}?list-type=2 HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("body", [b"", b"body"])
async def test_signature_verifies(body: bytes) -> None:
    """What is sent bears a signature over all of it, with the session token and the hash that was given."""
    request = UpstreamRequest("PUT", "bucket", "a%20b", "x=1&a", (("x-amz-meta-a", "ä \udcff"),))
    async with conversation(credentials=CREDENTIALS, now=lambda: 1_700_000_000.5) as (client, listener):
        raw = await exchanged(client, listener, request, body)
    lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
    headers = Headers.of_raw((n, v) for n, _, v in (line.partition(b": ") for line in lines[1:]))
    head = parse_head("PUT", lines[0].split(b" ")[1].decode(), headers)
    claim = parse_claim(head)
    assert claim is not None
    verify(head, claim, CREDENTIALS, 1_700_000_000.5)
    assert headers.get("x-amz-security-token") == "token"
    assert headers.get("x-amz-content-sha256") == ("UNSIGNED-PAYLOAD" if body else EMPTY_SHA256)
    assert {"host", "x-amz-meta-a", "x-amz-date"} <= set(claim.signed_headers)


@pytest.mark.parametrize(
    "request_",
    [
        UpstreamRequest("PUT", "bucket", "a b", "", ()),
        UpstreamRequest("PUT", "bucket", "a\r\nx: y", "", ()),
        UpstreamRequest("PUT", "bucket", "a\0", "", ()),
        UpstreamRequest("PUT", "bucket", "a?acl", "", ()),
        UpstreamRequest("PUT", "bucket", "a", "x HTTP/1.1\r\nx:", ()),
        UpstreamRequest("PUT", "bucket", "a", "x\n", ()),
        UpstreamRequest("PUT x", "bucket", "a", "", ()),
        UpstreamRequest("PUT", "bucket/other", "a", "", ()),
        UpstreamRequest("PUT", "..", "a", "", ()),
        UpstreamRequest("PUT", "b%2fc", "a", "", ()),
        UpstreamRequest("PUT", "", "a", "", ()),
        UpstreamRequest("PUT", None, "a", "", ()),
        UpstreamRequest("PUT", "bucket", "a", "", (("x-a", "b\r\nc: d"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("x-a", "b\n"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("x-a", "b\r"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("x-a", "b\0c"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("x-a: b\r\nx-c", "d"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("x a", "b"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("", "b"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("content-length", "5"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("Content-Length", "5"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("transfer-encoding", "chunked"),)),
        UpstreamRequest("PUT", "bucket", "a", "", (("host", "other"),)),
    ],
)
async def test_request_splitting_is_refused(request_: UpstreamRequest) -> None:
    """What would arrive as another request, or as two, is an error before anything is sent."""
    async with conversation() as (client, listener):
        with pytest.raises(ValueError):
            await client.send(request_, b"", BOUND_S)
        with pytest.raises(ValueError):
            await client.open(request_, 1)
        assert listener.nobody_waits()


async def test_upstream_that_is_not_there() -> None:
    """No listener, no such name: nothing was sent, and the place in the pool is free again."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://name.invalid:80"):
        client = UpstreamClient(url, region="r", credentials=StaticCredentials(None), max_connections=1)
        for _ in range(2):
            with pytest.raises(UpstreamNotReached, match="no connection"):
                await client.send(PUT, b"body", BOUND_S)
        await client.close()


async def test_tls() -> None:
    """Over TLS all is the same; an upstream whose certificate does not verify, or that speaks none, gets nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                got.append(head)
                if b"content-length: 4\r\n" in head:
                    got.append(await reader.readexactly(4))
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    client = UpstreamClient(url, region="r", credentials=StaticCredentials(None), tls=lambda: trusting)
    for _ in range(3):
        assert (await client.send(PUT, b"body", BOUND_S)).status == 200
        assert (await client.read(GET)).status == 200
    assert len(got) == 9
    exchange = await client.open(PUT, 4)
    await exchange.write(b"bod")
    exchange.abort()
    await client.close()
    wary = UpstreamClient(url, region="r", credentials=StaticCredentials(None))
    with pytest.raises(UpstreamNotReached, match="no authority that is known here vouches"):
        await wary.send(PUT, b"body", BOUND_S)
    await wary.close()
    server.close()


async def test_connecting_is_bounded() -> None:
    """An upstream that accepts and never shakes hands is not reached, in bounded time."""
    listener = Listener()
    client = UpstreamClient(
        listener.url.replace("http:", "https:"),
        region="r",
        credentials=StaticCredentials(None),
        connect_timeout_s=0.1,
    )
    with pytest.raises(UpstreamNotReached, match=r"not within 0\.1 s"):
        await client.send(PUT, b"body", BOUND_S)
    await client.close()
    listener.close()


async def test_pool_serves_in_order_of_asking() -> None:
    """With one connection, requests go one after another over it, first come first served."""
    async with conversation(max_connections=1) as (client, listener):
        peer = await used_once(client, listener)
        sendings = [asyncio.ensure_future(client.send(PUT, b"%d" % i, BOUND_S)) for i in range(5)]
        for i in range(5):
            assert (await peer.request()).endswith(b"\r\n\r\n%d" % i)
            await peer.send(OK)
        assert [(await s).status for s in sendings] == [200] * 5
        assert listener.nobody_waits()


async def test_waiting_for_a_connection_is_bounded() -> None:
    """Who gets no connection in time has sent nothing; those who still wait are served."""
    async with conversation(max_connections=1, connect_timeout_s=0.1) as (client, listener):
        first = asyncio.ensure_future(client.send(PUT, b"1", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        with pytest.raises(UpstreamNotReached, match="none of 1 connections"):
            await client.send(PUT, b"2", BOUND_S)
        third = asyncio.ensure_future(client.send(PUT, b"3", BOUND_S))
        await peer.send(OK)
        assert (await peer.request()).endswith(b"3")
        await peer.send(OK)
        await asyncio.gather(first, third)


async def test_place_of_a_broken_connection_goes_to_who_waits() -> None:
    """When a connection breaks, the first in the queue may open another."""
    async with conversation(max_connections=1) as (client, listener):
        first = asyncio.ensure_future(client.send(PUT, b"1", 0.05))
        peer = await listener.accept()
        await peer.request()
        second = asyncio.ensure_future(client.send(PUT, b"2", BOUND_S))
        other = await listener.accept()
        assert (await other.request()).endswith(b"2")
        await other.send(OK)
        assert (await second).status == 200
        with pytest.raises(Exception, match="no answer"):
            await first


async def test_cancelled_waiter_blocks_nobody() -> None:
    """Who is cancelled in the queue leaves its turn to the next."""
    async with conversation(max_connections=1) as (client, listener):
        first = asyncio.ensure_future(client.send(PUT, b"1", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        second = asyncio.ensure_future(client.send(PUT, b"2", BOUND_S))
        third = asyncio.ensure_future(client.send(PUT, b"3", BOUND_S))
        await asyncio.sleep(0)
        second.cancel()
        await peer.send(OK)
        assert (await peer.request()).endswith(b"3")
        await peer.send(OK)
        assert [(await s).status for s in (first, third)] == [200, 200]


async def test_connections_are_bounded_and_the_last_used_goes_first() -> None:
    """No more connections than allowed; of two idle ones the one last used carries the next request."""
    async with conversation(max_connections=2) as (client, listener):
        sendings, peers = [], list[Peer]()
        for i in range(2):
            sendings.append(asyncio.ensure_future(client.send(PUT, b"%d" % i, BOUND_S)))
            peers.append(await listener.accept())
            await peers[i].request()
        for i in (1, 0):
            await peers[i].send(OK)
            await sendings[i]
        third = asyncio.ensure_future(client.send(PUT, b"third", BOUND_S))
        assert (await peers[0].request()).endswith(b"third")
        await peers[0].send(OK)
        await third
        assert listener.nobody_waits()


async def test_idle_connections_are_closed() -> None:
    """A connection idle for longer than allowed is closed, also when no further request comes."""
    async with conversation(idle_s=0.05) as (client, listener):
        peer = await used_once(client, listener)
        assert await peer.end() == "fin"


async def test_close_ends_everything() -> None:
    """Closing resets what is in flight, closes what is idle, and refuses what comes later or waits."""
    async with conversation(max_connections=1) as (client, listener):
        first = asyncio.ensure_future(client.send(PUT, b"1", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        waiting = asyncio.ensure_future(client.send(PUT, b"2", BOUND_S))
        await asyncio.sleep(0)
        await client.close()
        assert await peer.end() == "reset"
        for sending in (waiting, client.send(PUT, b"3", BOUND_S)):
            with pytest.raises(UpstreamNotReached):
                await sending
        with pytest.raises(Exception, match="pool is closed"):
            await first
        assert listener.nobody_waits()


async def test_read_makes_room_for_its_second_try() -> None:
    """The second try of a read gets a new connection even where idle ones fill the pool."""
    async with conversation(max_connections=2) as (client, listener):
        first = asyncio.ensure_future(client.send(PUT, b"1", BOUND_S))
        other = await listener.accept()
        await other.request()
        peer = await used_once(client, listener)
        reading = asyncio.ensure_future(client.read(GET))
        await peer.request()
        await other.send(OK)
        await first
        peer.reset()
        new = await listener.accept()
        await new.request()
        await new.send(OK)
        assert (await reading).status == 200


async def test_cancelled_while_connecting_frees_the_place() -> None:
    """Who is cancelled before its connection is open leaves room for another."""
    listener = Listener()
    client = UpstreamClient(
        listener.url.replace("http:", "https:"),
        region="r",
        credentials=StaticCredentials(None),
        connect_timeout_s=BOUND_S,
        max_connections=1,
    )
    for _ in range(2):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await peer.end() in ("fin", "reset")
    await client.close()
    listener.close()


async def test_granted_connection_of_a_cancelled_waiter_goes_to_the_next() -> None:
    """A waiter cancelled in the very turn in which it was granted the connection hands it on."""
    async with conversation(max_connections=1) as (client, _):
        pool = client._pool
        held = await pool.acquire()
        second = asyncio.ensure_future(pool.acquire())
        third = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        pool.released(held)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await asyncio.wait_for(third, BOUND_S) is held
        fourth = asyncio.ensure_future(pool.acquire())
        fifth = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        held.reset("broken")
        fourth.cancel()
        assert (await asyncio.wait_for(fifth, BOUND_S)) is not held
        with pytest.raises(asyncio.CancelledError):
            await fourth


async def test_connection_that_dies_while_being_handed_over_is_replaced() -> None:
    """Whoever is granted a connection that breaks before its turn gets another one."""
    async with conversation(max_connections=1) as (client, _):
        held = await client._pool.acquire()
        waiting = asyncio.ensure_future(client._pool.acquire())
        await asyncio.sleep(0)
        client._pool.released(held)
        held.reset("broken")
        assert await asyncio.wait_for(waiting, BOUND_S) is not held
