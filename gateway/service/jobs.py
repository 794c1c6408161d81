"""Jobs of queues: submitted, delivered, kept, given back, and what becomes of them when nobody is heard of any more.

A delivery is a lease (`gateway.service.leases`) whose grant and the job's own change are one decision of the store,
taken when a worker is there to be told. Leases tell of their ends; the job follows. All that is kept here can be lost:
a start finds in the store what waits, what runs and what is delayed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from gateway.clock import Clock
from gateway.core.errors import TryAgain
from gateway.core.job import Job, JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.beside import Beside
from gateway.service.deliveries import Deliveries
from gateway.service.job_errors import JobExists, NoJob, NotDelivered, NotEnded, RepeatedSubmission
from gateway.service.leases import Lease, Leases
from gateway.service.queues import QueueRule, QueueRules, Queues
from gateway.service.returns import Returns
from gateway.service.running import Running
from gateway.service.turns import Turns
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.job_base import JobChange, QueueLength
from gateway.stores.values import Event, EventKind, Fence

_log = structlog.get_logger(__name__)

READ_AT_ONCE = 1000
JOB_EVENTS = ("submitted", "lapsed", "undelivered", "released", "failed", "dead", "reopened")
"""What is counted here."""


class Jobs:
    """All jobs of one gateway. All methods belong to one event loop."""

    def __init__(
        self, leases: Leases, store: Store, clock: Clock, rules: QueueRules, *, max_waiting: int = 10_000
    ) -> None:
        """`max_waiting` bounds the workers that wait for a job."""
        self._leases = leases
        self._store = store
        self._clock = clock
        self._rules = rules
        self._queues = Queues(store.jobs.waiting)
        self._running = Running()
        self._turns = Turns()
        self._beside = Beside()
        self.counts: Counter[str] = Counter()
        """What has happened, of `JOB_EVENTS`."""
        self._returns = Returns(
            leases,
            store,
            clock,
            rules,
            queues=self._queues,
            running=self._running,
            turns=self._turns,
            beside=self._beside,
            counts=self.counts,
        )
        self._delays = self._returns.delays
        self.deliveries = Deliveries(
            leases,
            store,
            clock,
            rules,
            queues=self._queues,
            running=self._running,
            max_waiting=max_waiting,
            look_after=self._returns.look_after,
            doubt=self._returns.doubt,
        )
        leases.on_end.append(self._returns.ended)
        leases.on_renewed.append(self._renewed)
        leases.seal = self._seal

    async def start(self) -> None:
        """What an earlier run has left running comes back when its time is over, or at once if it is held no more; what
        it has left delayed, in its time. Raises `StoreUnavailable`."""
        after = ""
        while jobs := await self._store.jobs.running(after, READ_AT_ONCE):
            after = jobs[-1].key
            for job in jobs:
                try:
                    await self._returns.look_after(job)
                except TryAgain as error:
                    raise StoreUnavailable(error.message) from error
        await self._delays.look()

    async def stop(self) -> None:
        """Nobody waits for a job any more, and nothing is looked after."""
        self.drain()
        await self._delays.stop()
        await self._beside.stop()
        await self.deliveries.stop()

    def drain(self) -> None:
        """Workers that wait are told that there is nothing."""
        self._queues.dismiss()

    @property
    def waiting(self) -> int:
        """How many workers wait for a job now."""
        return self._queues.workers

    @property
    def running(self) -> int:
        """How many jobs are delivered now."""
        return len(self._running)

    # --- submit and look --------------------------------------------------------------------------------------

    async def submit(
        self,
        queue: str,
        key: FencingKey,
        *,
        payload: str | None = None,
        priority: int = 0,
        delay_s: float = 0.0,
        deduplicate: bool = True,
        idempotency_key: str = "",
    ) -> tuple[Job, bool]:
        """The job of `key`, and whether it is new: submitted by this call, or by one of the same idempotency key.
        `payload` is JSON text. One that the queue has already, or that is done, is answered as it is: with
        `deduplicate` False it is refused, and one of another queue always. Raises `UnknownQueue`, `JobExists`,
        `RepeatedSubmission`, `StoreUnavailable`."""
        self._rules.of(queue)
        new = Job(key, queue, JobState.WAITING, priority, payload=payload, submission=idempotency_key)
        return await self._beside.to_its_end(self._submit(queue, new, delay_s, deduplicate))

    async def _submit(self, queue: str, new: Job, delay_s: float, deduplicate: bool) -> tuple[Job, bool]:
        key = FencingKey(new.key)
        new = replace(new, submitted_at=self._clock.wall())
        if delay_s:
            new = replace(new, state=JobState.DELAYED, available_at=self._delays.now() + delay_s)
        change = await self._returns.decided(key, self._store.jobs.submit(new))
        job = change.job
        assert job is not None, "a completed key has a job"
        if change.done:
            self.counts["submitted"] += 1
            self._returns.returned(job)
        elif new.submission and (job.queue, job.submission) == (queue, new.submission):
            if (job.payload, job.priority) != (new.payload, new.priority):
                raise RepeatedSubmission(job)
            return job, True
        elif not deduplicate or job.queue not in (None, queue):
            raise JobExists(job)
        return job, change.done

    async def job(self, key: FencingKey) -> Job:
        """Raises `NoJob`, `StoreUnavailable`."""
        job = await self._store.jobs.job(key)
        if job is None:
            raise NoJob(key)
        return job

    async def lease_of(self, job: Job) -> Lease | None:
        """The lease that a job runs under. Raises `TryAgain`."""
        if job.state is not JobState.RUNNING:
            return None
        lease = await self._leases.lease_of(FencingKey(job.key))
        return lease if lease is not None and lease.token == job.token else None

    async def listed(self, queue: str | None, state: JobState | None, after: str, limit: int) -> list[Job]:
        """Jobs by key. Raises `StoreUnavailable`."""
        return await self._store.jobs.jobs(queue, state, after, limit)

    async def lengths(self) -> list[QueueLength]:
        """All queues that have jobs. Raises `StoreUnavailable`."""
        return await self._store.jobs.queues()

    def rule_of(self, queue: str) -> QueueRule:
        """Raises `UnknownQueue`."""
        return self._rules.of(queue)

    # --- keep, and give back ------------------------------------------------------------------------------------

    async def extend(
        self, key: FencingKey, token: Token, visibility_s: float | None = None, request_id: str = ""
    ) -> Lease:
        """Its time (or `visibility_s`) from now on. A delivery that has run out and that nobody has replaced goes on.
        Raises `LeaseError`, `Malformed` (TokenNotIssued), `TryAgain`."""
        return await self._leases.renew(key, token, ttl_s=visibility_s, request_id=request_id)

    async def _renewed(self, key: FencingKey, token: Token) -> None:
        """A lease that had run out goes on, and so does its job."""
        await self._turns.to_its_end(key, self._beside, lambda: self._run_again(key, token))

    async def _run_again(self, key: FencingKey, token: Token) -> None:
        change = await self._returns.decided(key, self._store.jobs.renew(key, token))
        if change.job is not None and change.job.state is JobState.RUNNING and change.job.token == token:
            self._running.note(change.job)
            # A slow store may have let it end again, before anybody knew that it ran.
            self._returns.look_again(key)

    async def release(self, key: FencingKey, token: Token, delay_s: float = 0.0) -> Job:
        """Give the job back unfinished, to be delivered again at once, or after `delay_s`; no attempt counts. Raises
        `LeaseError`, `NotDelivered`, `Malformed` (TokenNotIssued), `TryAgain`, `StoreUnavailable`."""
        at = self._delays.now() + delay_s if delay_s else 0.0
        return await self._give_up(key, token, "released", lambda _: self._store.jobs.release(key, token, at))

    async def fail(
        self, key: FencingKey, token: Token, error: str = "", *, retry: bool = True, delay_s: float | None = None
    ) -> Job:
        """The attempt has failed: there is another, later, unless it was the last or `retry` is False. Raises as
        `release` does."""

        async def call(queue: str | None) -> JobChange:
            policy = self._rules.policy(queue)
            return await self._store.jobs.fail(
                key, token, policy, now=self._delays.now(), error=error, retry=retry, delay_s=delay_s
            )

        return await self._give_up(key, token, "failed", call)

    async def _give_up(
        self, key: FencingKey, token: Token, how: str, call: Callable[[str | None], Awaitable[JobChange]]
    ) -> Job:
        return await self._turns.to_its_end(key, self._beside, lambda: self._given_back(key, token, how, call))

    async def _given_back(
        self, key: FencingKey, token: Token, how: str, call: Callable[[str | None], Awaitable[JobChange]]
    ) -> Job:
        job = self._running.of(key, token) or await self._store.jobs.job(key)
        change: JobChange | None = None

        async def seal() -> Fence:
            nonlocal change
            change = await self._returns.decided(key, call(None if job is None else job.queue))
            return change.fence

        await self._leases.end(key, token, seal)
        assert change is not None
        if not change.done or change.job is None:
            self.sealed(key, token)
            raise NotDelivered(key, token)
        self._given_up(key, token, change.job, how)
        return change.job

    async def _seal(self, key: FencingKey, token: Token, event: Event) -> Fence:
        """A lease is given up: if a job runs under it, so is that, in the same transaction."""
        if self._running.of(key, token) is None:
            return await self._store.seal(key, token, event)
        change = await self._returns.decided(key, self._store.jobs.release(key, token, request_id=event.request_id))
        if not change.done or change.job is None:
            return await self._store.seal(key, token, event)
        self._given_up(key, token, change.job, "released")
        return change.fence

    def _given_up(self, key: FencingKey, token: Token, job: Job, how: str) -> None:
        self._running.forget(key, token)
        self.counts[how] += 1
        self._returns.returned(job)
        self.deliveries.free(key)

    def completed(self, key: FencingKey, token: Token) -> None:
        """The job is done, by whatever way."""
        self._running.forget(key, token)
        self.deliveries.free(key)

    def sealed(self, key: FencingKey, token: Token) -> None:
        """Somebody else has sealed the token at the very moment at which its holder ended it: nobody has been told of
        that end, since this one was coming."""
        self._returns.ended(key, token, EventKind.SEALED)
        self.deliveries.free(key)

    # --- again ------------------------------------------------------------------------------------------------

    async def reopen(self, key: FencingKey, reason: str) -> Job | None:
        """Have a completed or dead job done again; None where it belonged to no queue, so that the key is as if it had
        never been completed. Raises `NoJob`, `NotEnded`, `StoreUnavailable`."""
        return await self._beside.to_its_end(self._reopen(key, reason))

    async def _reopen(self, key: FencingKey, reason: str) -> Job | None:
        change = await self._returns.decided(key, self._store.jobs.reopen(key, reason))
        if not change.done:
            if change.job is None:
                raise NoJob(key)
            raise NotEnded(change.job)
        self.counts["reopened"] += 1
        _log.warning("job-reopened", fence_key=key, reason=reason)
        if change.job is not None:
            self._returns.returned(change.job)
        return change.job

    async def redrive(self, queue: str, reason: str, limit: int, may_have: Callable[[str], bool]) -> int:
        """Reopen dead jobs of a queue whose keys `may_have` takes, at most `limit`; answers how many. Raises
        `StoreUnavailable`."""
        reopened, after = 0, ""
        while reopened < limit:
            dead = await self._store.jobs.jobs(queue, JobState.DEAD, after, min(limit - reopened, READ_AT_ONCE))
            if not dead:
                break
            after = dead[-1].key
            outcomes = await asyncio.gather(
                *(self.reopen(FencingKey(job.key), reason) for job in dead if may_have(job.key)), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, BaseException) and not isinstance(outcome, NoJob | NotEnded):
                    raise outcome
            reopened += sum(not isinstance(outcome, BaseException) for outcome in outcomes)
        return reopened
