"""Whose a bucket is, judged by its record and by what a database knows of it; and how that is said.

A record speaks first. Where there is none, the database's own word counts: a bucket that it has begun to take over, or
that a backup knew, is not to be served before its floors have been rebuilt.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.errors import Outcome, Reason, TryAgain
from gateway.core.names import RECORD_KEY
from gateway.service.record import Seen
from gateway.stores.values import RESTORED, Authority, Ruling

_UNFINISHED = "the rebuild of its floors has not come to its end"
_RESTORED = "this database has been restored, and does not know what happened since its backup was made"


class Database(Protocol):
    """What a database knows of itself and of buckets; a part of `Store`."""

    @property
    def authority(self) -> Authority: ...

    async def knows_run(self, run: str) -> bool: ...

    async def ruling(self, bucket: str) -> Ruling | None: ...


async def fault_of(database: Database, name: str, seen: Seen | None, *, known_alone: bool) -> str:
    """Why a bucket with that record is not the database's to serve; empty if it is, or may become so. `known_alone`:
    nor is one without a record that it does not know. Raises `StoreUnavailable`."""
    if seen is not None:
        return await _fault_of_record(database, seen)
    ruling = await database.ruling(name)
    if ruling is not None and ruling.claim is not None:
        return _RESTORED if ruling.claim == RESTORED else _UNFINISHED
    if ruling is None and known_alone:
        return "[store] fenced_before = true, and this database has not rebuilt the bucket's floors yet"
    return ""


async def _fault_of_record(database: Database, seen: Seen) -> str:
    authority, record = database.authority, seen.record
    if record is None:
        return f"the bucket's record, {RECORD_KEY}, cannot be read: {seen.why}"
    if record.database != authority.database:
        doing = "is being taken over by" if record.rebuilding else "belongs to"
        return f"the bucket {doing} {record.owner}; this gateway has database {authority.database[:8]}"
    if record.generation > authority.generation or not await database.knows_run(record.run):
        return f"this database is an older copy of the one that rules the bucket ({record.owner})"
    return _UNFINISHED if record.rebuilding else ""


def remedy(bucket: str) -> str:
    """What an operator does about a bucket that is refused."""
    return f"fencing-gateway fence rebuild --bucket {bucket}"


def superseded(bucket: str, fault: str, *, known: bool = True, sent: bool = False) -> TryAgain:
    """The answer to a fenced write in a bucket that is not this database's. `known`: another has it for sure. `sent`:
    the write is past its commit point."""
    effect = " This write had been sent: it may have been applied, or still be." if sent else ""
    advice = (
        "Send the request to the gateway that rules the bucket. If this one is to take it over, its operator runs: "
        f"{remedy(bucket)}"
        if known
        else "Send the request again."
    )
    return TryAgain(
        Reason.SUPERSEDED,
        f"This gateway lets no fenced write into bucket {bucket}: {fault}.{effect} {advice}",
        outcome=Outcome.UNKNOWN if sent else Outcome.NOT_APPLIED,
        retry_after_s=5 if known else 1,
    )


def not_seen(bucket: str, for_s: float, *, sent: bool = False) -> TryAgain:
    """The same where nobody knows, since its record has not been seen for so long."""
    return superseded(bucket, f"its record has not been seen for {for_s:g} s", known=False, sent=sent)
