"""The gateway that clients reach: run after run of the real service, with crashes and stops between them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.service.batches import Batches
from tests.checker.history import Fault, Floor
from tests.checker.rules import DATABASE_LOST
from tests.service.rig import Rig, rig
from tests.simulation.chance import RULES, Chance
from tests.simulation.disk import Disk, Store
from tests.simulation.life import Life
from tests.simulation.story import Story
from tests.simulation.upstream import TIMING, ObjectStore, Wire
from tests.virtual_time import VirtualClock

T = TypeVar("T")


class ConnectionLost(Exception):
    """The gateway has gone, or the client has: there is no answer."""


class Gateway:
    """One gateway over all its runs."""

    def __init__(self, chance: Chance, story: Story) -> None:
        self.chance, self.story = chance, story
        self.clock = VirtualClock()
        self.disk = Disk(self.clock.wall)
        self.objects = ObjectStore(story)
        self.died = asyncio.Event()
        self.up = asyncio.Event()
        self.rig: Rig
        self.batches: Batches
        self._life: Life
        self._wire: Wire
        self._requests: dict[asyncio.Task[Any], None] = {}

    async def start(self) -> None:
        """A new run."""
        self.died.clear()
        stream = self.chance.stream("crash")
        mortal = self.chance.happens("crash", "crash", min(1.0, self.chance.weather.crash * 8))
        self._life = life = Life(stream.randrange(1, 120) if mortal else None, self.died.set)
        self._wire = Wire(self.objects, self.chance, life)
        store = Store(self.disk, self.chance, self.story, life)
        for key in sorted(self.disk._fences):
            self.story.add(Floor(self.story.now, key, self.disk.durable(key).floor))
        self.rig = await rig(
            *RULES,
            capabilities=self.chance.capabilities,
            timing=TIMING,
            store=store,  # type: ignore[arg-type]
            upstream=self._wire,  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.batches = Batches(self.rig.writes)
        self._started_at = self.clock.monotonic()
        self.up.set()

    @property
    def age_s(self) -> float:
        """How long this run has been up."""
        return self.clock.monotonic() - self._started_at

    async def serve(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a request in the gateway. Raises what it raises, and `ConnectionLost`."""
        task = asyncio.create_task(request)
        self._requests[task] = None
        task.add_done_callback(lambda done: self._requests.pop(done, None))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise ConnectionLost
        return task.result()

    def disconnect_one(self) -> None:
        """A client goes away in the midst of its request."""
        if self._requests:
            task = self.chance.stream("crash").choice(list(self._requests))
            self.story.fault("client-gone")
            task.cancel()

    async def crash(self) -> None:
        """The process is gone; what it had not flushed is lost."""
        self.story.add(Fault(self.story.now, "crash"))
        self.story.faults["crash"] += 1
        self._life.end()
        self.story.faults["completed-floor-lost"] += self.disk.lose()
        await self._end()

    def lose_database(self) -> None:
        """The next run has a new one. The bucket's record tells it that there was another: its start is unclean. G4
        holds even so."""
        self.story.add(Fault(self.story.now, DATABASE_LOST, ("G0", "G1", "G2", "R9")))
        self.story.faults[DATABASE_LOST] += 1
        self.disk = Disk(self.clock.wall)
        self.disk.leave_unclean()

    async def stop(self) -> None:
        """In good order, as far as that goes: requests have a moment, then they are cut."""
        self.story.note("the gateway stops")
        self.story.faults["stop"] += 1
        self.up.clear()
        if self._requests:
            await asyncio.wait(list(self._requests), timeout=self.chance.pause("crash", 0, 5, 60))
        await self._cut()
        await self._close_service()
        fences = self.rig.fences
        clean = not fences.unsettled() and not fences.earlier_run_unsettled
        self.story.note(f"stopped, clean: {clean}")
        if not self._life.over:
            await self.rig.store.stop(clean=clean)
        await self._end()

    async def _end(self) -> None:
        self.up.clear()
        self._wire.reset()
        await self._cut()
        await self._close_service()

    async def _cut(self) -> None:
        requests = list(self._requests)
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    async def _close_service(self) -> None:
        await self.rig.uploads.stop()
        await self.rig.writes.close()

    async def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.chance.calm = True
        self._life.spare()
        if self.died.is_set():
            await self.crash()
            await self.start()

    async def end(self) -> None:
        """All is over."""
        await self._close_service()
        self._life.end()
