"""The gateway that clients reach: run after run of the real service, with crashes and stops between them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.service.batches import Batches
from gateway.service.completions import Completions
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases, LeaseTerms
from gateway.service.queues import QueueRules
from gateway.service.rebuild import Phase, Rebuilds
from gateway.upstream.probe import FixedCapabilities
from tests.checker.history import Fault, Floor
from tests.checker.rules import DATABASE_LOST
from tests.service.rig import Rig, rig
from tests.simulation.chance import BUCKET, RULES, Chance
from tests.simulation.disk import Disk, Store
from tests.simulation.life import Life
from tests.simulation.objects import WITHOUT_DATABASE, ObjectStore
from tests.simulation.wire import TIMING, Wire
from tests.virtual_time import VirtualClock

T = TypeVar("T")


REBUILD_S = 1000.0
"""Longer than any rebuild waits."""


class ConnectionLost(Exception):
    """The gateway has gone, or the client has: there is no answer."""


class Gateway:
    """One gateway over all its runs."""

    def __init__(self, chance: Chance, objects: ObjectStore, clock: VirtualClock) -> None:
        self.chance, self.objects, self.story = chance, objects, objects.story
        self.clock = clock
        self.disk = self._new_disk()
        self.backup: Disk | None = None
        self.rules_bucket = True
        """It is the one whose floors hold."""
        self.given_up = False
        """Another one is to take its bucket over."""
        self.died = asyncio.Event()
        self.up = asyncio.Event()
        self.rig: Rig
        self.batches: Batches
        self.rebuilds: Rebuilds
        self.leases: Leases
        self.jobs: Jobs
        self.completions: Completions
        self._life: Life
        self._wire: Wire
        self._requests: dict[asyncio.Task[Any], None] = {}

    def _new_disk(self) -> Disk:
        return Disk(self.clock.wall, self.objects.name_database())

    async def start(self) -> None:
        """A new run."""
        self.died.clear()
        stream = self.chance.stream("crash")
        mortal = self.chance.happens("crash", "crash", min(1.0, self.chance.weather.crash * 8))
        self._life = life = Life(stream.randrange(1, 120) if mortal else None, self.died.set)
        recorded = self.chance.recorded
        self._wire = Wire(self.objects, self.chance, life, self.disk.authority.database if recorded else "")
        store = Store(self.disk, self.chance, self.story, life)
        for key in sorted(self.disk._fences) if self.rules_bucket else ():
            self.story.add(Floor(self.story.now, key, self.disk.durable(key).floor))
        self.rig = await rig(
            *RULES,
            capabilities=self.chance.capabilities,
            timing=TIMING,
            store=store,  # type: ignore[arg-type]
            upstream=self._wire,  # type: ignore[arg-type]
            clock=self.clock,
            fenced_before="auto" if recorded else False,
        )
        writes = self.rig.writes
        self.rebuilds = Rebuilds(
            self.rig.fences,
            writes.records,
            self._wire,  # type: ignore[arg-type]
            FixedCapabilities(self.chance.capabilities),
            self.rig.rules,
            writes.name,
            self.clock,
        )
        self.leases = Leases(self.rig.fences, LeaseTerms(lock_delay_s=self.chance.lock_delay_s))
        self.jobs = Jobs(self.leases, store, self.clock, QueueRules())  # type: ignore[arg-type]
        self.completions = Completions(self.rig.fences, self.leases, self.jobs, self._wire, self.rig.rules)  # type: ignore[arg-type]
        await self.leases.start()
        await self._start_jobs()
        self.batches = Batches(self.rig.writes)
        self._started_at = self.clock.monotonic()
        self.up.set()

    async def _start_jobs(self) -> None:
        """A run that cannot read what its jobs are is none."""
        starting = asyncio.create_task(self.jobs.start())
        await asyncio.wait([starting])
        if starting.cancelled() or starting.exception() is not None:
            self._life.kill()

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

    def keep_backup(self) -> None:
        """Of the database as it is now."""
        self.backup = self.disk.backup(self.objects.name_database())

    def lose_database(self) -> bool:
        """The next run has a new one, or the backup in its place. Answers whether the bucket's record, or the backup,
        tells it that there was another: then nothing fenced is served until the floors are rebuilt. Where nothing
        does, its start is unclean all the same, and G4 holds even so."""
        self.story.add(Fault(self.story.now, DATABASE_LOST, WITHOUT_DATABASE, self.disk.authority.database))
        self.story.faults[DATABASE_LOST] += 1
        told = self.chance.recorded and self.objects.recorded
        if self.backup is not None and self.chance.happens("record", "database-restored", 0.5):
            self.story.fault("database-restored")
            self.disk = self.backup.backup(self.objects.name_database())
            return told or (self.chance.recorded and bool(self.disk._rulings))
        self.disk = self._new_disk()
        if not told:
            self.disk.leave_unclean()
        return told

    async def rebuild(self) -> None:
        """What an operator does until the bucket is this gateway's: asks again after each failure and each restart;
        not where another gateway is to take it over."""
        while True:
            await asyncio.sleep(self.chance.pause("operator", 0, 5, 40))
            await self.up.wait()
            progress = self.rebuilds.begin(BUCKET)
            await self.rebuilds.wait(BUCKET, REBUILD_S)
            if progress.phase is Phase.DONE or self.given_up:
                return
            self.story.note(f"the rebuild has ended: {progress.error or progress.phase}")
            await asyncio.sleep(1)

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
        clean = not fences.unsettled() and not fences.earlier_run.unsettled
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
        await self.completions.stop()
        await self.jobs.stop()
        await self.leases.stop()
        await self.rebuilds.close()
        await self.rig.uploads.bindings.stop()
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
