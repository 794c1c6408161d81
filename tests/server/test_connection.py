"""A connection's states, moment by moment in virtual time: ends and stops between two steps, pauses, time-outs, TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.server.connection import LINGER_AT_END_S, LINGER_S
from gateway.server.http import READ_BUFFER_BYTES
from gateway.server.listener import SWEEP_S, Limits
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.fuzz.memory_wire import NOW, World, in_virtual_time, quiet
from tests.server.rig import BUCKET, signed

TOKEN = ("x-fencing-token", "3")
GET = signed("GET", "/b/k", now=NOW)
PUT = signed("PUT", "/b/k", [TOKEN], b"x", now=NOW) + b"x"
SOON_S = 2 * SWEEP_S
Story = Callable[[World], Awaitable[None]]


class Held(MemoryUpstream):
    """Reads wait for `release`; an object of `pieces` pieces is given piece by piece, and counted."""

    def __init__(self, pieces: int = 0) -> None:
        super().__init__(BUCKET)
        self.release = asyncio.Event()
        self.pieces = pieces
        self.given = 0

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if not self.pieces:
            await self.release.wait()
            return await super().read(request, body)
        store = self

        class Response(MemoryResponse):
            async def chunks(self) -> AsyncIterator[bytes]:
                for _ in range(store.pieces):
                    store.given += 1
                    await asyncio.sleep(0)
                    yield b"x" * 100_000

        return Response(200, [("content-length", str(100_000 * self.pieces))], b"")


def play(story: Story, upstream: MemoryUpstream | None = None, limits: Limits | None = None) -> None:
    """Tell the story to a new world; afterwards nothing is left of it."""

    async def whole() -> None:
        world = World(upstream, limits)
        await world.start()
        await story(world)
        await world.look()

    in_virtual_time(whole())


# --- stops and ends between two steps


@pytest.mark.parametrize("turns", range(8))
def test_a_stop_behind_a_request_waits_for_its_answer(turns: int) -> None:
    """Whichever step of answering it comes behind, from its arrival on; and then the end comes at once."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(PUT)
        for _ in range(turns):
            await asyncio.sleep(0)
        before = asyncio.get_running_loop().time()
        await world.listener.shutdown(10)
        assert wire.sent.startswith(b"HTTP/1.1 200 ")
        assert wire.closed
        assert asyncio.get_running_loop().time() == before

    play(story)


def test_what_comes_after_a_stop_has_begun_is_not_taken() -> None:
    """A connection that is to end answers what it has taken, and takes no more."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(GET)
        await quiet()
        stopping = asyncio.create_task(world.listener.shutdown(10))
        await quiet()
        client.data_received(GET)
        upstream.release.set()
        await stopping
        assert wire.closed
        assert wire.sent.count(b"HTTP/1.1 ") == 1

    play(story, upstream)


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_ends_behind_its_request_is_answered(turns: int, half_closes: bool) -> None:
    """A half-closed connection stays open as long as there is something to answer, and no longer, whichever step of
    answering the end comes behind; over TLS what has been answered by then still goes out."""

    async def story(world: World) -> None:
        client, wire = world.connect(half_closes=half_closes)
        client.data_received(PUT)
        for _ in range(turns):
            await asyncio.sleep(0)
        answered = bool(world.outcome.answered)
        if not client.eof_received():
            assert answered or not half_closes
            wire.close()
        await quiet()
        if not half_closes and not answered:
            return
        assert wire.sent.startswith(b"HTTP/1.1 200 ")
        assert wire.closed

    play(story)


@pytest.mark.parametrize("sent", [b"", GET[:20], GET])
def test_a_silent_end_is_the_end(sent: bytes) -> None:
    """Before a request, in its head, and after the answer: nothing keeps the connection open."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        if sent:
            client.data_received(sent)
        await quiet()
        assert not client.eof_received()
        wire.close()
        await quiet()
        assert wire.closed

    play(story)


def test_over_tls_an_end_is_the_end_of_both_ways() -> None:
    """TLS knows no half-closed connection (asyncio): the transport closes, whatever is being answered."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect(half_closes=False)
        client.data_received(GET)
        await quiet()
        assert not client.eof_received()
        wire.close()
        upstream.release.set()
        await quiet()
        assert wire.closed
        assert not wire.sent

    play(story, upstream)


# --- the last answer


@pytest.mark.parametrize("half_closes", [True, False])
def test_behind_bytes_that_are_no_http_the_client_has_time_to_read(half_closes: bool) -> None:
    """The gateway ends its own half at once, where it can, takes in what comes, and closes after a while."""

    async def story(world: World) -> None:
        client, wire = world.connect(half_closes=half_closes)
        client.data_received(b"no HTTP\r\n\r\n")
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        assert (wire.ended, wire.closing) == (half_closes, False)
        client.data_received(GET * 100)
        await asyncio.sleep(LINGER_AT_END_S - 0.1)
        assert not wire.closing
        await asyncio.sleep(0.2)
        assert wire.closed
        assert wire.sent.count(b"HTTP/1.1") == 1

    play(story)


@pytest.mark.parametrize("half_closes", [True, False])
def test_a_client_that_closes_behind_its_refusal_is_let_go_at_once(half_closes: bool) -> None:
    """Nothing is waited for that cannot come."""

    async def story(world: World) -> None:
        client, wire = world.connect(half_closes=half_closes)
        client.data_received(b"no HTTP\r\n\r\n")
        await quiet()
        if not client.eof_received():
            wire.close()
        await quiet()
        assert wire.closed

    play(story)


def test_a_refused_body_is_taken_in_for_a_while() -> None:
    """A client that goes on sending a refused body is borne with for LINGER_S; what it sends is not kept."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(signed("PUT", "/b/k", [("content-length", str(1 << 40))], payload="bad", now=NOW))
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        for _ in range(int(LINGER_S)):
            assert not wire.closing
            for _ in range(10):
                assert wire.is_reading()
                client.data_received(b"x" * 200_000)
            await asyncio.sleep(1)
        await asyncio.sleep(LINGER_AT_END_S + 0.1)
        assert wire.closed

    play(story)


def test_what_waits_in_line_behind_the_last_answer_is_dropped() -> None:
    """A full line of requests behind a refused upload keeps nothing from being taken in."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        stale = signed("PUT", "/b/k", [TOKEN], b"x", payload="0" * 64, now=NOW) + b"x"
        forged = stale.replace(b"Signature=", b"Signature=0")
        client.data_received(forged + GET * 100)
        assert not wire.is_reading()
        await quiet()
        assert wire.is_reading()
        assert wire.sent.count(b"HTTP/1.1 ") == 1
        assert not client.eof_received() or not wire.closed
        await quiet()
        assert wire.closed

    play(story)


def test_a_client_that_never_takes_its_last_answer_is_cut() -> None:
    """What the socket still holds when the connection is to be closed has a bound in time."""

    async def story(world: World) -> None:
        client, wire = world.connect(takes=1)
        wire.pauses_beyond = 1 << 16
        client.data_received(signed("GET", "/b/k", [("connection", "close")], now=NOW))
        await quiet()
        assert wire.closing
        await asyncio.sleep(LINGER_S - 1)
        assert not wire.closed
        await asyncio.sleep(1 + SOON_S)
        assert wire.closed

    play(story)


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
