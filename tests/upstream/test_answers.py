"""Answers cut short, malformed, slow or too long: the right failure each time, and never a part for the whole."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.upstream.base import UpstreamLost
from gateway.upstream.exchange import READ_BUFFER_BYTES, Response
from tests.upstream.peer import BOUND_S, GET, OK, PUT, Peer, conversation

ON_BOTH_LOOPS = True

MIB = 1 << 20


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
