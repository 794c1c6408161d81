"""The simulated store: a slow disk with errors before and after the effect, that loses lazy writes in a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from gateway.core.job import Completion, Job, RetryPolicy
from gateway.stores.base import LAZY_FLUSH_S, StoreUnavailable
from gateway.stores.job_base import JobChange, Place
from gateway.stores.memory import MemoryStore
from gateway.stores.rules import next_generation
from gateway.stores.values import RESTORED, Authority, Event, Fence, Granted, GrantWanted, Ruling, Start, Upload
from tests.simulation.chance import Chance
from tests.simulation.life import Life
from tests.simulation.story import Story

T = TypeVar("T")
SLOW_S = (0, 0, 0, 0, 0.01, 0.1, 2)


class Disk(MemoryStore):
    """What is durable. Completed floors that were not yet flushed are lost when the power goes."""

    def __init__(self, clock: Callable[[], float], name: str) -> None:
        super().__init__(clock=clock, name=name)
        self._bindings_known = True
        self._unflushed: dict[str, int] = {}
        """The completed floor on disk, of the keys where memory is ahead of it."""

    async def start(self, rules_digest: str) -> Start:
        start = await super().start(rules_digest)
        # No two databases have a run in common.
        self._authority = replace(self._authority, run=f"{self._authority.database}/{len(self._runs)}")
        self._runs.add(self._authority.run)
        return replace(start, bindings_known=self._bindings_known)

    async def stop(self, *, clean: bool) -> None:
        await super().stop(clean=clean)
        self._bindings_known = self._bindings_known or clean

    def leave_unclean(self) -> None:
        """What was sent before its first start is not known to have settled."""
        self._clean = False

    def backup(self, name: str) -> Disk:
        """A copy of what is durable now. Whoever starts it is another database, of that name, which rules nothing."""
        copy = Disk(self._clock, name)
        copy._fences = {key: _without_lease(self.durable(key)) for key in self._fences}
        copy.jobs._jobs = dict(self.jobs._jobs)
        copy.uploads._bound, copy._owners = dict(self.uploads._bound), dict(self._owners)
        copy._rules_digest = self._rules_digest
        copy._authority = Authority(name, next_generation(self._authority.generation, 0), "")
        copy._rulings = {bucket: Ruling(bucket, RESTORED) for bucket in self._rulings}
        copy._clean = copy._bindings_known = False
        return copy

    def durable(self, key: str) -> Fence:
        fence = self._fences.get(key) or Fence(key)
        return replace(fence, completed_floor=self._unflushed.get(key, fence.completed_floor))

    def complete_handover(self, key: str, token: int) -> None:
        self._unflushed.setdefault(key, (self._fences.get(key) or Fence(key)).completed_floor)
        super().complete_handover(key, token)

    def flush(self) -> None:
        self._unflushed.clear()

    def lose(self) -> int:
        """The power goes. Answers how many completed floors are lost."""
        lost = len(self._unflushed)
        for key in self._unflushed:
            self._fences[key] = self.durable(key)
        self._unflushed.clear()
        return lost


def _without_lease(fence: Fence) -> Fence:
    """As in a restored database, which does not know what has been granted since."""
    return fence if fence.held is None else replace(fence, sealed_token=fence.floor)


class Jobs:
    """One run's way to the jobs on disk."""

    def __init__(self, store: Store, disk: Disk) -> None:
        self._store, self._disk = store, disk

    async def complete(self, key: str, completion: Completion, request_id: str = "") -> JobChange:
        return await self._store._io("complete", lambda: self._disk.jobs.complete(key, completion, request_id))

    async def reopen(self, key: str, reason: str) -> JobChange:
        return await self._store._io("reopen", lambda: self._disk.jobs.reopen(key, reason))

    async def submit(self, job: Job) -> JobChange:
        return await self._store._io("submit", lambda: self._disk.jobs.submit(job))

    async def deliver(self, key: str, wanted: GrantWanted, event: Event) -> JobChange:
        return await self._store._io("deliver", lambda: self._disk.jobs.deliver(key, wanted, event))

    async def renew(self, key: str, token: int) -> JobChange:
        return await self._store._io("renew", lambda: self._disk.jobs.renew(key, token))

    async def lapse(self, key: str, token: int, policy: RetryPolicy) -> JobChange:
        return await self._store._io("lapse", lambda: self._disk.jobs.lapse(key, token, policy))

    async def undeliver(self, key: str, token: int, available_at: float) -> JobChange:
        return await self._store._io("undeliver", lambda: self._disk.jobs.undeliver(key, token, available_at))

    async def release(self, key: str, token: int, available_at: float = 0.0, request_id: str = "") -> JobChange:
        return await self._store._io("release", lambda: self._disk.jobs.release(key, token, available_at, request_id))

    async def fail(self, key: str, token: int, policy: RetryPolicy, **more: Any) -> JobChange:
        return await self._store._io("fail", lambda: self._disk.jobs.fail(key, token, policy, **more))

    async def due(self, now: float, limit: int) -> list[Job]:
        return await self._store._io("due", lambda: self._disk.jobs.due(now, limit))

    async def next_due(self) -> float | None:
        return await self._store._io("next_due", self._disk.jobs.next_due, commits=False)

    async def job(self, key: str) -> Job | None:
        return await self._store._io("job", lambda: self._disk.jobs.job(key), commits=False)

    async def waiting(self, queue: str, limit: int) -> list[Place]:
        return await self._store._io("waiting", lambda: self._disk.jobs.waiting(queue, limit), commits=False)

    async def running(self, after: str, limit: int) -> list[Job]:
        return await self._store._io("running", lambda: self._disk.jobs.running(after, limit), commits=False)

    async def delivered_by(self, delivery: str) -> list[Job]:
        return await self._store._io("delivered_by", lambda: self._disk.jobs.delivered_by(delivery), commits=False)


class Uploads:
    """One run's way to the bindings on disk."""

    def __init__(self, store: Store, disk: Disk) -> None:
        self._store, self._disk = store, disk

    async def bind(self, upload: Upload) -> None:
        await self._store._io("bind_upload", lambda: self._disk.uploads.bind(upload))

    async def bound(self, *place: str) -> Upload | None:
        return await self._store._io("upload", lambda: self._disk.uploads.bound(*place), commits=False)

    async def complete(self, upload: Upload, etag: str) -> None:
        await self._store._io("complete_upload", lambda: self._disk.uploads.complete(upload, etag))

    async def close(self, upload: Upload) -> None:
        await self._store._io("close_upload", lambda: self._disk.uploads.close(upload))

    async def mark_aborted(self, upload: Upload) -> None:
        await self._store._io("mark_aborted", lambda: self._disk.uploads.mark_aborted(upload))

    async def revoke(self, key: str, below: int) -> list[Upload]:
        return await self._store._io("revoke_uploads", lambda: self._disk.uploads.revoke(key, below))

    async def unfinished(self, after: tuple[str, str, str] | None, limit: int) -> list[Upload]:
        return await self._disk.uploads.unfinished(after, limit)

    async def forget(self, before: float) -> int:
        return await self._store._io("forget_uploads", lambda: self._disk.uploads.forget(before))


class Store:
    """One run's way to the disk (`gateway.stores.base.Store`). Once the run is dead nothing reaches the disk."""

    dropped_events = 0

    def __init__(self, disk: Disk, chance: Chance, story: Story, life: Life) -> None:
        self._disk, self._chance, self._story, self._life = disk, chance, story, life
        self._flushing: asyncio.TimerHandle | None = None
        self.jobs = Jobs(self, disk)
        self.uploads = Uploads(self, disk)

    async def start(self, rules_digest: str) -> Start:
        return await self._disk.start(rules_digest)

    async def stop(self, *, clean: bool) -> None:
        self._disk.flush()
        await self._disk.stop(clean=clean)
        self._life.end()

    async def _io(self, name: str, what: Callable[[], Awaitable[T]], *, commits: bool = True) -> T:
        chance = self._chance
        self._life.step()
        if pause_s := chance.pause("disk", *SLOW_S):
            await asyncio.sleep(pause_s)
        self._life.check()
        kind = chance.fate("disk", ("store-error-before", "store-error-after" if commits else "store-error"), 1)
        if not chance.happens("disk", kind, chance.weather.store):
            kind = ""
        if kind:
            self._story.fault(kind, name)
        if kind and kind != "store-error-after":
            raise StoreUnavailable("disk I/O error")
        result = await what()
        if commits:
            self._disk.flush()
            self._life.step()
            if pause_s := chance.pause("disk", *SLOW_S):
                await asyncio.sleep(pause_s)
            self._life.check()
        if kind:
            raise StoreUnavailable("disk I/O error")
        return result

    # --- fences

    async def fence(self, key: str) -> Fence:
        async def read() -> Fence:
            return self._disk.durable(key)

        return await self._io("fence", read, commits=False)

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        return await self._io("raise_floor", lambda: self._disk.raise_floor(key, token, event))

    async def seal(self, key: str, token: int, event: Event | None = None) -> Fence:
        return await self._io("seal", lambda: self._disk.seal(key, token, event))

    def complete_handover(self, key: str, token: int) -> None:
        if not self._life.over:
            self._disk.complete_handover(key, token)
            self._flush_soon()

    def record(self, event: Event) -> None:
        if not self._life.over:
            self._flush_soon()

    def _flush_soon(self) -> None:
        def flush() -> None:
            self._flushing = None
            if not self._life.over:
                self._disk.flush()

        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(LAZY_FLUSH_S, flush)

    # --- leases

    async def grant(self, key: str, wanted: GrantWanted, event: Event | None = None) -> Granted:
        return await self._io("grant", lambda: self._disk.grant(key, wanted, event))

    async def granted_before(self, scope: str, idempotency_key: str) -> int:
        return await self._io(
            "granted_before", lambda: self._disk.granted_before(scope, idempotency_key), commits=False
        )

    async def forget_grants(self, before: float) -> int:
        return await self._io("forget_grants", lambda: self._disk.forget_grants(before))

    # --- who rules the bucket

    @property
    def authority(self) -> Authority:
        return self._disk.authority

    async def raise_generation(self, above: int) -> Authority:
        return await self._io("raise_generation", lambda: self._disk.raise_generation(above))

    async def knows_run(self, run: str) -> bool:
        return await self._io("knows_run", lambda: self._disk.knows_run(run), commits=False)

    async def ruling(self, bucket: str) -> Ruling | None:
        return await self._io("ruling", lambda: self._disk.ruling(bucket), commits=False)

    async def rule(self, bucket: str) -> None:
        await self._io("rule", lambda: self._disk.rule(bucket))

    async def begin_rebuild(self, bucket: str, claim: str) -> None:
        await self._io("begin_rebuild", lambda: self._disk.begin_rebuild(bucket, claim))

    async def advance_rebuild(self, bucket: str, claim: str, after: str, objects: int) -> None:
        await self._io("advance_rebuild", lambda: self._disk.advance_rebuild(bucket, claim, after, objects))

    # --- owners

    async def owner(self, bucket: str, object_key: str) -> str | None:
        return await self._io("owner", lambda: self._disk.owner(bucket, object_key), commits=False)

    async def claim(self, bucket: str, object_key: str, fence_key: str, *, instead_of: str | None) -> str:
        return await self._io("claim", lambda: self._disk.claim(bucket, object_key, fence_key, instead_of=instead_of))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the simulation does not know Store.{name}")
