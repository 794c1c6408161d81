"""The jobs of the SQLite store: each decision is part of a group commit, together with its key's fence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.core.job import Completion, Job, JobState, RetryPolicy
from gateway.stores import job_rules
from gateway.stores.base import Authority, Event, Fence, GrantWanted
from gateway.stores.job_base import JobChange, Place, QueueLength
from gateway.stores.rules import require_text
from gateway.stores.sqlite import job_statements as sql
from gateway.stores.sqlite.statements import Row, Values
from gateway.stores.sqlite.writer import Writer

Fetch = Callable[[str, Values], Awaitable[list[Row]]]


class SqliteJobs:
    """Implements `gateway.stores.job_base.JobStore`."""

    def __init__(
        self,
        writer: Callable[[], Writer],
        fetch: Fetch,
        authority: Callable[[], Authority],
        clock: Callable[[], float],
    ) -> None:
        """`fetch` reads what is committed."""
        self._writer = writer
        self._fetch = fetch
        self._authority = authority
        self._clock = clock
        self._highest_serial = 0

    async def start(self) -> None:
        """Before the first decision of a run."""
        ((self._highest_serial,),) = await self._fetch(sql.HIGHEST_SERIAL, ())

    def _serial(self) -> int:
        self._highest_serial += 1
        return self._highest_serial

    async def _change(self, key: str, rule: job_rules.JobRule) -> JobChange:
        return await self._writer().change_job(require_text(key), rule)

    # --- decisions --------------------------------------------------------------------------------------------

    async def submit(self, job: Job) -> JobChange:
        for text in (job.queue, job.payload):
            require_text(text or "")
        return await self._change(job.key, partial(job_rules.submitted, new=job, serial=self._serial))

    async def deliver(self, key: str, wanted: GrantWanted, event: Event) -> JobChange:
        for text in (wanted.holder, wanted.id):
            require_text(text)
        at, generation = self._clock(), self._authority().generation
        rule = partial(job_rules.delivered, wanted=wanted, event=event, generation=generation, at=at)
        return await self._change(key, rule)

    async def renew(self, key: str, token: int) -> JobChange:
        return await self._change(key, partial(job_rules.renewed, token=token))

    async def lapse(self, key: str, token: int, policy: RetryPolicy) -> JobChange:
        return await self._change(key, partial(job_rules.lapsed, token=token, policy=policy))

    async def undeliver(self, key: str, token: int, available_at: float) -> JobChange:
        return await self._change(key, partial(job_rules.undelivered, token=token, available_at=available_at))

    async def release(self, key: str, token: int, available_at: float = 0.0, request_id: str = "") -> JobChange:
        rule = partial(job_rules.released, token=token, available_at=available_at, request_id=request_id)
        return await self._change(key, rule)

    async def fail(
        self,
        key: str,
        token: int,
        policy: RetryPolicy,
        *,
        now: float,
        error: str,
        retry: bool = True,
        delay_s: float | None = None,
    ) -> JobChange:
        require_text(error)
        rule = partial(job_rules.failed, token=token, policy=policy, now=now, error=error, retry=retry, delay_s=delay_s)
        return await self._change(key, rule)

    async def complete(self, key: str, completion: Completion, request_id: str = "") -> JobChange:
        for text in (completion.holder, completion.result or ""):
            require_text(text)
        return await self._change(
            key, partial(job_rules.completed, completion=completion, serial=self._serial, request_id=request_id)
        )

    async def reopen(self, key: str, reason: str) -> JobChange:
        return await self._change(key, partial(job_rules.reopened, reason=reason))

    async def due(self, now: float, limit: int) -> list[Job]:
        keys = [key for (key,) in await self._fetch(sql.DUE, (now, limit))]

        def rule(fence: Fence, job: Job | None) -> JobChange:
            return job_rules.due(fence, job, now)

        changes = await asyncio.gather(*(self._change(key, rule) for key in keys))
        return [change.job for change in changes if change.done and change.job is not None]

    # --- what is known ----------------------------------------------------------------------------------------

    async def next_due(self) -> float | None:
        ((at,),) = await self._fetch(sql.NEXT_DUE, ())
        return None if at is None else float(at)

    async def job(self, key: str) -> Job | None:
        for row in await self._fetch(sql.JOB, (key,)):
            return sql.job_of(row)
        return None

    async def waiting(self, queue: str, limit: int) -> list[Place]:
        return [sql.place_of(row) for row in await self._fetch(sql.WAITING, (queue, limit))]

    async def running(self, after: str, limit: int) -> list[Job]:
        return [sql.job_of(row) for row in await self._fetch(sql.RUNNING, (after, limit))]

    async def delivered_by(self, delivery: str) -> list[Job]:
        return [sql.job_of(row) for row in await self._fetch(sql.DELIVERED_BY, (delivery,))]

    async def jobs(self, queue: str | None, state: JobState | None, after: str, limit: int) -> list[Job]:
        values = {"queue": queue, "state": state and state.value, "after": after, "limit": limit}
        statement = sql.jobs(queue=queue is not None, state=state is not None)
        return [sql.job_of(row) for row in await self._fetch(statement, values)]

    async def queues(self) -> list[QueueLength]:
        return [sql.length_of(row) for row in await self._fetch(sql.QUEUES, ())]
