"""The connection against upstreams that misbehave: the right failure each time, and never a second write."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.exchange import READ_BUFFER_BYTES, Exchange, Response
from tests.upstream.peer import BOUND_S, GET, HEAD, OK, PUT, Peer, conversation, used_once

ON_BOTH_LOOPS = True

MIB = 1 << 20


async def test_idle_connection_closed_by_upstream_is_not_used() -> None:
    """A pooled connection whose end has reached the kernel, but not yet the event loop, carries no request."""
    async with conversation() as (client, listener):
        (await used_once(client, listener)).close()
        sending = asyncio.ensure_future(client.send(PUT, b"second", BOUND_S))
        peer = await listener.accept()
        assert (await peer.request()).endswith(b"second")
        await peer.send(OK)
        assert (await sending).status == 200
        assert listener.nobody_waits()


async def test_idle_connection_with_unasked_bytes_is_dropped() -> None:
    """What an upstream says unasked is never taken for the answer to the next request."""
    async with conversation() as (client, listener):
        first = await used_once(client, listener)
        await first.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert await first.end() in ("fin", "reset")
        sending = asyncio.ensure_future(client.send(PUT, b"second", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        await peer.send(OK.replace(b"200 OK", b"201 Created"))
        assert (await sending).status == 201


@pytest.mark.parametrize("reset", [True, False])
async def test_write_on_dead_pooled_connection_is_lost(reset: bool) -> None:
    """A write whose bytes went out on a connection that then broke is in doubt, and is not sent again."""
    async with conversation() as (client, listener):
        peer = await used_once(client, listener)
        sending = asyncio.ensure_future(client.send(PUT, b"second", BOUND_S))
        await peer.request()
        peer.reset() if reset else peer.close()
        with pytest.raises(UpstreamLost):
            await sending
        assert listener.nobody_waits()


async def test_read_on_dead_pooled_connection_is_tried_once_more() -> None:
    """A read goes to a new connection when the pooled one died unanswered, and only once."""
    async with conversation() as (client, listener):
        peer = await used_once(client, listener)
        reading = asyncio.ensure_future(client.read(GET))
        first = await peer.request()
        peer.reset()
        second_peer = await listener.accept()
        assert await second_peer.request() == first
        second_peer.reset()
        with pytest.raises(UpstreamLost):
            await reading
        assert listener.nobody_waits()


async def test_read_on_a_new_connection_is_not_tried_again() -> None:
    """A read that a new connection lost is lost: the upstream itself fails, not the pool's memory of it."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        peer.reset()
        with pytest.raises(UpstreamLost):
            await reading
        assert listener.nobody_waits()


async def test_read_with_answer_begun_is_not_tried_again() -> None:
    """A read that got a single byte of its answer is lost with its connection."""
    async with conversation() as (client, listener):
        peer = await used_once(client, listener)
        reading = asyncio.ensure_future(client.read(GET))
        await peer.request()
        await peer.send(b"H")
        peer.close()
        with pytest.raises(UpstreamLost):
            await reading
        assert listener.nobody_waits()


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


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01\x02 not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n c\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\x01c\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\x00c\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\rc\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nxxx",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 65536 + b"\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 11000 + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 400_000,
    ],
    ids=["garbage", "fold", "control", "nul", "cr", "both", "lengths", "upgrade", "64k", "many", "endless"],
)
async def test_malformed_answer_is_lost(answer: bytes) -> None:
    """An answer that breaks HTTP or the bound on heads settles nothing, and the connection is not used again."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        with pytest.raises(UpstreamLost, match=r"malformed|too long"):
            await asyncio.gather(sending, _send_what_is_taken(peer, answer))
        assert await peer.end() == "reset"
        assert listener.nobody_waits()


async def _send_what_is_taken(peer: Peer, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await peer.send(data)


async def _write_on(exchange: Exchange, data: bytes) -> None:
    while True:
        await exchange.write(data)
        await asyncio.sleep(0)


async def _read_on(response: Response, got: bytearray) -> None:
    async for piece in response.chunks():
        got += piece


async def test_long_head_within_the_bound_arrives() -> None:
    """Heads much longer than S3's own are taken, with repeated fields in order and bytes that are not UTF-8."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        await peer.send(
            b"HTTP/1.1 200 OK\r\nX-Long: "
            + b"x" * 30000
            + b"\r\nB: 2 \r\nA:\r\nB: \xff\xc3\xa4\r\ncontent-length: 0\r\n\r\n"
        )
        response = await sending
        assert [n for n, _ in response.headers] == ["x-long", "b", "a", "b", "content-length"]
        assert [v for n, v in response.headers if n == "b"] == ["2", "\udcffä"]
        assert response.header("b") == "2"
        assert response.header("c") is None


async def test_interim_answers_are_skipped() -> None:
    """1xx answers, however many and however cut, are not the answer."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        for piece in (b"HTTP/1.1 100 Cont", b"inue\r\n\r\nHTTP/1.1 102 Processing\r\na: b\r\n\r\n" + OK):
            await peer.send(piece)
        assert (await sending).status == 200
        assert (await sending).headers == [("content-length", "0")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhalf",
    ],
    ids=["length", "chunked", "other"],
)
async def test_truncated_body_is_lost(answer: bytes) -> None:
    """A body that ends early gives what came, then the failure: never a short body for a whole one."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(answer)
        response = await reading
        peer.finish()
        got = bytearray()
        with pytest.raises(UpstreamLost):
            await _read_on(response, got)
        assert got == b"half"
        with pytest.raises(UpstreamLost):
            await response.read(100)


async def test_body_until_close() -> None:
    """A body without length ends with the connection's orderly end."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nwhole")
        response = await reading
        peer.finish()
        assert await response.read(100) == b"whole"


async def test_body_until_close_broken_by_reset_is_lost() -> None:
    """A reset is no end of a body without length."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nwhole")
        response = await reading
        peer.reset()
        with pytest.raises(UpstreamLost):
            await response.read(100)


async def test_slow_drip_is_bounded() -> None:
    """An answer that comes byte by byte is lost when its time is over, in its head as in its body."""
    async with conversation() as (client, listener):
        for start in (b"HTTP/1.1 200 OK\r\na: ", b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"):
            sending = asyncio.ensure_future(client.send(PUT, b"body", 0.2))
            peer = await listener.accept()
            await peer.request()
            await peer.send(start)

            async def drip(peer: Peer = peer) -> None:
                while True:
                    await peer.send(b"x")
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip())
            with pytest.raises(UpstreamLost):
                await (await sending).read(MIB)
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(dripping, BOUND_S)


async def test_silent_body_is_lost() -> None:
    """A body that falls silent fails its reader after the silence time-out, with a reset."""
    async with conversation(silence_timeout_s=0.1) as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        response = await reading
        with pytest.raises(UpstreamLost, match="fell silent"):
            await _read_on(response, bytearray())
        assert await peer.end() == "reset"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhimore",
    ],
    ids=["close", "http10", "stray", "close-stray"],
)
async def test_connection_that_must_not_be_reused(answer: bytes) -> None:
    """A connection that the upstream will close, or on which more came than the answer, carries no other request."""
    async with conversation() as (client, listener):
        sending = asyncio.ensure_future(client.send(PUT, b"body", BOUND_S))
        peer = await listener.accept()
        await peer.request()
        await peer.send(answer)
        assert await (await sending).read(10) == b"hi"
        assert await peer.end() in ("fin", "reset")


async def test_connection_is_reused_after_every_kind_of_answer() -> None:
    """HEAD, 204, 304, lengths and chunks each end where they should, so that one connection carries them all."""
    async with conversation() as (client, listener):
        peer = await used_once(client, listener)
        for request, answer, body in (
            (HEAD, b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", b""),
            (HEAD, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", b""),
            (GET, b"HTTP/1.1 304 Not Modified\r\ncontent-length: 100\r\n\r\n", b""),
            (GET, b"HTTP/1.1 204 No Content\r\n\r\n", b""),
            (
                GET,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n1;x=y\r\n!\r\n0\r\na: b\r\n\r\n",
                b"hi!",
            ),
            (GET, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        ):
            reading = asyncio.ensure_future(client.read(request))
            await peer.request()
            await peer.send(answer)
            response = await reading
            assert await response.read(100) == body
            response.close()
        assert listener.nobody_waits()


async def test_head_with_a_body_is_not_reused() -> None:
    """An upstream that sends a body after HEAD does not put it before the next answer."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(HEAD))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        assert await (await reading).read(10) == b""
        assert await peer.end() in ("fin", "reset")


async def test_reader_that_waits_holds_the_upstream_back() -> None:
    """Of a large body no more than the buffer is taken in ahead of its reader, and all of it arrives."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        size = 32 * MIB
        sending = asyncio.ensure_future(
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
        )
        response = await reading
        got = 0
        async for piece in response.chunks():
            got += len(piece)
            assert response.buffered <= 2 * READ_BUFFER_BYTES
            if got < 4 * MIB:
                for _ in range(10):
                    await asyncio.sleep(0)
        assert got == size
        await sending
        again = asyncio.ensure_future(client.read(GET))
        await peer.request()
        await peer.send(OK)
        assert (await again).status == 200


async def test_body_over_the_limit_is_lost() -> None:
    """A body longer than its reader allows is cut off by a reset, not gathered."""
    async with conversation() as (client, listener):
        reading = asyncio.ensure_future(client.read(GET))
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
        with pytest.raises(UpstreamLost, match="longer than 1000"):
            await (await reading).read(1000)
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


async def test_finished_exchange_cannot_hurt_the_next() -> None:
    """abort and close of an exchange that is over leave the connection to the one that has it now."""
    async with conversation() as (client, listener):
        old = await client.open(PUT, 1)
        old.commit()
        await old.write(b"x")
        peer = await listener.accept()
        await peer.request()
        await peer.send(OK)
        old_answer = await old.response(BOUND_S)
        sending = asyncio.ensure_future(client.send(PUT, b"next", BOUND_S))
        await peer.request()
        old.abort()
        old_answer.close()
        await peer.send(OK)
        assert (await sending).status == 200


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
