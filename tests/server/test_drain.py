"""How long a gateway that is told to stop waits for requests under way, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.server.app import Gateway
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.fuzz.memory_wire import World, in_virtual_time, quiet
from tests.server.rig import BUCKET
from tests.server.stories import PUT

TIMEOUT_S = 25


class Takes(MemoryUpstream):
    """Answers a write after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(BUCKET)
        self.seconds = seconds

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        await asyncio.sleep(self.seconds)
        return await super().send(request, body, timeout_s)


async def stopped(gateway: Gateway) -> float:
    """Stop it; how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await gateway.stop()
    return loop.time() - began


def drained(seconds: float, during: Callable[[Gateway], None] = lambda gateway: None) -> tuple[float, bytes]:
    """How long a gateway takes to stop while the store takes so long for a write, and what its client is told."""

    async def story() -> tuple[float, bytes]:
        world = World(Takes(seconds))
        await world.start()
        world.gateway._connections = world.listener
        connection, transport = world.connect()
        connection.data_received(PUT)
        await quiet()
        stopping = asyncio.create_task(stopped(world.gateway))
        await quiet()
        during(world.gateway)
        return await stopping, bytes(transport.sent)

    return in_virtual_time(story())


def test_what_is_under_way_is_waited_for() -> None:
    """A write that is answered within `drain_timeout_s` is answered, and then the gateway ends, at once."""
    took_s, told = drained(TIMEOUT_S - 1)
    assert told.startswith(b"HTTP/1.1 200 ")
    assert took_s == pytest.approx(TIMEOUT_S - 1, abs=1)


def test_it_is_not_waited_for_any_longer() -> None:
    """What takes longer than `drain_timeout_s` is cut."""
    took_s, told = drained(TIMEOUT_S * 10)
    assert told == b""
    assert took_s == pytest.approx(TIMEOUT_S, abs=2)


def test_who_asks_twice_waits_no_longer() -> None:
    """A second SIGTERM cuts at once."""
    took_s, told = drained(TIMEOUT_S - 1, Gateway.stop_waiting)
    assert told == b""
    assert took_s <= 2
