"""A connection's states, moment by moment in virtual time: pauses, time-outs, what waits in line."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.http import READ_BUFFER_BYTES
from gateway.server.listener import Limits
from tests.fuzz.memory_wire import NOW, World, quiet
from tests.server.rig import signed
from tests.server.stories import GET, PUT, SOON_S, TOKEN, Held, play

# --- clients that do not read


def test_a_slow_reader_of_the_last_answer_has_as_long_as_of_any() -> None:
    """Before the end is near, what it has not taken is waited for as between two answers."""

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1)
        client.data_received(signed("GET", "/b/k", [("connection", "close")], now=NOW))
        await asyncio.sleep(50)
        assert not wire.closing
        wire.take()
        await quiet()
        assert wire.closed

    play(story)


def test_an_answer_to_nobody_is_not_fetched() -> None:
    """When its client has gone, an object is asked for no further."""
    upstream = Held(pieces=1000)

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1 << 40)
        client.data_received(GET)
        while upstream.given < 3:
            await asyncio.sleep(0)
        wire.abort()
        await quiet()
        assert upstream.given < 10
        assert world.outcome.answered == [("GET", 200, "ClientGone")]

    play(story, upstream)


def test_a_client_that_goes_while_it_is_waited_for_frees_the_answer() -> None:
    """Who waits until the client reads on is woken by its end."""
    upstream = Held(pieces=1000)

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1)
        client.data_received(GET)
        await quiet()
        assert upstream.given == 1
        wire.abort()
        await quiet()
        assert upstream.given <= 2
        assert world.gateway.handler.running == 0

    play(story, upstream)


@pytest.mark.parametrize("pieces", [10, 0])
def test_a_client_that_stops_reading_is_cut_in_time(pieces: int) -> None:
    """No longer than `idle_timeout_s` without any progress, be it one answer or several."""
    upstream = Held(pieces)
    upstream.release.set()

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1)
        client.data_received(GET * 10)
        for _ in range(3):
            await asyncio.sleep(59)
            assert not wire.closed
            wire.take()
        await asyncio.sleep(61)
        assert wire.closed

    play(story, upstream)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_next_answer_waits_until_the_last_has_been_taken(at_once: bool) -> None:
    """A client that does not read is not answered further, whether it asks all at once or one by one."""

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1)
        if at_once:
            client.data_received(GET * 5)
        else:
            for _ in range(5):
                client.data_received(GET)
                await quiet()
        for answered in range(1, 6):
            await quiet()
            assert wire.sent.count(b"HTTP/1.1 404") == answered
            wire.take()
        await asyncio.sleep(100)

    play(story)


# --- heads that come slowly


def test_the_time_of_a_head_and_of_silence() -> None:
    """A head has `header_timeout_s` from its first byte, whether the connection is new or used; silence has
    `keepalive_timeout_s`; while a request is answered, nothing runs out."""
    upstream = Held()
    limits = Limits(header_timeout_s=10, keepalive_timeout_s=100)

    async def story(world: World) -> None:
        fresh, slow, used, behind = (world.connect() for _ in range(4))
        slow[0].data_received(GET[:20])
        used[0].data_received(GET)
        behind[0].data_received(GET + GET[:20])
        await asyncio.sleep(10 + SOON_S)
        assert [wire.closed for _, wire in (fresh, slow, used, behind)] == [False, True, False, False]
        await asyncio.sleep(200)
        assert [wire.closed for _, wire in (fresh, used, behind)] == [True, False, False]
        upstream.release.set()
        await asyncio.sleep(9.9)
        assert [wire.closed for _, wire in (used, behind)] == [False, False]
        await asyncio.sleep(0.1 + SOON_S)
        assert [wire.closed for _, wire in (used, behind)] == [False, True]
        used[0].data_received(GET[:20])
        await asyncio.sleep(10 + SOON_S)
        assert used[1].closed

    play(story, upstream, limits)


def test_a_long_head_behind_a_long_trailer() -> None:
    """What a body's end has brought is not counted against the next head, however both are cut."""
    framing = [TOKEN, ("transfer-encoding", "chunked"), ("x-amz-decoded-content-length", "1")]
    trailer = b"".join(b"t%03d: %b\r\n" % (n, b"x" * 100) for n in range(110)) + b"\r\n"
    head = signed("GET", "/b/k", [(f"x-{n:03d}", "x" * 100) for n in range(60)], now=NOW)

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(signed("PUT", "/b/k", framing, payload="UNSIGNED-PAYLOAD", now=NOW) + b"1\r\nx\r\n0\r\n")
        for piece in (trailer, head[:-1], head[-1:]):
            client.data_received(piece)
        await asyncio.sleep(100)
        assert wire.sent.count(b"HTTP/1.1 200 ") == 2

    play(story, limits=Limits(max_header_bytes=8192))


# --- reading held back


@pytest.mark.parametrize("count", [16, 40])
def test_a_pipeline_is_read_on_as_it_is_answered(count: int) -> None:
    """What has been received and not yet parsed is parsed when there is room, without another byte."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(GET * (count + 1))
        await quiet()
        assert not wire.is_reading()
        upstream.release.set()
        await quiet()
        assert wire.is_reading()
        assert wire.sent.count(b"HTTP/1.1 404") == count + 1
        await asyncio.sleep(100)

    play(story, upstream)


def test_a_body_that_waits_in_line_is_not_taken_in_without_end() -> None:
    """Behind a request that is being answered no more of an upload is read than READ_BUFFER_BYTES and what had come."""
    upstream = Held()
    size = 1_000_000

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(GET)
        await quiet()
        client.data_received(signed("PUT", "/b/k", [TOKEN], b"x" * size, payload="UNSIGNED-PAYLOAD", now=NOW))
        assert wire.is_reading()
        client.data_received(b"x" * (READ_BUFFER_BYTES + 1))
        assert not wire.is_reading()
        upstream.release.set()
        await quiet()
        assert wire.is_reading()
        client.data_received(b"x" * (size - READ_BUFFER_BYTES - 1))
        await quiet()
        assert wire.sent.count(b"HTTP/1.1 200 ") == 1
        await asyncio.sleep(100)

    play(story, upstream)


def test_a_long_pipeline_keeps_nobody_waiting() -> None:
    """Between the requests of one client others have their turn."""

    async def story(world: World) -> None:
        many, _ = world.connect(takes=1 << 30)
        one, wire = world.connect()
        many.data_received(GET * 600)
        one.data_received(GET)
        while not wire.sent:
            await asyncio.sleep(0)
        assert len(world.outcome.answered) < 100
        await asyncio.sleep(100)
        assert len(world.outcome.answered) == 601

    play(story)


def test_bytes_that_come_while_more_waits_to_be_parsed_stand_behind_it() -> None:
    """A transport may give what it had read when it was told to pause."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect()
        whole = GET * 60 + PUT
        client.data_received(whole[:20_000])
        client.data_received(whole[20_000:])
        upstream.release.set()
        await quiet()
        assert wire.sent.count(b"HTTP/1.1 404") == 60
        assert wire.sent.count(b"HTTP/1.1 200") == 1
        await asyncio.sleep(100)

    play(story, upstream)


# --- how many there may be


def test_a_handshake_that_outlasts_the_listener_ends_there() -> None:
    """A connection that is made while the listener shuts down is not taken up."""

    async def story(world: World) -> None:
        await world.listener.shutdown(1)
        _, wire = world.connect()
        await quiet()
        assert wire.closed

    play(story)


def test_of_those_that_wait_the_longest_wait_ends_and_no_answer() -> None:
    """Connections that are being answered, or have just been, stay."""
    upstream = Held()

    async def story(world: World) -> None:
        busy, first, second = (world.connect() for _ in range(3))
        busy[0].data_received(GET)
        await quiet()
        first[0].data_received(b"GET ")
        await quiet()
        wires = [world.connect()[1] for _ in range(2)]
        await quiet()
        assert [wire.closed for wire in (busy[1], first[1], second[1], *wires)] == [False, True, True, False, False]
        assert len(world.listener.connections) == 3
        upstream.release.set()
        await asyncio.sleep(100)

    play(story, upstream, Limits(max_connections=3))
