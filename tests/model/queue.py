"""A job of a queue, on disk and as the process knows it, beside the gate of its key.

The process keeps three things that a crash takes from it: its part of the queue's line, who holds the key
(`gateway/service/lines.py`), and which delivery it looks after (`gateway/service/jobs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gateway.core.job import Job, JobState
from tests.model.size import Size

DELAY_S = 1.0
"""How long a job waits that has failed. Time passes for it when it is due."""


class Term(IntEnum):
    """How it stands with the lease that the process knows."""

    NOBODY = 0
    """There is none, or nobody has looked."""
    PENDING = 1
    """Its hand-over has not been completed: nobody has been told."""
    RUNNING = 2
    OVER = 3
    """It has run out. Its holder may go on, as long as nobody else is granted the key."""


@dataclass(slots=True, eq=False)
class Queue:
    """See the module."""

    job: Job
    """On disk."""
    receives: int
    extends: int
    ends: int
    reopens: int
    in_line: bool = False
    """The process knows that the job waits."""
    taken: bool = False
    """It is being delivered to somebody."""
    back: bool = False
    """It has come to wait again meanwhile."""
    read: bool = False
    """The process knows the whole line; else it asks the disk when a worker comes."""
    running: int = 0
    """The token of the delivery that is looked after; 0 for none."""
    held: int = 0
    """The token of the lease that is known; 0 for none."""
    term: Term = Term.NOBODY
    ran_out: bool = False
    """It has, or may have in an earlier run."""
    watched: bool = False
    """Somebody looks when the job is due."""
    told: tuple[int, ...] = ()
    """The deliveries that some worker knows of."""


def first(size: Size) -> Queue | None:
    """The job has been submitted."""
    if not size.receives:
        return None
    return Queue(Job("job", "queue"), size.receives, size.extends, size.ends, size.reopens)


_STATES = tuple(JobState)
_TERMS = tuple(Term)


def encode(q: Queue | None) -> tuple[Any, ...]:
    """As numbers."""
    if q is None:
        return ()
    return (
        (_STATES.index(q.job.state), q.job.attempts, q.job.token, q.job.delivery != ""),
        q.receives, q.extends, q.ends, q.reopens, q.in_line, q.taken, q.back, q.read, q.running, q.held, int(q.term),
        q.ran_out, q.watched, q.told,
    )  # fmt: skip


def decode(row: tuple[Any, ...]) -> Queue | None:
    """What `encode` wrote."""
    if not row:
        return None
    (state, attempts, token, delivered), *rest = row
    job = Job(
        "job", "queue", _STATES[state], attempts=attempts, token=token, delivery="id" if delivered else "",
        available_at=DELAY_S if _STATES[state] is JobState.DELAYED else 0.0,
    )  # fmt: skip
    queue = Queue(job, *rest)
    queue.term = _TERMS[queue.term]
    return queue
