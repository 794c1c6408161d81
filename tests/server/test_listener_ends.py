"""Ends, moment by moment in virtual time: what a stop waits for and for how long, and what is refused and let go."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.server.connection import LINGER_AT_END_S, Connection
from gateway.server.listener import SWEEP_S, Limits
from tests.fuzz.memory_wire import NOW, World, quiet
from tests.server.rig import running, signed
from tests.server.test_connection import GET, TOKEN, Held, play


def test_a_stop_waits_no_longer_than_it_may_for_all_together() -> None:
    """One request that is never answered and one answer that is never taken cost its time once, not twice."""
    upstream = Held()

    async def story(world: World) -> None:
        stuck, stuck_wire = world.connect()
        reader, unread_wire = world.connect(takes=1)
        unread_wire.pauses_beyond = 1 << 16
        upstream.release.set()
        reader.data_received(signed("GET", "/b/k", [("connection", "close")], now=NOW))
        await quiet()
        assert (unread_wire.closing, unread_wire.closed) == (True, False)
        upstream.release.clear()
        stuck.data_received(GET)
        await quiet()
        began = asyncio.get_running_loop().time()
        await world.listener.shutdown(4)
        assert asyncio.get_running_loop().time() == began + 4
        await quiet()
        assert (stuck_wire.closed, unread_wire.closed) == (True, True)

    play(story, upstream)


def test_a_stop_waits_for_who_still_takes_his_answer() -> None:
    """And ends with the last of it."""

    async def story(world: World) -> None:
        slow, quick = (world.connect(takes=1) for _ in range(2))
        for client, wire in (slow, quick):
            wire.pauses_beyond = 1 << 16
            client.data_received(signed("GET", "/b/k", now=NOW))
        await quiet()
        began = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(world.listener.shutdown(10))
        for after_s, (_, wire) in ((1, quick), (3, slow)):
            await asyncio.sleep(began + after_s - asyncio.get_running_loop().time())
            assert (wire.closed, stopping.done()) == (False, False)
            wire.take()
        await stopping
        assert asyncio.get_running_loop().time() == began + 3

    play(story)


def test_a_request_that_comes_with_the_end_of_a_body_keeps_no_stop() -> None:
    """A stop takes what is being received to its end, and what came with it; the connection then ends at once."""

    async def story(world: World) -> None:
        framing = [TOKEN, ("transfer-encoding", "chunked"), ("x-amz-decoded-content-length", "1")]
        client, wire = world.connect()
        client.data_received(signed("PUT", "/b/k", framing, payload="UNSIGNED-PAYLOAD", now=NOW) + b"1\r\nx\r\n")
        await quiet()
        began = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(world.listener.shutdown(10))
        await quiet()
        client.data_received(b"0\r\n\r\n" + GET)
        await stopping
        assert asyncio.get_running_loop().time() == began
        assert wire.closed
        assert wire.sent.count(b"HTTP/1.1 200 ") == 2

    play(story)


def test_a_stopped_listener_sweeps_no_more() -> None:
    """Its timer, which would keep it, ends with it."""

    async def story(world: World) -> None:
        await asyncio.sleep(SWEEP_S)
        await world.listener.shutdown(1)
        swept = world.listener._sweep
        assert swept is not None
        assert swept.cancelled()
        await asyncio.sleep(2 * SWEEP_S)
        assert world.listener._sweep is swept

    play(story)


def test_what_a_refused_connection_asks_is_taken_in_and_not_parsed() -> None:
    """One answer, 503; a pipeline behind it neither waits in line nor stops the reading."""
    upstream = Held()

    async def story(world: World) -> None:
        for _ in range(8):
            client, _ = world.connect()
            client.data_received(GET)
        await quiet()
        client, wire = world.connect()
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 503 ")
        client.data_received(GET * 100)
        assert wire.is_reading()
        await asyncio.sleep(LINGER_AT_END_S + 0.1)
        assert wire.closed
        assert wire.sent.count(b"HTTP/1.1 ") == 1
        upstream.release.set()
        await asyncio.sleep(100)

    play(story, upstream, Limits(max_connections=8))


def test_bytes_behind_a_last_request_take_no_answer_away() -> None:
    """A client that says it is done, and then sends more, would have its answer lost in a reset: it is borne with."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(signed("GET", "/b/k", [("connection", "close")], now=NOW) + b"more\r\n\r\n")
        await quiet()
        assert wire.sent.count(b"HTTP/1.1 ") == 1
        assert (wire.ended, wire.closing) == (True, False)
        await asyncio.sleep(LINGER_AT_END_S + 0.1)
        assert wire.closed

    play(story)


def test_a_client_that_has_ended_before_its_refusal_is_let_go_at_once() -> None:
    """What comes no more is not waited for."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(b"no HTTP\r\n\r\n")
        assert client.eof_received()
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        assert wire.closed

    play(story)


def test_an_upload_behind_a_refusal_is_taken_in() -> None:
    """Held back while the refusal was being found out, and dropped with it: who goes on sending is heard."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect()
        head = signed("PUT", "/b/k", [TOKEN, ("origin", "https://page.example")], b"x", now=NOW)
        client.data_received(head.replace(b"Signature=", b"Signature=0") + b"x")
        await quiet()
        client.data_received(signed("PUT", "/b/k", [TOKEN], b"x" * 500_000, payload="UNSIGNED-PAYLOAD", now=NOW))
        client.data_received(b"x" * 200_000)
        assert not wire.is_reading()
        upstream.release.set()
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 403 ")
        assert wire.is_reading()
        await asyncio.sleep(LINGER_AT_END_S + 0.1)
        assert wire.closed

    play(story, upstream)


def test_a_refused_body_that_was_held_back_is_not_waited_for() -> None:
    """Who waits for `100 Continue` sends nothing behind a refusal: the connection ends with it."""

    async def story(world: World) -> None:
        client, wire = world.connect()
        head = signed("PUT", "/b/k", [TOKEN, ("expect", "100-continue")], b"x", now=NOW)
        client.data_received(head.replace(b"Signature=", b"Signature=0"))
        await quiet()
        assert wire.sent.startswith(b"HTTP/1.1 40")
        assert wire.closed

    play(story)


@pytest.mark.parametrize("turns", range(12))
def test_a_client_that_goes_while_it_is_read_on_is_left_alone(turns: int) -> None:
    """Of a transport that closes nothing more is asked, whichever step of reading on its end comes behind."""
    upstream = Held()

    async def story(world: World) -> None:
        client, wire = world.connect()
        client.data_received(GET * 40)
        await quiet()
        assert not wire.is_reading()
        upstream.release.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        wire.abort()
        await quiet()
        assert wire.closed

    play(story, upstream)


async def test_a_connection_that_has_ended_leaves_nothing_to_the_collector() -> None:
    """No circle of references keeps it: with thousands of short connections the collector has nothing to do."""
    async with running() as rig:
        gc.collect()
        gc.disable()
        try:
            assert (await rig.put("k", b"body", 1)).status == 200
            async with asyncio.timeout(5):
                while any(isinstance(kept, Connection) for kept in gc.get_objects()):
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()
