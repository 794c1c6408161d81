"""What the gateway asks of its store for jobs: whole decisions on a key's fence and its job together.

As in `gateway.stores.base`, a method that returns has made its effect durable; every method raises `StoreUnavailable`.
Each decision is taken once, on what is durable at that moment; one that does not apply changes nothing, and the state
that is answered tells why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.core.job import Completion, Job, JobState, RetryPolicy
from gateway.stores.values import Event, Fence, GrantWanted


@dataclass(frozen=True, slots=True)
class JobChange:
    """What became of a decision on a key."""

    done: bool
    """False: it did not apply, and nothing has changed."""
    fence: Fence
    """The key's state after it."""
    job: Job | None
    """The same of its job; None: there is none."""
    event: Event | None = None
    """What was recorded in the same transaction."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a job that waits stands in its queue: the lowest is delivered first."""

    precedence: int
    """Minus its priority."""
    serial: int
    key: str


@dataclass(frozen=True, slots=True)
class QueueLength:
    """How many jobs of a queue are in a state."""

    queue: str
    state: JobState
    jobs: int


class JobStore(Protocol):
    """Jobs, durable."""

    async def submit(self, job: Job) -> JobChange:
        """Add a job; its serial is given here. Not done where its key has one already, or has been completed."""
        ...

    async def deliver(self, key: str, wanted: GrantWanted, event: Event) -> JobChange:
        """Grant a lease on the key as `Store.grant` does, and have its job run under it. Not done where the job does
        not wait, or no lease can be granted. `event` is recorded if it was, with its token."""
        ...

    async def renew(self, key: str, token: int) -> JobChange:
        """Have a job run again that ran out under `token`, while that still holds the key. Not done where it runs."""
        ...

    async def lapse(self, key: str, token: int, policy: RetryPolicy) -> JobChange:
        """The delivery under `token` has run out: the job waits again, or is dead. The token is not sealed. Not done
        where it does not run under `token`."""
        ...

    async def undeliver(self, key: str, token: int, available_at: float) -> JobChange:
        """The delivery under `token` has never been told: no attempt counts, and the job is due at `available_at`,
        seconds since the epoch. Not done where it does not run under `token`."""
        ...

    async def release(self, key: str, token: int, available_at: float = 0.0, request_id: str = "") -> JobChange:
        """Give the job back and seal `token`: no attempt counts. Not done where `token` does not hold the key by a
        delivery. `available_at`: seconds since the epoch; 0 is at once."""
        ...

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
        """The attempt has failed: seal `token`; the job waits for its next, or is dead. Not done as with `release`."""
        ...

    async def complete(self, key: str, completion: Completion, request_id: str = "") -> JobChange:
        """Record that the job is done, and seal the token (R3). A key without a job gets one, of no queue. Not done
        where the token does not hold the floor or is sealed, or where the key is completed."""
        ...

    async def reopen(self, key: str, reason: str) -> JobChange:
        """A completed or dead job waits again; a completed key without a queue is as if it had never been completed.
        Not done where it is neither."""
        ...

    async def due(self, now: float, limit: int) -> list[Job]:
        """Have jobs wait whose delay is over at `now`, seconds since the epoch, at most `limit`; answers them."""
        ...

    async def next_due(self) -> float | None:
        """When the next delay is over, seconds since the epoch; None if no job is delayed."""
        ...

    async def job(self, key: str) -> Job | None:
        """The job of a key."""
        ...

    async def waiting(self, queue: str, limit: int) -> list[Place]:
        """The first `limit` jobs in line."""
        ...

    async def running(self, after: str, limit: int) -> list[Job]:
        """Jobs that run, in the order of their keys, after the key `after`."""
        ...

    async def delivered_by(self, delivery: str) -> list[Job]:
        """The jobs that run by a delivery."""
        ...

    async def jobs(self, queue: str | None, state: JobState | None, after: str, limit: int) -> list[Job]:
        """Jobs in the order of their keys, after the key `after`: of one queue or of all, in one state or in any."""
        ...

    async def queues(self) -> list[QueueLength]:
        """All queues that have jobs, and how many."""
        ...
