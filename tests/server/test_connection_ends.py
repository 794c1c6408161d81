"""How a connection ends, moment by moment in virtual time: stops and ends between two steps, the last answer, TLS."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.connection import LINGER_AT_END_S, LINGER_S
from tests.fuzz.memory_wire import NOW, World, quiet
from tests.server.rig import signed
from tests.server.stories import GET, PUT, SOON_S, TOKEN, Held, play

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
