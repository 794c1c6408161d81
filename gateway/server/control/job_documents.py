"""What travels in the calls on jobs and their queues: what is asked, and what is told."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.core.job import (
    MAX_ERROR_CHARACTERS,
    MAX_OUTPUTS,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_QUEUE_BYTES,
    Completion,
    Job,
    JobState,
    queue_fault,
)
from gateway.server.control.credentials import CredentialsShown
from gateway.server.control.documents import (
    BUCKET,
    WHOLE,
    AnyJson,
    Fits,
    Given,
    KeyGiven,
    MomentShown,
    Page,
    ReasonGiven,
    SecondsShown,
    Shown,
    TokenGiven,
    TokenShown,
)
from gateway.server.control.leases import MIN_TTL_S, HolderGiven, LeaseShown

MAX_DELAY_S = 31_536_000.0
MAX_WAIT_S = 86400.0
MAX_RECEIVED = 100
MAX_REDRIVEN = 100_000
MAX_BODY_BYTES = 4 * MAX_PAYLOAD_BYTES
"""JSON may be written at greater length than it has to be; what is kept is bounded by itself."""


def _queue(name: object) -> str:
    if not isinstance(name, str):
        raise PydanticCustomError("invalid", "must be a string")
    if fault := queue_fault(name):
        raise PydanticCustomError("invalid", "{told}", {"told": f"the name of a queue {fault}"})
    return name


QueueGiven = Annotated[
    str,
    PlainValidator(_queue),
    WithJsonSchema(
        {
            "description": f"The name of a queue: 1 to {MAX_QUEUE_BYTES} bytes of UTF-8, all of them printable.",
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_QUEUE_BYTES,
            "format": "queue-name",
        }
    ),
]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY_S, allow_inf_nan=False)]
Visibility = Annotated[
    float, Field(ge=MIN_TTL_S, allow_inf_nan=False, description="How long the worker has without extending it.")
]


# --- what is asked


class JobSubmitted(Given):
    """A job for the queue."""

    key: KeyGiven
    payload: AnyJson = Field(None, description="Whatever the worker needs to know: at most 64 KiB of JSON.")
    priority: Annotated[
        int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="The highest is delivered first."), WHOLE
    ] = 0
    delay_s: Annotated[Delay, Field(description="Not to be delivered before.")] = 0.0
    deduplicate: bool = Field(
        True, description="A key that has its job already is answered as it is; false: it is refused."
    )


class Receive(Given):
    """Who works, for how long, and how long he waits for jobs."""

    holder: HolderGiven
    visibility_s: Visibility | None = None
    wait_s: Annotated[
        float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="How long; cut to `[lease] max_wait_s`.")
    ] = 0.0
    max: Annotated[int, Field(ge=1, le=MAX_RECEIVED, description="How many jobs, at most."), WHOLE] = 1


class Extend(Given):
    """The delivery's token, and for how long from now on; without it as long as it was given for."""

    token: TokenGiven
    visibility_s: Visibility | None = None


class Release(Given):
    """The delivery's token."""

    token: TokenGiven
    delay_s: Annotated[Delay, Field(description="Not to be delivered again before.")] = 0.0


class Fail(Given):
    """The delivery's token, and what went wrong."""

    token: TokenGiven
    error: Annotated[str, Field(max_length=MAX_ERROR_CHARACTERS)] = ""
    retry: bool = Field(True, description="False: no other attempt would do better, the job is dead.")
    delay_s: Annotated[Delay, Field(description="When to try again, in place of the queue's back-off.")] | None = None


class OutputGiven(Given):
    """An object that was written under this key and token."""

    bucket: Annotated[str, BUCKET]
    key: Annotated[str, Field(min_length=1, max_length=1024), Fits(r"[^\u0000]+", "the key of an object, without NUL")]


class Complete(Given):
    """The token that has done the job, and what came of it."""

    token: TokenGiven
    result: AnyJson = Field(None, description="Kept with the job: at most 64 KiB of JSON.")
    outputs: tuple[OutputGiven, ...] = Field(
        (), max_length=MAX_OUTPUTS, strict=False, description="Looked at before anything is recorded."
    )


class Reopen(Given):
    """Why it is to be done again."""

    reason: ReasonGiven


class Redrive(Given):
    """Why dead jobs are to be tried again, and how many at most."""

    reason: ReasonGiven
    limit: Annotated[int, Field(ge=1, le=MAX_REDRIVEN), WHOLE] = 1000


class JobsAsked(Page):
    """Which jobs."""

    queue: str | None = Field(None, description="Those of this queue.")
    state: Annotated[JobState, Field(strict=False, description="Those in this state.")] | None = None
    after: str = Field("", description="The `next` of the page before.")


# --- what is told


class OutputShown(Shown):
    """An object that was looked at when the job was completed."""

    bucket: str
    key: str


class CompletionShown(Shown):
    """Who has done it, when, and what came of it."""

    token: TokenShown
    holder: str
    result: AnyJson
    outputs: list[OutputShown]
    at: MomentShown

    @classmethod
    def of(cls, done: Completion) -> Self:
        return cls(
            token=done.token,
            holder=done.holder,
            result=done.result,
            outputs=[OutputShown(bucket=output.bucket, key=output.key) for output in done.outputs],
            at=done.at,
        )


class JobShown(Shown):
    """A job. `queue` is null for a key that was completed without one; `token` is the one that completed it, else that
    of its last delivery, 0 before the first."""

    key: str
    queue: str | None
    state: JobState
    priority: int
    attempts: int
    token: TokenShown
    payload: AnyJson
    error: str
    submitted_at: MomentShown
    available_at: MomentShown
    completion: CompletionShown | None

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(
            key=job.key,
            queue=job.queue,
            state=job.state,
            priority=job.priority,
            attempts=job.attempts,
            token=job.token if job.completion is None else job.completion.token,
            payload=job.payload,
            error=job.error,
            submitted_at=job.submitted_at,
            available_at=job.available_at,
            completion=None if job.completion is None else CompletionShown.of(job.completion),
        )


class JobKnown(JobShown):
    """A job, and who works on it."""

    holder: str
    expires_in_s: SecondsShown | None


class JobPage(Shown):
    """Jobs by key."""

    jobs: list[JobShown]
    next: str | None


class DeliveryShown(LeaseShown):
    """A job for the worker, under a lease of its own."""

    queue: str
    payload: AnyJson
    attempts: int
    priority: int
    credentials: CredentialsShown | None = Field(None, description="S3 credentials that are bound to the lease.")
    output: str | None = Field(None, description="The object key that the rules give the job's output.")


class Received(Shown):
    """Jobs for the worker; none if there was none in time."""

    jobs: list[DeliveryShown]


class Reopened(Shown):
    """Null where no queue had it: the key is as if it had never been completed."""

    job: JobShown | None


class Redriven(Shown):
    """How many jobs wait again."""

    reopened: int


class QueueShown(Shown):
    """How many jobs of a queue are in which state."""

    queue: str
    jobs: dict[JobState, int]


class QueueList(Shown):
    """All queues that have jobs."""

    queues: list[QueueShown]
