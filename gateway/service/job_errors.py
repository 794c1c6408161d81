"""How the queue says no: each answer once, with what its reader has to do."""

from __future__ import annotations

from gateway.core.job import Job, Output
from gateway.core.keys import FencingKey, Token


class JobError(Exception):
    """A call on a job that was not done. The message is for people."""

    def __init__(self, message: str, key: FencingKey | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


class UnknownQueue(JobError):
    """The settings name their queues, and this one is not among them."""

    def __init__(self, queue: str, known: list[str]) -> None:
        super().__init__(f"There is no queue {queue!r}: [[queue]] in the gateway's settings names {', '.join(known)}.")


class NoJob(JobError):
    """Nothing is known of a job of this key."""

    def __init__(self, key: FencingKey) -> None:
        super().__init__(f"There is no job {key!r}.", key)


class JobExists(JobError):
    """The key has its job already, and the caller wants a new one or none."""

    def __init__(self, job: Job) -> None:
        where = "without a queue" if job.queue is None else f"in queue {job.queue!r}"
        super().__init__(f"{job.key!r} has a job already, {where}: it is {job.state}.", FencingKey(job.key))


class NotDelivered(JobError):
    """The token holds the key by a lease that no queue has made."""

    def __init__(self, key: FencingKey, token: Token) -> None:
        super().__init__(
            f"Token {token} holds {key!r} by a lease, and not by a delivery: give it up at /v1/leases, or complete it.",
            key,
        )


class AlreadyCompleted(JobError):
    """Another token has done the job: discard what you have."""

    def __init__(self, key: FencingKey, token: int) -> None:
        super().__init__(f"{key!r} has been completed by token {token}. Stop, and discard your result.", key)
        self.token = token


class NotEnded(JobError):
    """Only what is completed or dead can be reopened."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"{job.key!r} is neither completed nor dead, it is {job.state}.", FencingKey(job.key))


class OutputNotVerified(JobError):
    """An output is not what the completion says: write it under this key and token, and complete then."""

    def __init__(self, key: FencingKey, output: Output, why: str) -> None:
        super().__init__(
            f"The completion of {key!r} names {output.bucket}/{output.key} as an output, but {why}. Nothing has been "
            "recorded.",
            key,
        )
        self.output = output


class RepeatedSubmission(JobError):
    """An idempotency key has come again with another job of the same key."""

    def __init__(self, job: Job) -> None:
        told = "This Idempotency-Key was sent before with another payload or priority. Draw a new one."
        super().__init__(told, FencingKey(job.key))


class RepeatedReceive(JobError):
    """An idempotency key has come again with another request."""

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was sent before with another holder or time. Draw a new one.")
