"""What the gateway asks of its store: whole decisions, never get and set.

Each method is one conditional statement or one transaction. A method that returns has made its effect
durable, unless its docstring says *lazy*: lazy writes are queued in order and reach the disk with the next
commit, at the latest `LAZY_FLUSH_S` later; losing them in a crash costs waiting or history, never safety.

Every method raises `StoreUnavailable` when the store cannot do it (disk full, corrupt, locked, closed). Then
the effect may or may not have happened; the caller must fail closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gateway.stores.job_base import JobStore
from gateway.stores.values import (
    Authority,
    Backlog,
    Dropped,
    Event,
    Fence,
    Granted,
    GrantWanted,
    Ruling,
    Start,
    Upload,
    Waiting,
)

LAZY_FLUSH_S = 0.2
"""The longest a lazy write waits for a commit, in seconds."""


class StoreUnavailable(Exception):
    """The store could not do what it was asked; the message says why, for a person."""


class StoreLocked(StoreUnavailable):
    """Another gateway has this database. The message names it as far as it is known."""


Wanted = Callable[[Event], Sequence[str]]
"""The webhooks that an event is to be announced to."""
Arrived = Callable[[Mapping[str, int]], None]
"""Is told how many have come to wait, by webhook, once they are durable."""


class Outbox(Protocol):
    """What waits to be announced. Nothing is in it twice, and what has been committed is in it until it is `done` or
    given up."""

    def announce(self, wanted: Wanted, arrived: Arrived) -> None:
        """From now on every event that is recorded, by whatever call, waits here too for each webhook that `wanted`
        names: written in the very transaction of the event."""
        ...

    async def backlogs(self) -> list[Backlog]:
        """How much waits, by webhook; those for which nothing does are left out."""
        ...

    async def waiting(self, webhook: str, after: int, limit: int) -> list[Waiting]:
        """What waits for a webhook, in order, after the serial `after`."""
        ...

    async def next_of(self, webhook: str, key: str, after: int) -> Waiting | None:
        """The first of one key that waits after the serial `after`."""
        ...

    def done(self, waiting: Waiting) -> None:
        """It has been announced, or given up. Lazy; losing it costs an announcement of the same id."""
        ...

    async def drop_oldest(self, webhook: str, keep: int) -> Dropped:
        """Give up all but the newest `keep` of a webhook."""
        ...

    async def forget(self, webhook: str, before: float) -> int:
        """Give up what of a webhook is older than wall-clock time `before`; answer how many."""
        ...


class UploadStore(Protocol):
    """Which upload is bound to which fence key and token (R6), and which copies are on their way. Whoever acts for
    another token than an upload is bound to changes nothing."""

    async def bind(self, upload: Upload) -> None:
        """Bind a new upload id. Binding the same (bucket, object, upload id) twice is a ValueError."""
        ...

    async def bound(self, bucket: str, object_key: str, upload_id: str) -> Upload | None:
        """The binding, through a bounded cache; None if there is none."""
        ...

    async def complete(self, upload: Upload, etag: str) -> None:
        """Record that Complete succeeded, so that a repeated one can be answered."""
        ...

    async def close(self, upload: Upload) -> None:
        """Forget the binding of an upload that its own worker aborted, or of a copy that is settled."""
        ...

    async def mark_aborted(self, upload: Upload) -> None:
        """A REVOKED upload has been aborted upstream: it is ABORTED."""
        ...

    async def revoke(self, key: str, below: int) -> list[Upload]:
        """Mark REVOKED the OPEN uploads of `key` with a token lower than `below`; answer all that are
        REVOKED (also those marked before and not closed since)."""
        ...

    async def unfinished(self, after: tuple[str, str, str] | None, limit: int) -> list[Upload]:
        """OPEN, COPYING and REVOKED bindings in the order of (bucket, object, upload id), after the cursor."""
        ...

    async def forget(self, before: float) -> int:
        """Drop COMPLETED and ABORTED bindings whose `changed_at` is before `before`; answer how many."""
        ...


class Store(Protocol):
    """Floors, owners, history, and who rules which bucket, durable; uploads, jobs and what is to be announced in its
    parts."""

    async def start(self, rules_digest: str) -> Start:
        """Open, lock to this process, migrate; durably remove the clean mark before returning.

        `rules_digest` stands for the fencing rules: when it differs from that of the last run, objects may
        have been written under other keys, and the start is unclean. Raises `StoreLocked` when another
        process has the database."""
        ...

    async def stop(self, *, clean: bool) -> None:
        """Flush what is queued, then, last of all, leave the clean mark if `clean`; close and unlock."""
        ...

    async def check(self) -> None:
        """Prove by a durable write that the store can still raise floors (for `/readyz`)."""
        ...

    async def fence(self, key: str) -> Fence:
        """The durable state of `key`, through a bounded cache; never a state that is not yet durable."""
        ...

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        """Raise the floor of `key` to at least `token`; answer the state after it, durable.

        A floor at or above `token` stays as it is. `event` is recorded in the same transaction if (and only
        if) the floor rose."""
        ...

    async def raise_shadow(self, key: str, token: int) -> Fence:
        """The same for the shadow floor (mode `observe`). Lazy in durability, exact in the answer."""
        ...

    def complete_handover(self, key: str, token: int) -> None:
        """Record that the hand-over to `token` is complete: completed floor = max(old, min(token, floor)).
        Lazy; returns at once."""
        ...

    async def seal(self, key: str, token: int, event: Event | None = None) -> Fence:
        """Seal `token` of `key`: sealed_token = max(old, token) if `token <= floor`, else unchanged."""
        ...

    async def grant(self, key: str, wanted: GrantWanted, event: Event | None = None) -> Granted:
        """Grant a lease: raise the floor to `max(floor + 1, generation * 2^40 + 1)` and note whose that token is (R10).

        Nothing is granted, and nothing changes, where the key is completed, where a lease other than that of
        `wanted.instead_of` is held, or where no token is left. `event` is recorded if (and only if) it was granted."""
        ...

    async def granted_before(self, scope: str, idempotency_key: str) -> int:
        """The token that a grant with `repeatable = (scope, idempotency_key)` has given; 0 for none."""
        ...

    async def forget_grants(self, before: float) -> int:
        """Forget what `granted_before` tells of grants made before wall-clock time `before`; answer how many."""
        ...

    async def leases(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        """Keys that are `held`, in order, after the cursor `after`, at most `limit`."""
        ...

    def record(self, event: Event) -> None:
        """Add to the history of a key. Lazy; returns at once; alike events that wait are counted into one;
        beyond a bound of waiting events the newest are dropped (and counted in `dropped_events`)."""
        ...

    async def owner(self, bucket: str, object_key: str) -> str | None:
        """The fence key recorded as the owner of an object that no rule maps; None if none (R9)."""
        ...

    async def claim(self, bucket: str, object_key: str, fence_key: str, *, instead_of: str | None) -> str:
        """Record `fence_key` as the owner of the object if it has none, or its owner is still `instead_of`;
        answer the owner after that. Of two who claim at once, one finds the other."""
        ...

    @property
    def authority(self) -> Authority:
        """Who this database is; from `start` on."""
        ...

    async def raise_generation(self, above: int) -> Authority:
        """Make the generation higher than it was, and than `above`. StoreUnavailable beyond the highest there is."""
        ...

    async def knows_run(self, run: str) -> bool:
        """Whether `run` was a run of this very database. A copy made before it began does not know it."""
        ...

    async def ruling(self, bucket: str) -> Ruling | None:
        """What is known of a bucket; None: nothing."""
        ...

    async def rulings(self) -> list[Ruling]:
        """All of them, by bucket."""
        ...

    async def rule(self, bucket: str) -> None:
        """This database rules the bucket: its floors are complete."""
        ...

    async def begin_rebuild(self, bucket: str, claim: str) -> None:
        """From now on the floors of the bucket have to be rebuilt, from its first object."""
        ...

    async def advance_rebuild(self, bucket: str, claim: str, after: str, objects: int) -> None:
        """All objects up to `after` have been dealt with, if the rebuild is still that of `claim`."""
        ...

    async def forget_bucket(self, bucket: str) -> None:
        """The bucket is no more."""
        ...

    async def backup(self, file: Path) -> None:
        """Write a consistent copy of what is committed to a new file, mode 600, durably. Whoever starts it is another
        database of the next generation, which rules nothing. StoreUnavailable where the store is in no file."""
        ...

    async def fences(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        """Known keys in order, after the cursor `after`, at most `limit`."""
        ...

    async def events(self, key: str, before: int | None, limit: int) -> list[Event]:
        """The history of `key`, newest first, with `serial` lower than `before`."""
        ...

    @property
    def dropped_events(self) -> int: ...

    @property
    def uploads(self) -> UploadStore:
        """Which uploads are bound, and to what."""
        ...

    @property
    def jobs(self) -> JobStore:
        """Jobs, each with its key's fence in one decision."""
        ...

    @property
    def outbox(self) -> Outbox:
        """What of all that is recorded waits to be announced."""
        ...
