"""What a store keeps and tells: values alone, the same for every store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MAX_GENERATION = 2**23 - 1
"""Each generation has 2^40 tokens for its leases (R10)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The last lease that has been granted on a key."""

    token: int
    holder: str
    ttl_s: float
    at: float
    """Wall-clock time, seconds since the epoch: for people, and for how long it has been held over restarts."""
    id: str
    """Names the request that it answers."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The durable state of one fence key. An unknown key is all zeros.

    Invariant: `0 <= completed_floor <= floor`, `sealed_token <= floor` and `granted_token <= floor`; none of the four
    ever falls.
    """

    key: str
    floor: int = 0
    completed_floor: int = 0
    sealed_token: int = 0
    """The highest token that has been sealed: a write of it is refused like a lower one (R3)."""
    shadow_floor: int = 0
    """What the floor would be had every rule in mode `observe` been enforced (R11)."""
    raised_at: float = 0.0
    """Wall-clock time of the last raise, seconds since the epoch; 0 for never. For people only."""
    grant: Grant | None = None
    """None: our leases have issued no token of this key, all of them come from elsewhere (R10)."""
    completed_token: int = 0
    """The token that completed the job; 0: it is not completed. No lease is granted on a completed key."""

    @property
    def granted_token(self) -> int:
        """The highest token that our own leases issued; 0 for none."""
        return 0 if self.grant is None else self.grant.token

    @property
    def held(self) -> Grant | None:
        """The lease on the key that nobody has taken over and that has not been given up; it may have run out."""
        grant = self.grant
        return grant if grant is not None and grant.token == self.floor > self.sealed_token else None


@dataclass(frozen=True, slots=True)
class GrantWanted:
    """A lease that somebody asks for."""

    holder: str
    ttl_s: float
    id: str
    """Names this request; no other bears the same on the same key."""
    instead_of: int = 0
    """The token whose lease is known to have run out. Whatever other lease there is stands in the way."""
    repeatable: tuple[str, str] | None = None
    """Scope and idempotency key under which the token is found again (`Store.granted_before`)."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What became of a `GrantWanted`."""

    fence: Fence
    """The state after it, durable."""
    token: int
    """0 where nothing has been granted: the key is held, it is completed, or no token is left."""


class UploadState(StrEnum):
    """What has become of what was begun under a binding."""

    OPEN = "open"
    COPYING = "copying"
    """No upload: a copy that has been sent, from before its commit point until it is settled. It may land as late as a
    Complete, and an unclean start has to know its key."""
    COMPLETED = "completed"
    REVOKED = "revoked"
    """Overtaken by a higher token and not yet aborted upstream."""
    ABORTED = "aborted"
    """Overtaken and aborted; kept a while, so that its worker is told that it is stale, not that it never was."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The binding of a multipart upload to the key and token that created it (R6)."""

    upload_id: str
    bucket: str
    object_key: str
    fence_key: str
    token: int
    nonce: str
    state: UploadState = UploadState.OPEN
    etag: str | None = None
    """The ETag that Complete answered, once `state` is COMPLETED."""
    changed_at: float = 0.0
    """Wall-clock time of the last change of state, seconds since the epoch."""


class EventKind(StrEnum):
    """What is told of a key in its history."""

    RAISED = "raised"
    FOUND = "found"
    """The floor is again what it was before the database was lost, as an object tells, or the one that was replaced."""
    HANDED_OVER = "handed-over"
    SEALED = "sealed"
    REFUSED = "refused"
    WOULD_REFUSE = "would-refuse"
    """Rule in mode `observe`: what enforcement would have refused."""
    IN_DOUBT = "in-doubt"
    SETTLED_BY_TIMEOUT = "settled-by-timeout"
    SETTLED_BY_OPERATOR = "settled-by-operator"
    UPLOAD_REVOKED = "upload-revoked"
    GRANTED = "granted"
    """A lease: the floor rose to its token."""
    RELEASED = "released"
    EXPIRED = "expired"
    """A lease ran out. Its token holds the floor until another is granted, and its holder may still renew it."""
    LAPSED = "lapsed"
    """A lease whose hand-over was pending was not asked for again."""
    COMPLETED = "completed"
    """The job is done, by this token."""
    DEAD_LETTERED = "dead-lettered"
    """A job of a queue has used up its attempts."""
    FAILED = "failed"
    """A job of a queue: its worker has given up this attempt."""
    REOPENED = "reopened"
    """A completed or dead job may be done again, on an operator's word."""


class Event(NamedTuple):
    """One line of a fence key's history. `serial` and `at` are given by the store, and `token` where it is 0 and comes
    with a grant. A tuple, since each refusal makes one, and a frozen dataclass takes six times as long to make."""

    key: str
    kind: EventKind
    token: int
    floor: int
    detail: str = ""
    """For people: the operation and object, the operator's reason, the refusal's reason."""
    request_id: str = ""
    times: int = 1
    """How many alike (same key, kind, token, detail) came in a row and were written as one."""
    at: float = 0.0
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """What the store knows about how the last run ended."""

    clean: bool
    """True when nothing that an earlier run sent can still be unsettled: a clean stop under the same
    fencing rules, or a database that has never served."""
    reason: str
    """For people: why it is unclean; empty when clean."""
    bindings_known: bool = True
    """False for a restored database until it has been stopped cleanly: which uploads and copies were under way is not
    known."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Who a database is, towards the buckets that it rules (the bucket's record)."""

    database: str
    """Drawn when the database was made, and anew when it was restored."""
    generation: int
    """0 at first; higher than that of each database whose floors it has rebuilt, or whose backup it is (R10)."""
    run: str
    """Drawn at each start."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a database knows of a bucket that it rules, or is about to rule."""

    bucket: str
    claim: str | None = None
    """None: it rules. Else its floors have to be rebuilt, and what is fenced there is refused until they are: the nonce
    of the record by which it has claimed the bucket, or `RESTORED`."""
    after: str | None = None
    """The rebuild has dealt with all objects up to this key; None before the first."""
    objects: int = 0
    """How many those were."""


RESTORED = "restored"
"""The claim to a bucket that the database ruled when the backup was made that it has been restored from."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits to be announced to one webhook."""

    serial: int
    """In the order in which they were recorded; never given twice."""
    webhook: str
    event: Event


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for one webhook."""

    webhook: str
    count: int
    oldest_at: float
    """Wall-clock time of the oldest, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What has been given up."""

    count: int
    up_to: int
    """The highest serial among them; 0 for none."""
