"""The connection that carries one request after another: never a second write, never another's answer."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.connection import Connection
from tests.test_outgoing import Peer as Transport
from tests.upstream.peer import BOUND_S, GET, HEAD, OK, PUT, conversation, used_once

ON_BOTH_LOOPS = True


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


async def test_what_comes_before_the_request_has_been_sent_is_no_answer_to_it() -> None:
    """It was sent unasked; the connection carries the request no more, nor ever another."""
    async with conversation() as (client, listener):
        first, second = await client._pool.acquire(), await client._pool.acquire()
        exchange = first.start("PUT", b"PUT / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", b"", 0, BOUND_S)
        first.data_received(OK)
        with pytest.raises(UpstreamNotReached, match="unasked"):
            await exchange.response(BOUND_S)
        assert await client._pool.acquire() not in (first, second)
        assert await (await listener.accept()).end() == "reset"


async def test_what_is_unasked_on_a_connection_that_was_just_opened_ends_it() -> None:
    """Also before it has been made ready for its first exchange."""
    async with conversation() as (client, _):
        new = Connection(client._pool)
        new.connection_made(Transport())
        new.data_received(OK)
        assert new.closed


async def test_a_request_is_sent_at_once_where_no_other_exchange_runs() -> None:
    """It need not wait for the loop's turn; where others run, they go out together."""
    async with conversation() as (client, listener):
        pool = client._pool
        one = await pool.acquire()
        assert pool.lends_one
        two = await pool.acquire()
        assert not pool.lends_one
        exchange = one.start("GET", b"GET / HTTP/1.1\r\n\r\n", b"", 0, BOUND_S)
        assert one._outgoing._pieces
        peer = await listener.accept()
        await peer.request()
        await peer.send(OK)
        assert (await exchange.response(BOUND_S)).status == 200
        assert pool.lends_one
        two.start("GET", b"GET / HTTP/1.1\r\n\r\n", b"", 0, BOUND_S)
        assert not two._outgoing._pieces


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
