"""What each decision does to a key's fence and its job: pure, and the same in every store.

Who may act for a job, its fence says: `token` holds the key by a delivery while it is the lease that nobody has taken
over, and the job's own token. Each decision that acts for a token asks for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.core import job as life
from gateway.core.job import Completion, Job, JobState, RetryPolicy
from gateway.stores import rules
from gateway.stores.job_base import JobChange
from gateway.stores.values import Event, EventKind, Fence, GrantWanted

JobRule = Callable[[Fence, Job | None], JobChange]


def submitted(fence: Fence, job: Job | None, new: Job, serial: Callable[[], int]) -> JobChange:
    """`new` takes its place in line."""
    if job is not None or fence.completed_token:
        return JobChange(False, fence, job)
    return JobChange(True, fence, replace(new, serial=serial()))


def delivered(
    fence: Fence, job: Job | None, wanted: GrantWanted, event: Event, generation: int, at: float
) -> JobChange:
    """The job runs under a lease that is granted with it."""
    if job is None or job.state is not JobState.WAITING:
        return JobChange(False, fence, job)
    granted = rules.granted(fence, wanted, generation, at)
    if granted is fence:
        return JobChange(False, fence, job)
    told = event._replace(token=granted.floor)
    return JobChange(True, granted, life.delivered(job, granted.floor, wanted.id), told)


def renewed(fence: Fence, job: Job | None, token: int) -> JobChange:
    """A job that ran out runs again, its holder not having been replaced."""
    if job is None or not _holds(fence, job, token) or job.state is JobState.RUNNING:
        return JobChange(False, fence, job)
    return JobChange(True, fence, life.renewed(job))


def lapsed(fence: Fence, job: Job | None, token: int, policy: RetryPolicy) -> JobChange:
    """The delivery has run out."""
    if job is None or job.state is not JobState.RUNNING or job.token != token:
        return JobChange(False, fence, job)
    after = life.lapsed(job, policy)
    return JobChange(True, fence, after, _dead(fence, after, after.error))


def undelivered(fence: Fence, job: Job | None, token: int, available_at: float) -> JobChange:
    """Nobody has been told of the delivery."""
    if job is None or job.state is not JobState.RUNNING or job.token != token:
        return JobChange(False, fence, job)
    return JobChange(True, fence, life.released(job, available_at))


def released(fence: Fence, job: Job | None, token: int, available_at: float, request_id: str) -> JobChange:
    """The job is given back."""
    if job is None or not _holds(fence, job, token):
        return JobChange(False, fence, job)
    event = Event(fence.key, EventKind.RELEASED, token, fence.floor, f"job of {job.queue!r} given back", request_id)
    return JobChange(True, rules.sealed(fence, token), life.released(job, available_at), event)


def failed(
    fence: Fence,
    job: Job | None,
    token: int,
    policy: RetryPolicy,
    now: float,
    error: str,
    retry: bool,
    delay_s: float | None,
) -> JobChange:
    """The attempt has failed."""
    if job is None or not _holds(fence, job, token):
        return JobChange(False, fence, job)
    after = life.failed(job, policy, now, error, retry=retry, delay_s=delay_s)
    told = Event(fence.key, EventKind.FAILED, token, fence.floor, f"attempt {job.attempts}: {error[:200]}")
    return JobChange(True, rules.sealed(fence, token), after, _dead(fence, after, error[:200]) or told)


def completed(
    fence: Fence, job: Job | None, completion: Completion, serial: Callable[[], int], request_id: str
) -> JobChange:
    """The job is done, and its token sealed."""
    after = rules.completed(fence, completion.token)
    if after is fence:
        return JobChange(False, fence, job)
    told = f"job of {job.queue!r}" if job is not None and job.queue is not None else ""
    event = Event(fence.key, EventKind.COMPLETED, completion.token, fence.floor, told, request_id)
    known = job or Job(fence.key, submitted_at=completion.at, serial=serial())
    return JobChange(True, after, life.completed(known, completion), event)


def reopened(fence: Fence, job: Job | None, reason: str) -> JobChange:
    """What is completed or dead waits again."""
    if job is None or job.state not in (JobState.COMPLETED, JobState.DEAD):
        return JobChange(False, fence, job)
    event = Event(fence.key, EventKind.REOPENED, job.token, fence.floor, reason)
    return JobChange(True, rules.reopened(fence), None if job.queue is None else life.reopened(job), event)


def due(fence: Fence, job: Job | None, now: float) -> JobChange:
    """The job's delay is over."""
    if job is None or job.state is not JobState.DELAYED or job.available_at > now:
        return JobChange(False, fence, job)
    return JobChange(True, fence, life.due(job))


def _holds(fence: Fence, job: Job, token: int) -> bool:
    held = fence.held
    return held is not None and held.token == token == job.token


def _dead(fence: Fence, job: Job, why: str) -> Event | None:
    if job.state is not JobState.DEAD:
        return None
    told = f"job of {job.queue!r} after {job.attempts} attempts: {why}"
    return Event(fence.key, EventKind.DEAD_LETTERED, job.token, fence.floor, told)
