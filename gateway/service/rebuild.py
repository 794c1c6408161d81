"""`fence rebuild`: a bucket becomes this database's, with the floors that its objects tell (G0, G4, R10).

    claim the record → wait until nothing of who had it can land → look at every object, raise floors → rule

From the claim on nobody serves what is fenced in the bucket: the gateway before notices within its lapse, this one
waits for the end. What is found is durable object by object, and how far it has come is kept, so that a rebuild that
was broken off goes on; it may be repeated at any time. A bucket that is this database's already is only looked through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError, TryAgain
from gateway.core.keys import FencingKey, Ruleset, Token, key_in_metadata, key_of_metadata, key_of_object
from gateway.core.names import names_record
from gateway.core.write import ObjectState
from gateway.s3.errors import S3Error
from gateway.s3.fencing import object_state
from gateway.service.fences import Fences
from gateway.service.listings import keys_after
from gateway.service.record import MAX_LAPSE_S, NoBucket, Seen
from gateway.service.records import Records
from gateway.service.sending import head_of
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import RESTORED, Ruling
from gateway.upstream.base import EMPTY_SHA256, CapabilitySource, Upstream, UpstreamRequest

T = TypeVar("T")

PAGE = 1000
LOOKS_AT_A_TIME = 16
TRIES = 5
RETRY_S = 1.0
MOST_TOLD = 20
"""Of each kind, so many keys and objects are told by name."""

_log = structlog.get_logger(__name__)


class Phase(StrEnum):
    """How far a rebuild has come."""

    CLAIMING = "claiming"
    WAITING = "waiting"
    LOOKING = "looking"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Raised:
    """A floor that has been raised."""

    key: str
    before: int
    floor: int


@dataclass(slots=True)
class Progress:
    """One rebuild, as far as it has come."""

    bucket: str
    phase: Phase = Phase.CLAIMING
    adopted: str = ""
    """Whose the bucket was; empty where it was nobody's, or ours."""
    generation: int = 0
    waits_until: float = 0.0
    """Monotonic seconds."""
    objects: int = 0
    """Looked at, those of a rebuild that was broken off included."""
    fenced: int = 0
    """Those of this run that bear a token."""
    raised: int = 0
    owners: int = 0
    """Objects without a rule whose owner has been recorded."""
    raised_keys: list[Raised] = field(default_factory=list)
    unreadable: int = 0
    unreadable_objects: list[str] = field(default_factory=list)
    """What cannot be looked at without its writer's encryption key: its token is not known."""
    error: str = ""

    @property
    def over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)


class RebuildFailed(Exception):
    """It cannot go on; the message says why. Asked for again it goes on where it was."""


class Rebuilds:
    """The rebuilds of one gateway, one for each bucket at a time.

    `settled` says that nothing which anybody sent before this gateway started can still land."""

    def __init__(
        self,
        fences: Fences,
        records: Records,
        upstream: Upstream,
        capabilities: CapabilitySource,
        rules: Ruleset,
        name: Callable[[str, str], Coroutine[Any, Any, str]],
        clock: Clock,
        *,
        settled: bool = False,
    ) -> None:
        self._fences = fences
        self._records = records
        self._upstream = upstream
        self._capabilities = capabilities
        self._rules = rules
        self._name = name
        self._clock = clock
        self._settled = settled
        self._store: Store = fences.store
        self._progress: dict[str, Progress] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, bucket: str) -> Progress:
        """Begin to rebuild a bucket, or go on; the one that is under way if there is one."""
        if bucket not in self._tasks:
            self._progress[bucket] = progress = Progress(bucket)
            task = asyncio.create_task(self._run(progress))
            self._tasks[bucket] = task
            task.add_done_callback(lambda _: self._tasks.pop(bucket, None))
        return self._progress[bucket]

    def progress(self, bucket: str) -> Progress | None:
        """The last rebuild of a bucket in this run."""
        return self._progress.get(bucket)

    async def wait(self, bucket: str, timeout_s: float) -> None:
        """Until the rebuild of a bucket is over, at most `timeout_s`."""
        if bucket in self._tasks:
            await asyncio.wait([self._tasks[bucket]], timeout=timeout_s)

    async def close(self) -> None:
        """Break off what is under way; it may be taken up by the next run."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, progress: Progress) -> None:
        try:
            await self._rebuild(progress)
        except (RebuildFailed, NoBucket, StoreUnavailable, S3Error) as error:
            self._failed(progress, str(error))
        except FenceError as error:
            self._failed(progress, error.message)
        except Exception:
            _log.exception("the rebuild failed", bucket=progress.bucket)
            self._failed(progress, "a fault of the gateway; its log has the traceback")
        else:
            progress.phase = Phase.DONE
            _log.info(
                "rebuilt", bucket=progress.bucket, generation=progress.generation, objects=progress.objects,
                raised=progress.raised, unreadable=progress.unreadable,
            )  # fmt: skip

    def _failed(self, progress: Progress, why: str) -> None:
        progress.phase, progress.error = Phase.FAILED, why
        _log.warning("rebuild-failed", bucket=progress.bucket, reason=why)

    # --- the steps

    async def _rebuild(self, progress: Progress) -> None:
        bucket, store, records = progress.bucket, self._store, self._records
        seen = await records.objects.read(bucket)
        ruling = await store.ruling(bucket)
        fault = await records.fault(bucket, seen)
        progress.generation = store.authority.generation
        if not fault and (seen is not None or ruling is not None):
            await store.rule(bucket)
            await self._look_through(progress, Ruling(bucket), mine=True)
            return
        ours = seen is not None and seen.record is not None and seen.record.database == store.authority.database
        if seen is not None and seen.record is not None and not ours:
            progress.adopted = seen.record.owner
        claim: Seen | None = seen
        if not _goes_on(seen, ruling):
            claim = await self._claim(progress, seen)
            ruling = Ruling(bucket, _claim_of(claim))
        assert ruling is not None
        if ruling.after is None:
            await self._wait(progress, seen)
        await self._look_through(progress, ruling, mine=False)
        if claim is not None and await records.objects.write(bucket, records.own_record(), claim) is None:
            raise RebuildFailed("another gateway has claimed the bucket meanwhile")
        await store.rule(bucket)
        records.forget(bucket)

    async def _claim(self, progress: Progress, seen: Seen | None) -> Seen | None:
        """Claim the bucket; from now on nobody serves what is fenced there. None where the store is not to be trusted
        with the condition that a record needs."""
        bucket, store, records = progress.bucket, self._store, self._records
        conditional = (await self._capabilities.of_bucket(bucket)).conditional_put
        if records.off or (seen is None and not conditional):
            await store.begin_rebuild(bucket, RESTORED)
            records.forget(bucket)
            return None
        if not conditional:
            raise RebuildFailed(
                "the bucket bears a record, and this gateway cannot replace it: the store has not proved conditional "
                'writes, or [upstream] conditional = "off"'
            )
        known = seen.record.generation if seen is not None and seen.record is not None else 0
        progress.generation = (await store.raise_generation(known)).generation
        record = records.own_record(rebuilding=True, lapse_s=self._lapse_s(seen))
        await store.begin_rebuild(bucket, record.nonce)
        records.forget(bucket)
        claim = await records.objects.write(bucket, record, seen)
        if claim is None:
            raise RebuildFailed(
                "another gateway has claimed the bucket at the same moment: one of the two has to give way"
            )
        _log.info("bucket-claimed", bucket=bucket, generation=progress.generation, adopted=progress.adopted)
        return claim

    async def _wait(self, progress: Progress, seen: Seen | None) -> None:
        """Wait until nothing can land any more that was sent before the claim, or by a gateway that had not seen it."""
        if self._settled:
            return
        # Which Completes and copies were under way is not to be known: the store may list no upload of one that has
        # been completed twice, and nothing tells of a copy.
        wait_s = self._lapse_s(seen) + self._fences.timing.settle_timeout_assembly_s
        progress.phase = Phase.WAITING
        progress.waits_until = self._clock.monotonic() + wait_s
        # A timer may fire a hair before its moment, and no event tells of time.
        while (left_s := progress.waits_until - self._clock.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)

    @staticmethod
    def _lapse_s(seen: Seen | None) -> float:
        """How long who had the bucket may go on without having seen that it has it no more."""
        if seen is None:
            return 0.0
        return MAX_LAPSE_S if seen.record is None else seen.record.lapse_s

    async def _look_through(self, progress: Progress, ruling: Ruling, *, mine: bool) -> None:
        """Look at all objects, page by page. `mine`: the bucket is being served, and an owner that is known stays."""
        bucket = progress.bucket
        progress.phase, progress.objects = Phase.LOOKING, ruling.objects
        after, more = ruling.after or "", True
        while more:
            keys, more = await self._tried(partial(keys_after, self._upstream, bucket, "", after, PAGE))
            if not keys:
                return
            if keys[-1].encode() <= after.encode():
                raise RebuildFailed("the store does not list its objects in order, from a given one on")
            await self._look_at(progress, keys, mine)
            after = keys[-1]
            if ruling.claim is not None:
                await self._store.advance_rebuild(bucket, ruling.claim, after, progress.objects)

    async def _look_at(self, progress: Progress, keys: list[str], mine: bool) -> None:
        waiting = iter(keys)

        async def look() -> None:
            for key in waiting:
                if not names_record(key):
                    await self._learn(progress, key, mine)
                    progress.objects += 1

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(LOOKS_AT_A_TIME):
                    group.create_task(look())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _learn(self, progress: Progress, object_key: str, mine: bool) -> None:
        """Let the fence know what one object bears."""
        bucket = progress.bucket
        try:
            state = await self._tried(partial(self._head, bucket, object_key))
        except S3Error as error:
            if error.code != "InvalidRequest":
                raise RebuildFailed(error.message) from error
            progress.unreadable += 1
            if len(progress.unreadable_objects) < MOST_TOLD:
                progress.unreadable_objects.append(object_key)
            return
        if state is None or state.key is None:
            return
        progress.fenced += 1
        name = await self._name(bucket, object_key)
        ruled = self._ruled(bucket, name)
        owner = await self._store.owner(bucket, name)
        key = _key_of(state, ruled, key_of_object(bucket, name), owner)
        cause = f"on {bucket}/{name}"
        before = await self._tried(partial(self._fences.found, key, Token(state.token), cause))
        if before < state.token:
            progress.raised += 1
            if len(progress.raised_keys) < MOST_TOLD:
                progress.raised_keys.append(Raised(key, before, state.token))
        if ruled is None and owner != key and not (mine and owner is not None):
            await self._store.claim(bucket, name, key, instead_of=owner)
            progress.owners += 1

    def _ruled(self, bucket: str, name: str) -> FencingKey | None:
        try:
            return self._rules.map(bucket, name).key
        except FenceError:
            return None

    async def _head(self, bucket: str, object_key: str) -> ObjectState | None:
        raw_key = quote(object_key, safe="/-_.~")
        request = UpstreamRequest("HEAD", bucket, raw_key, "", (), EMPTY_SHA256)
        response = await head_of(self._upstream, request, f"{bucket}/{object_key}")
        return None if response.status == 404 else object_state(response.headers)

    async def _tried(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Try a few times what fails for a while. Raises what it fails with at last."""
        for attempt in range(1, TRIES):
            try:
                return await what()
            except TryAgain:
                await asyncio.sleep(RETRY_S * attempt)
        return await what()


def _claim_of(claim: Seen | None) -> str:
    return RESTORED if claim is None or claim.record is None else claim.record.nonce


def _goes_on(seen: Seen | None, ruling: Ruling | None) -> bool:
    """Whether the record is the claim of a rebuild that was broken off."""
    if ruling is None or seen is None or seen.record is None:
        return False
    return seen.record.rebuilding and seen.record.nonce == ruling.claim


def _key_of(state: ObjectState, ruled: FencingKey | None, own: FencingKey, owner: str | None) -> FencingKey:
    """The fence key that an object carries; where it carries a hash, the key that has this hash, else its stand-in."""
    assert state.key is not None
    for candidate in (ruled, own, owner):
        if candidate is not None and key_in_metadata(candidate) == state.key:
            return FencingKey(candidate)
    return key_of_metadata(state.key)
