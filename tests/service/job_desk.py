"""The service layer with leases and jobs on a table, in virtual time, and how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.core.job import Job, RetryPolicy
from gateway.core.keys import FencingKey
from gateway.service.completions import Completions
from gateway.service.deliveries import Delivery, Wish
from gateway.service.fences import Fences
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases, LeaseTerms
from gateway.service.queues import QueueRule, QueueRules
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind
from tests.service.rig import Rig, rig
from tests.virtual_time import VirtualClock, run

J = FencingKey("j")
POLICY = RetryPolicy(max_attempts=3, backoff_s=10, backoff_max_s=15)


class BreakableStore(MemoryStore):
    """A store that can be told to fail; what is lazy waits meanwhile, as on a full disk."""

    broken = False

    def record(self, event: Event) -> None:
        if not self.broken:
            super().record(event)

    def _require_running(self) -> None:
        super()._require_running()
        if self.broken:
            raise StoreUnavailable("disk full")


class SteppingClock(VirtualClock):
    """Its wall clock can be set, as people and time servers do."""

    step_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.step_s


@dataclass
class Desk:
    """A service layer with leases and jobs."""

    rig: Rig
    fences: Fences
    leases: Leases
    jobs: Jobs
    store: BreakableStore
    clock: SteppingClock

    async def submit(self, *keys: str, **more: Any) -> None:
        for key in keys:
            assert (await self.jobs.submit("q", FencingKey(key), **more))[1]

    async def receive(self, holder: str = "A", wait_s: float = 0, **more: Any) -> list[Delivery]:
        return await self.jobs.deliveries.receive("q", Wish(holder, wait_s=wait_s, **more))

    async def received(self, wait_s: float = 0, **more: Any) -> tuple[str, int, int]:
        """The one job that there is: key, token, attempts."""
        (one,) = await self.receive(wait_s=wait_s, **more)
        return one.job.key, one.lease.token, one.job.attempts

    async def job(self, key: str = "j") -> Job:
        return await self.jobs.job(FencingKey(key))

    async def kinds(self, key: str = "j") -> list[EventKind]:
        return [event.kind for event in reversed(await self.store.events(key, None, 99))]

    def completions(self) -> Completions:
        return Completions(self.fences, self.leases, self.jobs, self.rig.upstream, self.rig.rules)

    async def restarted(self, *, clean: bool = True) -> Desk:
        await self.jobs.stop()
        await self.leases.stop()
        await self.store.stop(clean=clean)
        return await desk(store=self.store, timing=Timing(settle_timeout_s=0.5, settle_timeout_assembly_s=0.5))


async def desk(
    *,
    store: BreakableStore | None = None,
    terms: LeaseTerms | None = None,
    timing: Timing | None = None,
    max_waiting: int = 100,
) -> Desk:
    """One that has started; with `store` of an earlier one, after a restart."""
    clock = SteppingClock()
    store = store or BreakableStore(clock=clock.wall)
    table = await rig(store=store, timing=timing, clock=clock)
    leases = Leases(table.fences, terms or LeaseTerms())
    await leases.start()
    rules = QueueRules((QueueRule("q", POLICY, visibility_s=30),))
    jobs = Jobs(leases, store, clock, rules, max_waiting=max_waiting)
    await jobs.start()
    return Desk(table, table.fences, leases, jobs, store, clock)


def every(_: str) -> bool:
    return True


def play(main: Coroutine[Any, Any, None]) -> None:
    run(main)


async def at(moment_s: float) -> None:
    """Until so long after the loop's beginning."""
    await asyncio.sleep(1000 + moment_s - asyncio.get_running_loop().time())
