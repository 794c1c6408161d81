"""What the gateway tells of leases and jobs, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.client.errors import Json


@dataclass(frozen=True, slots=True)
class LeaseCredentials:
    """AWS credentials that are bound to a lease: with them every request is fenced by itself."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: str
    """RFC 3339, UTC. From then on they are good only while the lease is held."""
    endpoint_url: str | None = None
    """Where they are good; None where the gateway does not know how it is reached."""

    @classmethod
    def of(cls, answer: Json | None) -> LeaseCredentials | None:
        if answer is None:
            return None
        return cls(
            access_key_id=answer["access_key_id"],
            secret_access_key=answer["secret_access_key"],
            session_token=answer["session_token"],
            expires_at=answer["expires_at"],
            endpoint_url=answer.get("endpoint_url"),
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """What the gateway answered: a lease, or the delivery of a job."""

    key: str
    token: int
    holder: str
    sent_at: float
    """On the holder's clock, from before the request was sent."""
    expires_in_s: float
    credentials: LeaseCredentials | None = None
    output: str | None = None
    """An object key."""
    payload: object = None
    attempts: int = 0

    @classmethod
    def of(cls, answer: Json, sent_at: float) -> Grant:
        return cls(
            key=answer["key"],
            token=int(answer["token"]),
            holder=answer["holder"],
            sent_at=sent_at,
            expires_in_s=float(answer["expires_in_s"]),
            credentials=LeaseCredentials.of(answer.get("credentials")),
            output=answer.get("output"),
            payload=answer.get("payload"),
            attempts=int(answer.get("attempts", 0)),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """That a job is done: recorded once."""

    token: int
    holder: str
    result: object
    outputs: tuple[str, ...]
    """Each BUCKET/KEY."""
    at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as the gateway keeps it."""

    key: str
    queue: str | None
    """None: a key that was leased without one, and completed."""
    state: str
    """`waiting`, `delayed`, `running`, `completed` or `dead`."""
    priority: int
    attempts: int
    token: int
    """The one that completed it, else that of its last delivery; 0 before the first."""
    payload: object
    error: str
    """What the worker said that failed last."""
    completion: Completion | None

    @classmethod
    def of(cls, answer: Json) -> JobRecord:
        done = answer["completion"]
        return cls(
            key=answer["key"],
            queue=answer["queue"],
            state=answer["state"],
            priority=answer["priority"],
            attempts=answer["attempts"],
            token=int(answer["token"]),
            payload=answer["payload"],
            error=answer["error"],
            completion=None if done is None else _completion(done),
        )


def _completion(done: Json) -> Completion:
    outputs = tuple(f"{output['bucket']}/{output['key']}" for output in done["outputs"])
    return Completion(int(done["token"]), done["holder"], done["result"], outputs, done["at"])
