"""The bucket's record: one small object that names the database which rules the bucket (R10, "Several gateways").

It is written before the first fenced write of a run in a bucket, under a condition, and looked at again every half
`lapse_s` as long as fenced writes come or are under way. A gateway that has not seen its own record for `lapse_s` lets
no fenced write past its commit point there, and resets the connections of those that are past it: so whoever has
replaced the record knows after `lapse_s` that the gateway before it sends nothing more, and how long what it had sent
may still land. A gateway that sleeps between this look and its send is beyond that: then the condition on the object
alone protects (G3).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import partial
from typing import Literal

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.service.record import NoBucket, Record, RecordObjects, Seen, time_of
from gateway.service.refusals import bucket_moves, store_unavailable, unavailable
from gateway.service.rulings import fault_of, not_seen, remedy, superseded
from gateway.stores.base import Store, StoreUnavailable
from gateway.upstream.base import CapabilitySource, Upstream

LAPSE_S = 60.0
REFUSED_FOR_S = 1.0
"""So long a refused bucket is not looked at again, however many writes come."""
TRIES = 3
MAX_IDLE_BUCKETS = 4096

FencedBefore = Literal["auto", True, False]

_log = structlog.get_logger(__name__)


class _Standing(Enum):
    UNKNOWN = auto()
    FREE = auto()
    """Nobody's, as far as has been seen; without a token one may write."""
    OURS = auto()
    REFUSED = auto()


class _Bucket:
    """What this run knows of one bucket."""

    __slots__ = (
        "epoch", "establishing", "fault", "keeper", "lapse", "looked_at", "looking", "name", "pins", "standing",
        "token", "used_at",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.standing = _Standing.UNKNOWN
        self.fault = ""
        self.epoch = 0
        """Counts what makes a look that is under way worthless."""
        self.looked_at = -math.inf
        """When the last look that succeeded began, monotonic seconds."""
        self.used_at = -math.inf
        self.token = False
        """Writes with a token have come: it is to bear a record."""
        self.pins = 0
        self.looking: asyncio.Task[None] | None = None
        self.establishing = False
        """The look that is under way, or was last, makes sure that there is a record."""
        self.keeper: asyncio.Task[None] | None = None
        self.lapse: asyncio.TimerHandle | None = None
        """When what has been sent must go no further, unless the record is seen before."""


class Records:
    """The records of all buckets of one gateway. `fenced_before`: "auto"; True also refuses a bucket without a record
    that this database does not know; False looks for no record and writes none."""

    def __init__(
        self,
        store: Store,
        upstream: Upstream,
        capabilities: CapabilitySource,
        clock: Clock,
        *,
        fenced_before: FencedBefore = "auto",
        lapse_s: float = LAPSE_S,
    ) -> None:
        self.lapse_s = lapse_s
        self.off = fenced_before is False
        self.objects = RecordObjects(upstream, capabilities)
        self._store = store
        self._capabilities = capabilities
        self._clock = clock
        self._known_alone = fenced_before is True
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self.unrecorded: set[str] = set()
        """Buckets with fenced writes and without a record: the store has not proved conditional writes."""
        self._being_deleted: Counter[str] = Counter()
        self.on_lapse: Callable[[str, Callable[[], TryAgain]], None] = lambda bucket, error: None
        """Called with a bucket that is, or may be, another's by now: nothing that is past its commit point there may go
        on. Each client is to be told the error."""

    # --- fenced writes

    async def enter(self, name: str, *, token: bool) -> None:
        """Before a fenced write in a bucket is admitted: the bucket is this database's, or, for one without a token,
        nobody's. It is kept an eye on until `leave`. Raises `TryAgain` (Superseded, StoreUnavailable,
        UpstreamUnavailable)."""
        if self.off:
            return
        bucket = self._pin(name)
        bucket.token = bucket.token or token
        try:
            bucket.used_at = now = self._clock.monotonic()
            if not self._admits(bucket, token, now):
                await self._look(bucket, establish=token)
        except BaseException:
            bucket.pins -= 1
            raise
        if bucket.keeper is None:
            bucket.keeper = asyncio.create_task(self._keep(bucket))

    def leave(self, name: str) -> None:
        """The write is over."""
        if not self.off:
            self._buckets[name].pins -= 1

    def before_commit(self, name: str) -> None:
        """At the commit point of a fenced write: the bucket is not being deleted, nobody else has been seen to rule it,
        and the last look is not older than `lapse_s`. Raises `TryAgain` (StateMoved, Superseded)."""
        if name in self._being_deleted:
            raise bucket_moves(f"Bucket {name} is just being deleted. Nothing was written.")
        if self.off:
            return
        bucket = self._buckets[name]
        if bucket.standing is _Standing.REFUSED:
            raise superseded(name, bucket.fault)
        if self._clock.monotonic() - bucket.looked_at >= self.lapse_s:
            raise not_seen(name, self.lapse_s)

    def _admits(self, bucket: _Bucket, token: bool, now: float) -> bool:
        """Whether a write may go on without a look. Raises `TryAgain` (Superseded)."""
        age_s, standing = now - bucket.looked_at, bucket.standing
        if standing is _Standing.OURS or (standing is _Standing.FREE and not token):
            return age_s < self.lapse_s
        if standing is _Standing.REFUSED and age_s < REFUSED_FOR_S:
            raise superseded(bucket.name, bucket.fault)
        return False

    def _pin(self, name: str) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            self._make_room()
            bucket = self._buckets[name] = _Bucket(name)
        bucket.pins += 1
        return bucket

    def _make_room(self) -> None:
        for _ in range(8):
            if len(self._buckets) < MAX_IDLE_BUCKETS:
                return
            name, bucket = self._buckets.popitem(last=False)
            if bucket.pins or bucket.keeper is not None or bucket.looking is not None:
                self._buckets[name] = bucket
            elif bucket.lapse is not None:
                bucket.lapse.cancel()

    async def _keep(self, bucket: _Bucket) -> None:
        """Look at the record every half `lapse_s` while the bucket is in use."""
        try:
            while bucket.pins or self._clock.monotonic() - bucket.used_at < self.lapse_s / 2:
                due = bucket.looked_at + self.lapse_s / 2
                pause_s = max(due - self._clock.monotonic(), self.lapse_s / 20)
                await asyncio.sleep(pause_s)
                # What keeps it from being seen is told to the writes that it keeps from going on.
                with suppress(FenceError):
                    await self._look(bucket, establish=bucket.token)
        finally:
            bucket.keeper = None

    # --- looking

    async def _look(self, bucket: _Bucket, *, establish: bool) -> None:
        """Look at the record; with `establish`, make sure that there is one. Raises `TryAgain`."""
        if bucket.looking is not None:
            with suppress(FenceError):
                await asyncio.shield(bucket.looking)
            if self._admits(bucket, establish, self._clock.monotonic()):
                return
        while True:
            if bucket.looking is None:
                # A task of its own: who asks may go away, and the others wait for the same.
                bucket.looking = asyncio.create_task(self._examine(bucket, establish))
                bucket.looking.add_done_callback(_heard)
                bucket.establishing = establish
            suffices = bucket.establishing or not establish
            await asyncio.shield(bucket.looking)
            if bucket.standing is _Standing.REFUSED:
                raise superseded(bucket.name, bucket.fault)
            if suffices and bucket.standing is not _Standing.UNKNOWN:  # as after `forget` at this very moment
                return

    async def _examine(self, bucket: _Bucket, establish: bool) -> None:
        try:
            await self._find_out(bucket, establish)
        finally:
            bucket.looking = None

    async def _find_out(self, bucket: _Bucket, establish: bool) -> None:
        for _ in range(TRIES):
            began, epoch = self._clock.monotonic(), bucket.epoch
            try:
                found = await self._standing(bucket.name, establish)
            except StoreUnavailable as error:
                raise store_unavailable(error) from error
            if found is None or bucket.epoch != epoch:  # somebody else was quicker
                continue
            standing, fault = found
            if standing is _Standing.REFUSED and bucket.standing is not standing:
                _log.warning("superseded", bucket=bucket.name, reason=fault, remedy=remedy(bucket.name))
            bucket.standing, bucket.fault, bucket.looked_at = standing, fault, began
            self._watch(bucket)
            return
        raise unavailable(f"the record of bucket {bucket.name} changes all the time")

    def _watch(self, bucket: _Bucket) -> None:
        """Let nothing that has been sent go on for longer than the record says that it may."""
        if bucket.lapse is not None:
            bucket.lapse.cancel()
            bucket.lapse = None
        if bucket.standing is _Standing.REFUSED:
            self._cut_off(bucket, partial(superseded, bucket.name, bucket.fault, sent=True))
        else:
            left_s = bucket.looked_at + self.lapse_s - self._clock.monotonic()
            bucket.lapse = asyncio.get_running_loop().call_later(left_s, self._lapsed, bucket)

    def _lapsed(self, bucket: _Bucket) -> None:
        bucket.lapse = None
        self._cut_off(bucket, partial(not_seen, bucket.name, self.lapse_s, sent=True))

    def _cut_off(self, bucket: _Bucket, error: Callable[[], TryAgain]) -> None:
        if bucket.pins:  # what is past its commit point has entered, and not left
            self.on_lapse(bucket.name, error)

    async def _standing(self, name: str, establish: bool) -> tuple[_Standing, str] | None:
        """How this database stands in a bucket, and what is wrong; None if the record has changed meanwhile."""
        try:
            return await self._standing_there(name, establish)
        except NoBucket:
            self.unrecorded.discard(name)
            return _Standing.FREE, ""  # who writes to it is told by the store

    async def _standing_there(self, name: str, establish: bool) -> tuple[_Standing, str] | None:
        """Raises `NoBucket`."""
        seen = await self.objects.read(name)
        if fault := await self.fault(name, seen):
            return _Standing.REFUSED, fault
        if not establish:
            return (_Standing.FREE if seen is None else _Standing.OURS), ""
        ruling = await self._store.ruling(name)
        conditional = (await self._capabilities.of_bucket(name)).conditional_put
        stale = seen is None or (seen.record is not None and seen.record.run != self._store.authority.run)
        if seen is None and not conditional:
            self.unrecorded.add(name)
        else:
            self.unrecorded.discard(name)
        if stale and conditional:
            if await self.objects.write(name, self.own_record(), seen) is None:
                return None
            if seen is None and ruling is not None:
                _log.warning("the bucket's record was gone", bucket=name)
        if ruling is None or ruling.claim is not None:
            await self._store.rule(name)
        return _Standing.OURS, ""

    async def fault(self, name: str, seen: Seen | None) -> str:
        """Why a bucket with that record is not this database's to serve; empty if it is, or may become so. Raises
        `StoreUnavailable`."""
        return await fault_of(self._store, name, seen, known_alone=self._known_alone)

    # --- the object itself

    def own_record(self, *, rebuilding: bool = False, lapse_s: float = 0.0) -> Record:
        """A record of this run, unlike any before it. `lapse_s` is that of the owner before."""
        authority = self._store.authority
        return Record(
            authority.database,
            authority.generation,
            authority.run,
            self._clock.nonce(),
            rebuilding,
            max(self.lapse_s, lapse_s),
            time_of(self._clock.wall()),
        )

    # --- the rest

    async def refusals(self) -> dict[str, str]:
        """The buckets that are known to be refused, and why. Looks at no record. Raises `StoreUnavailable`."""
        refused = {b.name: b.fault for b in self._buckets.values() if b.standing is _Standing.REFUSED}
        for ruling in await self._store.rulings():
            if ruling.claim is not None and ruling.bucket not in refused:
                refused[ruling.bucket] = await self.fault(ruling.bucket, None)
        return dict(sorted(refused.items()))

    async def look_at(self, name: str) -> str:
        """Look at a bucket's record now; why fenced writes are refused there, empty if they are not. Raises
        `TryAgain`."""
        if self.off:
            return ""
        bucket = self._pin(name)
        try:
            await self._look(bucket, establish=False)
        except TryAgain as error:
            if error.reason is not Reason.SUPERSEDED:
                raise
        finally:
            bucket.pins -= 1
        return bucket.fault

    @contextmanager
    def being_deleted(self, name: str) -> Iterator[None]:
        """Inside, no fenced write in the bucket passes its commit point."""
        self._being_deleted[name] += 1
        try:
            yield
        finally:
            self._being_deleted -= Counter([name])

    async def bucket_is_gone(self, name: str) -> None:
        """The bucket has been deleted. Raises `TryAgain` (StoreUnavailable)."""
        self.forget(name)
        self.unrecorded.discard(name)
        try:
            await self._store.forget_bucket(name)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    async def put_back(self, name: str, seen: Seen) -> None:
        """The bucket has not been deleted after all: let it bear the record that it bore. Raises `TryAgain`."""
        if seen.record is not None:
            with suppress(NoBucket):
                await self.objects.write(name, seen.record, None)

    def forget(self, name: str) -> None:
        """Have the next fenced write in a bucket look at its record."""
        bucket = self._buckets.get(name)
        if bucket is not None:
            bucket.standing, bucket.looked_at = _Standing.UNKNOWN, -math.inf
            bucket.epoch += 1

    async def close(self) -> None:
        """End what looks at records."""
        for bucket in self._buckets.values():
            if bucket.lapse is not None:
                bucket.lapse.cancel()
        tasks = [t for b in self._buckets.values() for t in (b.keeper, b.looking) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited has been told; nobody may have
