"""Jobs without a disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from gateway.core.job import Completion, Job, JobState, RetryPolicy
from gateway.stores import job_rules
from gateway.stores.base import Event, Fence, GrantWanted
from gateway.stores.job_base import JobChange, Place, QueueLength
from gateway.stores.rules import require_text

Apply = Callable[[str, Callable[[Fence], JobChange]], JobChange]


class MemoryJobs:
    """Implements `gateway.stores.job_base.JobStore`. `apply` decides on a key's fence, keeps it and records the event;
    StoreUnavailable while the store is closed, which `require_running` raises too."""

    def __init__(
        self,
        apply: Apply,
        require_running: Callable[[], None],
        generation: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._apply = apply
        self._require_running = require_running
        self._generation = generation
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._highest_serial = 0

    def _serial(self) -> int:
        self._highest_serial += 1
        return self._highest_serial

    def _change(self, key: str, rule: job_rules.JobRule) -> JobChange:
        change = self._apply(key, lambda fence: rule(fence, self._jobs.get(key)))
        if change.job is not None:
            self._jobs[key] = change.job
        else:
            self._jobs.pop(key, None)
        return change

    # --- decisions --------------------------------------------------------------------------------------------

    async def submit(self, job: Job) -> JobChange:
        for text in (job.queue, job.payload):
            require_text(text or "")
        return self._change(job.key, partial(job_rules.submitted, new=job, serial=self._serial))

    async def deliver(self, key: str, wanted: GrantWanted, event: Event) -> JobChange:
        for text in (wanted.holder, wanted.id):
            require_text(text)
        at, generation = self._clock(), self._generation()
        rule = partial(job_rules.delivered, wanted=wanted, event=event, generation=generation, at=at)
        return self._change(key, rule)

    async def renew(self, key: str, token: int) -> JobChange:
        return self._change(key, partial(job_rules.renewed, token=token))

    async def lapse(self, key: str, token: int, policy: RetryPolicy) -> JobChange:
        return self._change(key, partial(job_rules.lapsed, token=token, policy=policy))

    async def undeliver(self, key: str, token: int, available_at: float) -> JobChange:
        return self._change(key, partial(job_rules.undelivered, token=token, available_at=available_at))

    async def release(self, key: str, token: int, available_at: float = 0.0, request_id: str = "") -> JobChange:
        rule = partial(job_rules.released, token=token, available_at=available_at, request_id=request_id)
        return self._change(key, rule)

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
        return self._change(key, rule)

    async def complete(self, key: str, completion: Completion, request_id: str = "") -> JobChange:
        for text in (completion.holder, completion.result or ""):
            require_text(text)
        return self._change(
            key, partial(job_rules.completed, completion=completion, serial=self._serial, request_id=request_id)
        )

    async def reopen(self, key: str, reason: str) -> JobChange:
        return self._change(key, partial(job_rules.reopened, reason=reason))

    async def due(self, now: float, limit: int) -> list[Job]:
        self._require_running()
        delayed = [job for job in self._jobs.values() if job.state is JobState.DELAYED and job.available_at <= now]
        first = sorted(delayed, key=lambda job: job.available_at)[:limit]
        changes = [self._change(job.key, partial(job_rules.due, now=now)) for job in first]
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
