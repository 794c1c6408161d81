"""Jobs without a disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from gateway.core.job import Job, JobState
from gateway.stores import job_rules
from gateway.stores.job_base import JobChange, Place, QueueLength
from gateway.stores.job_decisions import JobDecisions
from gateway.stores.values import Fence

Apply = Callable[[str, Callable[[Fence], JobChange]], JobChange]


class MemoryJobs(JobDecisions):
    """Implements `gateway.stores.job_base.JobStore`. `apply` decides on a key's fence, keeps it and records the event;
    StoreUnavailable while the store is closed, which `require_running` raises too."""

    def __init__(
        self,
        apply: Apply,
        require_running: Callable[[], None],
        generation: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(generation, clock)
        self._apply = apply
        self._require_running = require_running
        self._jobs: dict[str, Job] = {}

    async def _change(self, key: str, rule: job_rules.JobRule) -> JobChange:
        change = self._apply(key, lambda fence: rule(fence, self._jobs.get(key)))
        if change.job is not None:
            self._jobs[key] = change.job
        else:
            self._jobs.pop(key, None)
        return change

    async def due(self, now: float, limit: int) -> list[Job]:
        self._require_running()
        delayed = [job for job in self._jobs.values() if job.state is JobState.DELAYED and job.available_at <= now]
        first = sorted(delayed, key=lambda job: job.available_at)[:limit]
        changes = [await self._change(job.key, partial(job_rules.due, now=now)) for job in first]
        return [change.job for change in changes if change.job is not None]

    # --- what is known ----------------------------------------------------------------------------------------

    async def next_due(self) -> float | None:
        self._require_running()
        return min((job.available_at for job in self._jobs.values() if job.state is JobState.DELAYED), default=None)

    async def job(self, key: str) -> Job | None:
        self._require_running()
        return self._jobs.get(key)

    async def waiting(self, queue: str, limit: int) -> list[Place]:
        places = [
            Place(-job.priority, job.serial, job.key)
            for job in await self.jobs(queue, JobState.WAITING, "", len(self._jobs))
        ]
        return sorted(places)[:limit]

    async def running(self, after: str, limit: int) -> list[Job]:
        return await self.jobs(None, JobState.RUNNING, after, limit)

    async def delivered_by(self, delivery: str) -> list[Job]:
        jobs = await self.jobs(None, JobState.RUNNING, "", len(self._jobs))
        return sorted((job for job in jobs if job.delivery == delivery), key=lambda job: job.serial)

    async def jobs(self, queue: str | None, state: JobState | None, after: str, limit: int) -> list[Job]:
        self._require_running()
        asked = [
            job
            for _, job in sorted(self._jobs.items())
            if job.key > after and queue in (None, job.queue) and state in (None, job.state)
        ]
        return asked[:limit]

    async def queues(self) -> list[QueueLength]:
        self._require_running()
        lengths = Counter((job.queue, job.state) for job in self._jobs.values() if job.queue is not None)
        return [QueueLength(queue, state, jobs) for (queue, state), jobs in sorted(lengths.items())]
