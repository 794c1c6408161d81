"""Group commit: all calls that wait share one transaction, and each is answered after its COMMIT.

A batch is decided purely (`decide`): from the durable state of the keys it concerns, and the calls in their
order, to the rows to write. Then it is written. When that fails the whole batch fails, and what is cached of
its keys is forgotten, since nobody knows whether a COMMIT that failed has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import aiosqlite

from gateway.core.job import Job
from gateway.stores.base import LAZY_FLUSH_S, StoreUnavailable
from gateway.stores.job_base import JobChange
from gateway.stores.job_rules import JobRule
from gateway.stores.rules import FLOORLESS_KEPT, HISTORY_KEPT, handed_over, shadowed, storable
from gateway.stores.sqlite import job_statements as job_sql
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.cache import ReadThrough
from gateway.stores.sqlite.database import unavailable
from gateway.stores.sqlite.lazy import MAX_WAITING, LazyBatch, LazyWrites
from gateway.stores.sqlite.outbox_rows import OutboxRows
from gateway.stores.values import Event, Fence

T = TypeVar("T")

CHECK_TIMEOUT_S = 5.0
"""A durable write that takes longer is as good as none."""

_SELECTED_AT_ONCE = 256
_PRUNE_EVERY = 256
"""After so many events their keys are pruned: a history may be so much longer than HISTORY_KEPT."""


@dataclass(slots=True)
class FenceChange:
    """A decision on one fence key; answered with the key's state after the batch."""

    key: str
    decide: Callable[[Fence], Fence]
    event: Event | None
    """Recorded if `decide` changes the state; its token is the new floor where it names none."""
    rows: Callable[[Fence], Iterable[tuple[str, sql.Values]]] | None
    """Statements that are run, in order and in the same transaction, if (and only if) `decide` changes the state: given
    the new one."""
    answer: asyncio.Future[Fence]


@dataclass(slots=True)
class JobDecision:
    """A decision on a key's fence and its job together; answered with what became of it."""

    key: str
    decide: JobRule
    answer: asyncio.Future[JobChange]


@dataclass(slots=True)
class RowChange:
    """Any other change; answered with what `write` returned."""

    write: Callable[[aiosqlite.Connection], Awaitable[Any]]
    committed: Callable[[Any], None]
    """Called with the result once it is durable, before anybody is answered."""
    answer: asyncio.Future[Any] | None
    """None where nobody waits for it."""


@dataclass(slots=True)
class _Decided:
    fences: dict[str, Fence]
    """The state of every key of the batch."""
    changed: list[Fence]
    events: list[Event]
    rows: list[tuple[str, sql.Values]]
    jobs: list[tuple[Job | None, Job | None]]
    """Those that changed: before and after."""
    job_changes: list[JobChange]
    """What became of each decision on a job, in their order."""


def decide(
    before: dict[str, Fence],
    jobs_before: dict[str, Job | None],
    changes: Iterable[FenceChange | JobDecision],
    lazy: LazyBatch,
    at: float,
) -> _Decided:
    """What is to be written for `lazy` and then `changes`, in order, on keys whose state is `before`, and whose jobs
    are `jobs_before`."""
    fences, jobs = dict(before), dict(jobs_before)
    decided = _Decided(fences, [], list(lazy.events), [], [], [])
    for key, token in lazy.handovers.items():
        fences[key] = handed_over(fences[key], token)
    for key, token in lazy.shadows.items():
        fences[key] = shadowed(fences[key], token)
    for change in changes:
        old = fences[change.key]
        if isinstance(change, JobDecision):
            outcome = change.decide(old, jobs[change.key])
            decided.job_changes.append(outcome)
            fences[change.key], jobs[change.key] = outcome.fence, outcome.job
            if outcome.event is not None:
                decided.events.append(storable(outcome.event)._replace(at=at))
            continue
        fences[change.key] = new = change.decide(old)
        if new is old:
            continue
        if change.event is not None:
            decided.events.append(change.event._replace(at=at, token=change.event.token or new.floor))
        if change.rows is not None:
            decided.rows.extend(change.rows(new))
    decided.changed = [fence for key, fence in fences.items() if fence is not before[key]]
    decided.jobs = [(jobs_before[key], job) for key, job in jobs.items() if job is not jobs_before[key]]
    return decided


class Writer:
    """The one connection that writes, and what waits for it. All methods belong to one event loop.

    What waits while the disk hangs is bounded. Callers may go away and come again, as those do whose time is out, and
    what they have asked for stays: it is made when the disk goes on."""

    def __init__(
        self,
        connection: aiosqlite.Connection,
        fences: ReadThrough[str, Fence],
        lazy: LazyWrites,
        *,
        outbox: OutboxRows,
        in_place: Callable[[], None],
        on_failure: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`in_place` raises `StoreUnavailable` where what is committed would be gone with this process. `on_failure` is
        called when a batch with changes of rows has failed, before its callers are told."""
        self._connection = connection
        self._fences = fences
        self._lazy = lazy
        self._outbox = outbox
        self._in_place = in_place
        self._on_failure = on_failure
        self._clock = clock
        self._waiting: list[FenceChange | JobDecision | RowChange] = []
        self._task: asyncio.Task[None] | None = None
        self._began_at = 0.0
        """When the last batch did, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._keys_to_prune: dict[str, None] = {}
        self._events_since_prune = 0
        self._floorless_pruned_to: int | None = None
        """Up to this serial nothing is left to forget of keys without a floor; None: not known yet in this run."""

    async def change_fence(
        self,
        key: str,
        rule: Callable[[Fence], Fence],
        event: Event | None,
        rows: Callable[[Fence], Iterable[tuple[str, sql.Values]]] | None = None,
    ) -> Fence:
        """Apply `rule` to the durable state of `key`, once; answer the state once it is durable. `rows`: see
        `FenceChange`."""
        answer: asyncio.Future[Fence] = asyncio.get_running_loop().create_future()
        self._submit(FenceChange(key, rule, event, rows, answer))
        return await answer

    async def change_job(self, key: str, rule: JobRule) -> JobChange:
        """Apply `rule` to the durable state of `key` and of its job, once; answer what became of it once that is
        durable."""
        answer: asyncio.Future[JobChange] = asyncio.get_running_loop().create_future()
        self._submit(JobDecision(key, rule, answer))
        return await answer

    async def change_rows(
        self,
        write: Callable[[aiosqlite.Connection], Awaitable[T]],
        committed: Callable[[T], None] = lambda _: None,
    ) -> T:
        """Run `write` in the next transaction; answer what it returned once that is durable."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(RowChange(write, committed, answer))
        return await answer

    def flush_soon(self) -> None:
        """Have what is lazy written within LAZY_FLUSH_S; also after a failure, until it succeeds."""
        if self._timer is None and (self._lazy or self._outbox):
            self._timer = asyncio.get_running_loop().call_later(LAZY_FLUSH_S, self._flush)

    async def finish(self) -> None:
        """Answer all that waits. What is lazy and cannot be written stays in `lazy`."""
        self._flush()
        while self._task is not None:
            await asyncio.wait([self._task])
        self._stop_timer()

    def _submit(self, change: FenceChange | JobDecision | RowChange) -> None:
        """Raises `StoreUnavailable` at the bound."""
        if len(self._waiting) >= MAX_WAITING and self._hangs():
            raise StoreUnavailable(f"{MAX_WAITING} changes wait for the disk: it hangs, or is much too slow")
        self._waiting.append(change)
        self._start_committing()

    def _hangs(self) -> bool:
        """Whether the batch that is under way takes too long; many may come at once that nothing is wrong with."""
        return asyncio.get_running_loop().time() - self._began_at >= CHECK_TIMEOUT_S

    def _flush(self) -> None:
        self._stop_timer()
        self._flush_due = True
        self._start_committing()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_committing(self) -> None:
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._began_at = loop.time()
            self._task = loop.create_task(self._commit_what_waits())

    async def _commit_what_waits(self) -> None:
        try:
            while self._waiting or self._flush_due:
                self._flush_due = False
                batch, self._waiting = self._waiting, []
                self._began_at = asyncio.get_running_loop().time()
                await self._commit(batch)
        finally:
            self._task = None
            self.flush_soon()

    async def _commit(self, batch: list[FenceChange | JobDecision | RowChange]) -> None:
        self._stop_timer()
        lazy = self._lazy.take()
        changes = [change for change in batch if not isinstance(change, RowChange)]
        row_changes = [change for change in batch if isinstance(change, RowChange)]
        keys = {*lazy.handovers, *lazy.shadows, *(change.key for change in changes)}
        try:
            before = await self._states(keys)
            jobs = await self._jobs({change.key for change in changes if isinstance(change, JobDecision)})
            decided = decide(before, jobs, changes, lazy, self._clock())
            results = await self._write(decided, row_changes)
        except BaseException as error:
            await self._roll_back()
            self._lazy.failed(lazy)
            self._outbox.failed()
            for key in keys:
                self._fences.forget(key)
            if row_changes or any(isinstance(change, FenceChange) and change.rows for change in changes):
                self._on_failure()
            for change in batch:
                _fail(change.answer, unavailable(error))
            if not isinstance(error, Exception):
                raise
            return
        self._lazy.committed(lazy)
        self._outbox.committed()
        for key, fence in decided.fences.items():
            self._fences.put(key, fence)
        for row_change, result in zip(row_changes, results, strict=True):
            row_change.committed(result)
            _answer(row_change.answer, result)
        outcomes = iter(decided.job_changes)
        for change in changes:
            _answer(change.answer, next(outcomes) if isinstance(change, JobDecision) else decided.fences[change.key])
        self._prune_sometimes(decided.events)

    async def _states(self, keys: set[str]) -> dict[str, Fence]:
        """The durable state of `keys`: this connection alone writes, so the cache is as good as the table."""
        states: dict[str, Fence] = {}
        unknown: list[str] = []
        for key in keys:
            fence = self._fences.get(key)
            if fence is None:
                fence = Fence(key)
                unknown.append(key)
            states[key] = fence
        for row in await self._select(sql.fences_of, unknown):
            fence = sql.fence_of(row)
            states[fence.key] = fence
        return states

    async def _jobs(self, keys: set[str]) -> dict[str, Job | None]:
        """The durable jobs of `keys`."""
        jobs: dict[str, Job | None] = dict.fromkeys(keys)
        for row in await self._select(job_sql.jobs_of, list(keys)):
            job = job_sql.job_of(row)
            jobs[job.key] = job
        return jobs

    async def _select(self, statement_of: Callable[[int], str], keys: list[str]) -> list[sql.Row]:
        """The rows of `keys`. `statement_of` gives the statement for so many."""
        rows: list[sql.Row] = []
        for start in range(0, len(keys), _SELECTED_AT_ONCE):
            chunk = keys[start : start + _SELECTED_AT_ONCE]
            # A power of two, so that few statements are prepared, and each once.
            size = 1 << (len(chunk) - 1).bit_length()
            padded = chunk + chunk[-1:] * (size - len(chunk))
            rows.extend(await self._connection.execute_fetchall(statement_of(size), padded))
        return rows

    async def _write(self, decided: _Decided, row_changes: list[RowChange]) -> list[Any]:
        """Write all in one transaction; answer the results of `row_changes`."""
        if not (decided.changed or decided.jobs or decided.events or row_changes or self._outbox):
            return []
        self._in_place()
        connection = self._connection
        await connection.execute(sql.BEGIN)
        if decided.changed:
            rows = map(sql.row_of_fence, decided.changed)
            cursor = await connection.executemany(sql.WRITE_FENCE, rows)
            if cursor.rowcount != len(decided.changed):
                raise StoreUnavailable("the database holds higher floors than this gateway wrote")
        if decided.jobs:
            await self._write_jobs(decided.jobs)
        if decided.events:
            await connection.executemany(sql.ADD_EVENT, map(sql.row_of_event, decided.events))
        await self._outbox.write(connection, decided.events)
        for statement, same in groupby(decided.rows, itemgetter(0)):
            await connection.executemany(statement, [values for _, values in same])
        results = [await change.write(connection) for change in row_changes]
        await connection.execute(sql.COMMIT)
        return results

    async def _write_jobs(self, jobs: list[tuple[Job | None, Job | None]]) -> None:
        """Part of a transaction. Raises `StoreUnavailable` where a row is not as it was when this was decided."""
        changed: list[sql.Values] = []
        removed: list[sql.Values] = []
        added: list[sql.Row] = []
        for before, after in jobs:
            # A new job may have taken the key of one that was removed in the same batch.
            if before and after and before.serial == after.serial:
                changed.append(job_sql.change_of_job(before, after))
                continue
            if before:
                removed.append(job_sql.this_job(before))
            if after:
                added.append(job_sql.row_of_job(after))
        written = 0
        for statement, rows in ((job_sql.WRITE_JOB, changed), (job_sql.REMOVE_JOB, removed), (job_sql.ADD_JOB, added)):
            if rows:
                written += (await self._connection.executemany(statement, rows)).rowcount
        if written != len(added) + len(changed) + len(removed):
            raise StoreUnavailable("the database holds other jobs than this gateway wrote")

    async def _roll_back(self) -> None:
        # SQLite may have rolled back by itself; and a connection that cannot is asked again before the next.
        with contextlib.suppress(sqlite3.Error, ValueError):
            await self._connection.rollback()

    def _prune_sometimes(self, events: list[Event]) -> None:
        self._keys_to_prune.update(dict.fromkeys(event.key for event in events))
        self._events_since_prune += len(events)
        if self._events_since_prune < _PRUNE_EVERY:
            return
        keys, self._keys_to_prune, self._events_since_prune = self._keys_to_prune, {}, 0
        rows = [{"key": key, "kept": HISTORY_KEPT} for key in keys]

        async def prune(connection: aiosqlite.Connection) -> int:
            await connection.executemany(sql.PRUNE_EVENTS, rows)
            return await self._prune_floorless(connection)

        def pruned(to: int) -> None:
            self._floorless_pruned_to = to

        self._waiting.append(RowChange(prune, pruned, None))

    async def _prune_floorless(self, connection: aiosqlite.Connection) -> int:
        """Answers up to where. An earlier run has stopped a while before the newest event of its own."""
        ((newest,),) = await connection.execute_fetchall(sql.NEWEST_EVENT)
        to = int(newest) - FLOORLESS_KEPT
        after = to - 2 * FLOORLESS_KEPT if self._floorless_pruned_to is None else self._floorless_pruned_to
        await connection.execute(sql.PRUNE_FLOORLESS, {"after": after, "to": to})
        return to


def _answer(answer: asyncio.Future[Any] | None, result: object) -> None:
    if answer is not None and not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any] | None, error: StoreUnavailable) -> None:
    if answer is not None and not answer.done():
        answer.set_exception(error)
