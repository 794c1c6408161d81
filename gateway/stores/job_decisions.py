"""The decisions on jobs that every store takes alike: what is asked is checked, and its rule applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from gateway.core.job import Completion, Job, RetryPolicy
from gateway.stores import job_rules
from gateway.stores.job_base import JobChange
from gateway.stores.rules import require_text
from gateway.stores.values import Event, GrantWanted


class JobDecisions(ABC):
    """The part of `gateway.stores.job_base.JobStore` that changes one job; how it is made durable, a store says."""

    def __init__(self, generation: Callable[[], int], clock: Callable[[], float]) -> None:
        """`generation` is that of the store's tokens (R10), `clock` tells seconds since the epoch."""
        self._generation = generation
        self._clock = clock
        self._highest_serial = 0

    @abstractmethod
    async def _change(self, key: str, rule: job_rules.JobRule) -> JobChange:
        """Decide by `rule` on the key's fence and job as they are, and keep both, and the event, in one transaction.
        Raises `StoreUnavailable`."""

    def _serial(self) -> int:
        self._highest_serial += 1
        return self._highest_serial

    async def submit(self, job: Job) -> JobChange:
        for text in (job.queue, job.payload, job.submission):
            require_text(text or "")
        return await self._change(job.key, partial(job_rules.submitted, new=job, serial=self._serial))

    async def deliver(self, key: str, wanted: GrantWanted, event: Event) -> JobChange:
        for text in (wanted.holder, wanted.id):
            require_text(text)
        at, generation = self._clock(), self._generation()
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
