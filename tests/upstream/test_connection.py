"""The connection against upstreams that misbehave: what has reached them and what has not, and how an exchange ends."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.exchange import Exchange
from tests.upstream.peer import BOUND_S, GET, OK, PUT, conversation, used_once

ON_BOTH_LOOPS = True

MIB = 1 << 20


async def _write_on(exchange: Exchange, data: bytes) -> None:
    while True:
        await exchange.write(data)
        await asyncio.sleep(0)


async def test_reset_while_staging_is_not_reached() -> None:
    """A connection that breaks before the commit point has had no effect."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 100)
        peer = await listener.accept()
        await peer.head()
        await exchange.write(b"x" * 50)
        peer.reset()
        with pytest.raises(UpstreamNotReached):
            await _write_on(exchange, b"x")
        assert listener.nobody_waits()


async def test_reset_after_commit_is_lost() -> None:
    """A connection that breaks after the commit point leaves the write in doubt."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 100)
        peer = await listener.accept()
        await exchange.write(b"x" * 99)
        exchange.commit()
        await exchange.write(b"x")
        assert (await peer.request()).endswith(b"x" * 100)
        peer.reset()
        with pytest.raises(UpstreamLost):
            await exchange.response(BOUND_S)
        assert listener.nobody_waits()


@pytest.mark.parametrize("status", [b"403 Forbidden", b"500 Internal Server Error", b"200 OK"])
async def test_early_answer_stops_the_body(status: bytes) -> None:
    """An answer in mid body ends the writing, can be read, and its connection is reset, not used again."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 100)
        peer = await listener.accept()
        await peer.head()
        await exchange.write(b"x" * 50)
        await peer.send(b"HTTP/1.1 " + status + b"\r\ncontent-length: 4\r\n\r\nbody")
        assert await peer.end() == "reset"
        exchange.commit()
        with pytest.raises(UpstreamNotReached, match="answered early"):
            await exchange.write(b"x" * 50)
        response = await exchange.response(BOUND_S)
        assert response.status == int(status[:3])
        assert await response.read(10) == b"body"
        sending = asyncio.ensure_future(client.send(PUT, b"", BOUND_S))
        other = await listener.accept()
        await other.request()
        await other.send(OK)
        assert (await sending).status == 200


async def test_early_answer_wakes_a_writer_that_waits() -> None:
    """An upstream that answers without reading the body does not hang a writer held by back pressure."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 64 * MIB)
        peer = await listener.accept()
        await peer.head()

        writing = asyncio.ensure_future(_write_on(exchange, b"x" * MIB))
        await peer.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 12\r\n\r\nNoSuchBucket")
        with pytest.raises(UpstreamNotReached, match="404"):
            await asyncio.wait_for(writing, BOUND_S)
        response = await exchange.response(BOUND_S)
        assert await response.read(100) == b"NoSuchBucket"


async def test_a_write_whose_answer_will_not_come_is_reset() -> None:
    """R5: where the upstream says that it will send no more, what it has not read of the write is taken back from the
    kernels, which would otherwise deliver it later."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"x" * MIB, BOUND_S))
        peer = await listener.accept()
        await peer.head()
        peer.finish()
        with pytest.raises(UpstreamLost, match="closed the connection"):
            await sending
        assert await peer.end() == "reset"


async def test_a_body_whose_connection_is_gone_at_its_commit_point_is_not_reached() -> None:
    """What was withheld has never been sent, so the write is in no doubt, and holds up no hand-over."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 100)
        peer = await listener.accept()
        await peer.head()
        await exchange.write(b"x" * 50)
        peer.reset()
        while exchange._connection is not None:
            await asyncio.sleep(0)
        exchange.commit()
        with pytest.raises(UpstreamNotReached):
            await exchange.write(b"x" * 50)
        with pytest.raises(UpstreamNotReached):
            await exchange.response(BOUND_S)


async def test_no_answer_is_lost_with_a_reset() -> None:
    """A write without an answer in time is in doubt, and its connection ends with a reset."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", 0.05))
        peer = await listener.accept()
        await peer.request()
        with pytest.raises(UpstreamLost, match=r"within 0\.05 s"):
            await sending
        assert await peer.end() == "reset"
        assert listener.nobody_waits()


async def test_upstream_that_reads_nothing_ends_the_staging() -> None:
    """A writer held by back pressure for the silence time-out fails, and holds a bounded amount in memory."""
    async with conversation(silence_timeout_s=0.2) as (client, listener):
        size = 1 << 40
        exchange = await client.open(PUT, size)
        peer = await listener.accept()
        await peer.head()
        with pytest.raises(UpstreamNotReached, match="takes no more"):
            await _write_on(exchange, b"x" * 65536)
        assert exchange.unsent > size - 32 * MIB
        assert await peer.end() == "reset"


async def test_closing_an_unread_answer_resets() -> None:
    """A reader that has enough ends the connection, twice at will."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        response = await reading
        response.close()
        response.close()
        assert await peer.end() == "reset"
        with pytest.raises(UpstreamLost):
            await response.read(10)


async def test_abort_resets_and_says_so() -> None:
    """An aborted exchange ends by RST, twice at will; it is over before its commit point without effect."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 100)
        peer = await listener.accept()
        await exchange.write(b"x" * 99)
        exchange.abort()
        exchange.abort()
        assert await peer.end() == "reset"
        with pytest.raises(UpstreamNotReached, match="aborted"):
            await exchange.response(BOUND_S)


async def test_abort_wakes_who_waits() -> None:
    """A hand-over that aborts an exchange from another task ends the wait for its answer."""
    async with conversation() as (client, listener):
        exchange = await client.open(PUT, 1)
        exchange.commit()
        await exchange.write(b"x")
        waiting = asyncio.ensure_future(exchange.response(BOUND_S))
        peer = await listener.accept()
        await peer.request()
        exchange.abort()
        with pytest.raises(UpstreamLost, match="aborted"):
            await waiting


async def test_cancelled_wait_resets_and_frees_the_place() -> None:
    """A caller that is cancelled leaves no connection behind, neither open nor counted."""
    async with conversation(max_connections=1) as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await peer.end() == "reset"
        await used_once(client, listener)


async def test_misuse_is_refused() -> None:
    """Bytes beyond the length, a last byte without commit, an answer asked for too early: none reaches the upstream."""
    async with conversation() as (client, listener):
        with pytest.raises(ValueError, match="no staging"):
            await client.open(PUT, 0)
        exchange = await client.open(PUT, 10)
        peer = await listener.accept()
        with pytest.raises(ValueError, match="11 bytes"):
            await exchange.write(b"x" * 11)
        with pytest.raises(ValueError, match="commit"):
            await exchange.write(b"x" * 10)
        await exchange.write(b"x" * 9)
        with pytest.raises(ValueError, match="1 bytes"):
            await exchange.response(BOUND_S)
        exchange.commit()
        await exchange.write(b"y")
        assert (await peer.request()).endswith(b"\r\n\r\nxxxxxxxxxy")


async def test_socket_options() -> None:
    """Every connection bears TCP_USER_TIMEOUT of a third of the settle time-out, and sends small segments at once."""
    async with conversation(settle_timeout_s=30.0) as (client, _):
        connection = await client._pool.acquire()
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
