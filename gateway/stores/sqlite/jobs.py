"""The jobs of the SQLite store: each decision is part of a group commit, together with its key's fence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.core.job import Job, JobState
from gateway.stores import job_rules
from gateway.stores.job_base import JobChange, Place, QueueLength
from gateway.stores.job_decisions import JobDecisions
from gateway.stores.rules import require_text
from gateway.stores.sqlite import job_statements as sql
from gateway.stores.sqlite.statements import Row, Values
from gateway.stores.sqlite.writer import Writer
from gateway.stores.values import Fence

Fetch = Callable[[str, Values], Awaitable[list[Row]]]


class SqliteJobs(JobDecisions):
    """Implements `gateway.stores.job_base.JobStore`."""

    def __init__(
        self,
        writer: Callable[[], Writer],
        fetch: Fetch,
        generation: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`fetch` reads what is committed."""
        super().__init__(generation, clock)
        self._writer = writer
        self._fetch = fetch

    async def start(self) -> None:
        """Before the first decision of a run."""
        ((self._highest_serial,),) = await self._fetch(sql.HIGHEST_SERIAL, ())

    async def _change(self, key: str, rule: job_rules.JobRule) -> JobChange:
        return await self._writer().change_job(require_text(key), rule)

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
