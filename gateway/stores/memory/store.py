"""The store without a disk, for tests and simulation: no threads, no waiting, the same promises.

What is stored lives as long as the object: `stop` and `start` again is a restart, `start` without a `stop`
is a restart after a crash. Lazy writes take effect at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gateway.stores.base import StoreUnavailable
from gateway.stores.job_base import JobChange
from gateway.stores.memory.jobs import MemoryJobs
from gateway.stores.memory.outbox import MemoryOutbox
from gateway.stores.memory.uploads import MemoryUploads
from gateway.stores.rules import (
    HISTORY_KEPT,
    granted,
    handed_over,
    next_generation,
    raised,
    require_text,
    require_token,
    sealed,
    shadowed,
    storable,
)
from gateway.stores.values import Authority, Event, Fence, Granted, GrantWanted, Ruling, Start


class MemoryStore:
    """Implements `gateway.stores.base.Store`. `clock` gives wall-clock time in seconds since the epoch; two stores with
    the same `name` pass for one database."""

    def __init__(self, *, clock: Callable[[], float] = time.time, name: str = "memory") -> None:
        self._clock = clock
        self._running = False
        self._clean = True
        self._rules_digest: str | None = None
        self._fences: dict[str, Fence] = {}
        self._events: dict[str, deque[Event]] = {}
        self._serial = 0
        self.outbox = MemoryOutbox()
        self.jobs = MemoryJobs(self._decide_job, self._require_running, lambda: self._authority.generation, clock)
        self.uploads = MemoryUploads(self._require_running, clock)
        self._owners: dict[tuple[str, str], str] = {}
        self._repeatable: dict[tuple[str, str], tuple[int, float]] = {}
        self._authority = Authority(name, 0, "")
        self._runs: set[str] = set()
        self._rulings: dict[str, Ruling] = {}

    # --- beginning and end ----------------------------------------------------------------------------------

    async def start(self, rules_digest: str) -> Start:
        reasons = []
        if not self._clean:
            reasons.append("the last run did not stop cleanly")
        if self._rules_digest not in (None, rules_digest):
            reasons.append("the fencing rules have changed")
        self._running, self._clean, self._rules_digest = True, False, rules_digest
        self._authority = replace(self._authority, run=f"run-{len(self._runs) + 1}")
        self._runs.add(self._authority.run)
        self.outbox.restarted()
        return Start(clean=not reasons, reason="; ".join(reasons))

    async def stop(self, *, clean: bool) -> None:
        self._require_running()
        self._running, self._clean = False, clean

    async def check(self) -> None:
        self._require_running()

    def _require_running(self) -> None:
        if not self._running:
            raise StoreUnavailable("the store is closed")

    # --- fences ---------------------------------------------------------------------------------------------

    async def fence(self, key: str) -> Fence:
        self._require_running()
        return self._fences.get(key) or Fence(key)

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        at = self._clock()
        return self._decide(key, token, lambda fence: raised(fence, token, at), event)

    async def raise_shadow(self, key: str, token: int) -> Fence:
        return self._decide(key, token, lambda fence: shadowed(fence, token))

    def complete_handover(self, key: str, token: int) -> None:
        self._decide(key, token, lambda fence: handed_over(fence, token))

    async def seal(self, key: str, token: int, event: Event | None = None) -> Fence:
        return self._decide(key, token, lambda fence: sealed(fence, token), event)

    def _decide(self, key: str, token: int, rule: Callable[[Fence], Fence], event: Event | None = None) -> Fence:
        """`rule` applied to the state of `key`. `event` is recorded if it changes: its token is the new floor where it
        names none."""
        self._require_running()
        require_token(token)
        old = self._fences.get(require_text(key)) or Fence(key)
        new = rule(old)
        if new is not old:
            self._fences[key] = new
            if event is not None:
                self.record(event._replace(token=event.token or new.floor))
        return new

    def _decide_job(self, key: str, rule: Callable[[Fence], JobChange]) -> JobChange:
        """`rule` applied to the state of `key`; what it tells is recorded."""
        self._require_running()
        change = rule(self._fences.get(require_text(key)) or Fence(key))
        if change.done:
            self._fences[key] = change.fence
            if change.event is not None:
                self.record(change.event)
        return change

    async def fences(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        self._require_running()
        keys = sorted(key for key in self._fences if key > (after or "") and key.startswith(prefix))
        return [self._fences[key] for key in keys[:limit]]

    # --- leases ---------------------------------------------------------------------------------------------

    async def grant(self, key: str, wanted: GrantWanted, event: Event | None = None) -> Granted:
        before, at = await self.fence(key), self._clock()
        for text in (wanted.holder, wanted.id, *(wanted.repeatable or ())):
            require_text(text)
        fence = self._decide(key, 0, lambda fence: granted(fence, wanted, self._authority.generation, at), event)
        if fence.floor == before.floor:
            return Granted(fence, 0)
        if wanted.repeatable is not None:
            self._repeatable[wanted.repeatable] = (fence.floor, at)
        return Granted(fence, fence.floor)

    async def granted_before(self, scope: str, idempotency_key: str) -> int:
        self._require_running()
        return self._repeatable.get((scope, idempotency_key), (0, 0.0))[0]

    async def forget_grants(self, before: float) -> int:
        self._require_running()
        old = [this for this, (_, at) in self._repeatable.items() if at < before]
        for this in old:
            del self._repeatable[this]
        return len(old)

    async def leases(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        self._require_running()
        keys = sorted(key for key in self._fences if key > (after or "") and key.startswith(prefix))
        return [fence for key in keys if (fence := self._fences[key]).held is not None][:limit]

    # --- history --------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        self._require_running()
        self._serial += 1
        history = self._events.setdefault(event.key, deque(maxlen=HISTORY_KEPT))
        history.append(storable(event)._replace(at=self._clock(), serial=self._serial))
        self.outbox.add(history[-1]._replace(serial=0))

    async def events(self, key: str, before: int | None, limit: int) -> list[Event]:
        self._require_running()
        newest_first = reversed(self._events.get(key, ()))
        return [event for event in newest_first if before is None or event.serial < before][:limit]

    @property
    def dropped_events(self) -> int:
        return 0

    # --- owners ---------------------------------------------------------------------------------------------

    async def owner(self, bucket: str, object_key: str) -> str | None:
        self._require_running()
        return self._owners.get((bucket, object_key))

    async def claim(self, bucket: str, object_key: str, fence_key: str, *, instead_of: str | None) -> str:
        self._require_running()
        this = (bucket, object_key)
        if this not in self._owners or self._owners[this] == instead_of:
            self._owners[this] = fence_key
        return self._owners[this]

    # --- who rules a bucket -----------------------------------------------------------------------------------

    @property
    def authority(self) -> Authority:
        return self._authority

    async def raise_generation(self, above: int) -> Authority:
        self._require_running()
        self._authority = replace(self._authority, generation=next_generation(self._authority.generation, above))
        return self._authority

    async def knows_run(self, run: str) -> bool:
        self._require_running()
        return run in self._runs

    async def ruling(self, bucket: str) -> Ruling | None:
        self._require_running()
        return self._rulings.get(bucket)

    async def rulings(self) -> list[Ruling]:
        self._require_running()
        return sorted(self._rulings.values(), key=lambda ruling: ruling.bucket)

    async def rule(self, bucket: str) -> None:
        self._require_running()
        self._rulings[require_text(bucket)] = Ruling(bucket)

    async def begin_rebuild(self, bucket: str, claim: str) -> None:
        self._require_running()
        self._rulings[require_text(bucket)] = Ruling(bucket, claim)

    async def advance_rebuild(self, bucket: str, claim: str, after: str, objects: int) -> None:
        self._require_running()
        known = self._rulings.get(bucket)
        if known is not None and known.claim == claim:
            self._rulings[bucket] = Ruling(bucket, claim, require_text(after), objects)

    async def forget_bucket(self, bucket: str) -> None:
        self._require_running()
        self._rulings.pop(bucket, None)

    async def backup(self, file: Path) -> None:
        raise StoreUnavailable("what is kept in memory has no backup")
