"""Stories of one connection, told moment by moment in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from gateway.server.listener import SWEEP_S, Limits
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.fuzz.memory_wire import NOW, World, in_virtual_time
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
