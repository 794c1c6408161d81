"""The life of one job, and what each event does to it.

A job of a queue waits, is delivered (each time under a lease with a fresh, higher token), and ends completed or dead:

    WAITING ── deliver ──> RUNNING ── complete ──> COMPLETED ── reopen ──> WAITING
       ^  ^                   ├─ give back, lapse ──> WAITING
       │  └─ due ── DELAYED <─┼─ postpone
       └─ reopen ─── DEAD <───┴─ bury

The state says whether the queue may deliver the job; who may act for it says the fence alone. So a delivery that ran
out and that nobody has replaced may still be extended (`RENEW`) or completed with its token, also where the job waits
again or counts as dead; and a key that has been leased without the queue may be completed in every state.

Delivery is at least once. An attempt is counted when a job is delivered, and taken back where the worker cannot be
blamed: it gave the job back, or its hand-over was never completed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto

from gateway.core.write import IllegalTransition

MAX_PAYLOAD_BYTES = 65536
MAX_RESULT_BYTES = 65536
MAX_PRIORITY = 1000
"""Priorities lie between minus this and this; the highest goes first."""
MAX_OUTPUTS = 100
MAX_ERROR_CHARACTERS = 4096
MAX_QUEUE_BYTES = 128
_MAX_DOUBLINGS = 62


class JobState(StrEnum):
    """Where a job is in its life."""

    WAITING = "waiting"
    DELAYED = "delayed"
    """Not to be delivered before `available_at`."""
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    """All attempts have been used up; a person decides (reopen, redrive)."""


class JobEvent(Enum):
    """What moves it on."""

    DELIVER = auto()
    RENEW = auto()
    """The holder says that it still works."""
    GIVE_BACK = auto()
    """To be delivered again at once: released, or run out."""
    POSTPONE = auto()
    """To be delivered again later."""
    BURY = auto()
    """No attempt is left."""
    DUE = auto()
    COMPLETE = auto()
    REOPEN = auto()
    """An operator has the job done anew."""


_S, _E = JobState, JobEvent
TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.WAITING, _E.DELIVER): _S.RUNNING,
    (_S.WAITING, _E.RENEW): _S.RUNNING,
    (_S.WAITING, _E.GIVE_BACK): _S.WAITING,
    (_S.WAITING, _E.POSTPONE): _S.DELAYED,
    (_S.WAITING, _E.BURY): _S.DEAD,
    (_S.WAITING, _E.COMPLETE): _S.COMPLETED,
    (_S.DELAYED, _E.DUE): _S.WAITING,
    (_S.DELAYED, _E.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, _E.RENEW): _S.RUNNING,
    (_S.RUNNING, _E.GIVE_BACK): _S.WAITING,
    (_S.RUNNING, _E.POSTPONE): _S.DELAYED,
    (_S.RUNNING, _E.BURY): _S.DEAD,
    (_S.RUNNING, _E.COMPLETE): _S.COMPLETED,
    (_S.COMPLETED, _E.REOPEN): _S.WAITING,
    (_S.DEAD, _E.RENEW): _S.RUNNING,
    (_S.DEAD, _E.GIVE_BACK): _S.DEAD,
    (_S.DEAD, _E.POSTPONE): _S.DEAD,
    (_S.DEAD, _E.BURY): _S.DEAD,
    (_S.DEAD, _E.COMPLETE): _S.COMPLETED,
    (_S.DEAD, _E.REOPEN): _S.WAITING,
}


def advance(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`. Raises `IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} in state {state.name}") from None


@dataclass(frozen=True, slots=True)
class Output:
    """An object that a completion names."""

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class Completion:
    """That a job is done: recorded once."""

    token: int
    holder: str
    """Who held the lease; empty where the token came from elsewhere."""
    result: str | None
    """JSON text; None where none was given."""
    outputs: tuple[Output, ...]
    at: float
    """Wall-clock time, seconds since the epoch; for people."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as the store keeps it."""

    key: str
    queue: str | None = None
    """None: a key that was leased without a queue, and completed."""
    state: JobState = JobState.WAITING
    priority: int = 0
    serial: int = 0
    """Given by the store: its place in line among those of its priority."""
    attempts: int = 0
    payload: str | None = None
    """JSON text; None where none was given."""
    submitted_at: float = 0.0
    """Wall-clock time, seconds since the epoch; for people."""
    available_at: float = 0.0
    """While DELAYED: when it is due, seconds since the epoch."""
    token: int = 0
    """Of the last delivery; 0 before the first."""
    delivery: str = ""
    """Names the request that the last delivery answers."""
    error: str = ""
    """Why the last failed attempt failed: what its worker said, or that it was not heard of."""
    completion: Completion | None = None
    submission: str = ""
    """What the request that submitted it can be repeated by; empty for nothing."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a job is tried, and when again. Times in seconds."""

    max_attempts: int = 5
    backoff_s: float = 10.0
    """After the first failure; doubled with each."""
    backoff_max_s: float = 3600.0

    def delay_s(self, attempts: int) -> float:
        """How long a job waits that has failed `attempts` times."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts - 1, 0), _MAX_DOUBLINGS))


def delivered(job: Job, token: int, delivery: str) -> Job:
    """Handed to a worker, under `token`; the attempt counts from now on."""
    state = advance(job.state, JobEvent.DELIVER)
    return replace(job, state=state, attempts=job.attempts + 1, token=token, delivery=delivery, available_at=0.0)


def renewed(job: Job) -> Job:
    """Its holder still works, though its time may have run out meanwhile."""
    return replace(job, state=advance(job.state, JobEvent.RENEW))


def released(job: Job, available_at: float = 0.0) -> Job:
    """Given back unfinished: the attempt is taken back, unless the job's time had run out before, or it has been
    reopened since. `available_at`: not to be delivered before; 0 is at once."""
    state = advance(job.state, JobEvent.POSTPONE if available_at else JobEvent.GIVE_BACK)
    attempts = max(job.attempts - 1, 0) if job.state is JobState.RUNNING else job.attempts
    return replace(job, state=state, attempts=attempts, available_at=available_at)


NOT_HEARD = "its worker was not heard of in time"


def lapsed(job: Job, policy: RetryPolicy) -> Job:
    """Its worker was not heard of in time: tried again at once, since the time-out was delay enough."""
    event = JobEvent.BURY if job.attempts >= policy.max_attempts else JobEvent.GIVE_BACK
    return replace(job, state=advance(job.state, event), error=NOT_HEARD)


def failed(job: Job, policy: RetryPolicy, now: float, error: str, *, retry: bool, delay_s: float | None = None) -> Job:
    """Its worker says that it failed. `retry` False: no other attempt would do better. `delay_s` in place of the
    policy's. `now` in seconds since the epoch."""
    if not retry or job.attempts >= policy.max_attempts:
        return replace(job, state=advance(job.state, JobEvent.BURY), error=error)
    wait_s = policy.delay_s(job.attempts) if delay_s is None else delay_s
    event = JobEvent.POSTPONE if wait_s else JobEvent.GIVE_BACK
    return replace(job, state=advance(job.state, event), error=error, available_at=now + wait_s if wait_s else 0.0)


def due(job: Job) -> Job:
    """Its delay is over."""
    return replace(job, state=advance(job.state, JobEvent.DUE), available_at=0.0)


def completed(job: Job, completion: Completion) -> Job:
    """Done, and never delivered again unless reopened."""
    return replace(job, state=advance(job.state, JobEvent.COMPLETE), completion=completion, available_at=0.0)


def reopened(job: Job) -> Job:
    """Waits again as on its first day, at its old place in line."""
    state = advance(job.state, JobEvent.REOPEN)
    return replace(job, state=state, attempts=0, error="", completion=None, delivery="")


def queue_fault(name: str) -> str | None:
    """What is wrong with the name of a queue; None if nothing is."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        size_bytes = 0
    if not 0 < size_bytes <= MAX_QUEUE_BYTES or not name.isprintable():
        return f"must have 1 to {MAX_QUEUE_BYTES} bytes of UTF-8, all of them printable"
    return None
