"""What becomes of jobs without a word from their workers: a lease ends, a delay is over, a store fails in between.

Leases tell of their ends, and the job follows. Where a store has failed, nobody knows what it had decided: it is asked
until it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError
from gateway.core.job import Job, JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.beside import Beside
from gateway.service.delays import Delays
from gateway.service.leases import Lease, Leases
from gateway.service.queues import QueueRules, Queues
from gateway.service.running import Running
from gateway.service.turns import Turns
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.job_base import JobChange, Place
from gateway.stores.values import EventKind

_log = structlog.get_logger(__name__)

AGAIN_S = 1.0
"""After a store that could not do its part in what nobody waits for."""
UNDELIVERED_S = 5.0
"""How long a job stands aside whose hand-over was still pending when nobody asked for it any more."""


class Returns:
    """The jobs of one gateway that come back to their queues, or may."""

    def __init__(
        self,
        leases: Leases,
        store: Store,
        clock: Clock,
        rules: QueueRules,
        *,
        queues: Queues,
        running: Running,
        turns: Turns,
        beside: Beside,
        counts: Counter[str],
    ) -> None:
        """`beside` is where all of it runs, and `counts` where it is counted (`gateway.service.jobs.JOB_EVENTS`)."""
        self._leases = leases
        self._store = store
        self._rules = rules
        self._queues = queues
        self._running = running
        self._turns = turns
        self._beside = beside
        self._counts = counts
        self._doubtful: set[FencingKey] = set()
        """Jobs that somebody is about to ask the store about."""
        self.delays = Delays(store.jobs, clock, self.returned, queues.doubt)

    def ended(self, key: FencingKey, token: Token, how: EventKind) -> None:
        """A lease has ended that its holder has not given up."""
        if (job := self._running.forget(key, token)) is not None:
            self._beside.run(self._lapse(key, job, how))

    async def _lapse(self, key: FencingKey, job: Job, how: EventKind) -> None:
        token = Token(job.token)
        while True:
            try:
                async with self._turns.of(key):
                    lease = await self._leases.lease_of(key)
                    if lease is not None and lease.token == token and lease.expires_in_s > 0:
                        self._running.note(job)  # its holder has been heard of meanwhile
                        return
                    if how is EventKind.LAPSED:
                        change = await self._store.jobs.undeliver(key, token, self.delays.now() + UNDELIVERED_S)
                    else:
                        change = await self._store.jobs.lapse(key, token, self._rules.policy(job.queue))
                break
            except (StoreUnavailable, FenceError) as error:
                _log.warning("job-not-returned", fence_key=key, token=token, reason=str(error))
                await asyncio.sleep(AGAIN_S)
        if change.done and change.job is not None:
            self._counts["undelivered" if how is EventKind.LAPSED else "lapsed"] += 1
            self.returned(change.job)
        else:
            self.doubt(key)  # it may have been done by an attempt that failed

    async def look_after(self, job: Job) -> Lease | None:
        """The job runs: it comes back when its lease ends. Answers that; None if it is over, so that the job comes back
        at once. Raises `TryAgain`."""
        key = FencingKey(job.key)
        if not self._running.note(job):
            return None  # delivered again since the job was read
        try:
            lease = await self._leases.lease_of(key)
        except BaseException:
            self._running.forget(key, job.token)
            raise
        if lease is None or lease.token != job.token:
            self.ended(key, Token(job.token), EventKind.SEALED)
            return None
        if not lease.expires_in_s:
            self.ended(key, lease.token, EventKind.EXPIRED)  # that will not be told again
        return lease

    def doubt(self, key: FencingKey) -> None:
        """The store has failed, and may have changed the job of `key` all the same."""
        self._queues.doubt()
        self.look_again(key)

    def look_again(self, key: FencingKey) -> None:
        """Find out, in its turn, what the store says of the job of `key`; once, however many want to know."""
        if key not in self._doubtful:
            self._doubtful.add(key)
            self._beside.run(self._find_out(key))

    async def _find_out(self, key: FencingKey) -> None:
        while True:
            try:
                async with self._turns.of(key):
                    self._doubtful.discard(key)  # what is doubted from now on is looked at once more
                    await self._take_note(key)
            except (StoreUnavailable, FenceError) as error:
                _log.warning("job-not-looked-after", fence_key=key, reason=str(error))
                if key in self._doubtful:
                    return
                self._doubtful.add(key)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _take_note(self, key: FencingKey) -> None:
        """Of what the store says of the job. Raises `StoreUnavailable`, `TryAgain`."""
        job = await self._store.jobs.job(key)
        if job is None:
            return
        if job.state is JobState.RUNNING:
            # Also where it is known to run: a repeated call may have said so whose lease could not be read.
            await self.look_after(job)
            return
        self._running.forget(key, job.token)
        if job.state is JobState.DELAYED:
            self.delays.look_at(job.available_at)

    async def decided(self, key: FencingKey, decision: Awaitable[JobChange]) -> JobChange:
        """What the store decides. Raises `StoreUnavailable`: then it is found out what it had decided by then."""
        try:
            return await decision
        except StoreUnavailable:
            self.doubt(key)
            raise

    def returned(self, job: Job) -> None:
        """The job waits, is delayed, or is dead."""
        assert job.queue is not None
        if job.state is JobState.WAITING:
            self._queues.add(job.queue, Place(-job.priority, job.serial, job.key))
        elif job.state is JobState.DELAYED:
            self.delays.look_at(job.available_at)
        elif job.state is JobState.DEAD:
            self._counts["dead"] += 1
            _log.warning("job-dead", fence_key=job.key, queue=job.queue, attempts=job.attempts, error=job.error)
