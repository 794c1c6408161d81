"""The part of the control API that deals with the database as a whole: buckets that it rules, rebuilds, backups."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from aiohttp import web
from pydantic import Field

from gateway.clock import Clock
from gateway.server.control.access import may_use_all
from gateway.server.control.calls import Ask, Call, Media, Role
from gateway.server.control.documents import BUCKET, DIGITS, Given, Shown, TokenShown
from gateway.server.control.problems import Problem
from gateway.service.rebuild import Progress, Rebuilds
from gateway.service.records import Records
from gateway.service.rulings import remedy
from gateway.stores.base import Store

MAX_WAIT_S = 30
BACKUP_PIECE_BYTES = 1 << 18

BucketGiven = Annotated[str, BUCKET, Field(description="A bucket's name.")]


class RefusedBucket(Shown):
    """A bucket where nothing fenced is served."""

    bucket: str
    reason: str
    remedy: str


class BucketsShown(Shown):
    """Who this gateway is, the buckets that it rules, and those where it refuses what is fenced."""

    database: str
    generation: int
    records: bool
    ruled: list[str]
    unrecorded: list[str]
    refused: list[RefusedBucket]


class RebuildAsked(Given):
    """How long to wait."""

    wait_s: Annotated[
        int, Field(ge=0, le=MAX_WAIT_S, description="Answered when it is over, else after that."), DIGITS
    ] = 0


class RaisedKey(Shown):
    """A floor that a rebuild has raised."""

    key: str
    before: TokenShown
    floor: TokenShown


class RebuildShown(Shown):
    """How far a rebuild has come."""

    bucket: str
    phase: str
    adopted: str | None
    generation: int
    waits_s: float
    objects: int
    fenced: int
    raised: int
    raised_keys: list[RaisedKey]
    owners: int
    unreadable: int
    unreadable_objects: list[str]
    error: str | None


class BucketCalls:
    """Its handlers. `data` is where a backup may lie while it is made and sent; None: there are none to be had."""

    def __init__(self, store: Store, records: Records, rebuilds: Rebuilds, clock: Clock, data: Path | None) -> None:
        self._store = store
        self._records = records
        self._rebuilds = rebuilds
        self._clock = clock
        self._data = data

    def calls(self) -> list[Call]:
        """What each is."""
        rebuild = "/v1/buckets/{bucket}/rebuild"
        database = Media("application/vnd.sqlite3", {}, streams=True)
        return [
            Call("GET", "/v1/buckets", self.list_buckets),
            Call("POST", rebuild, self.rebuild, Role.OPERATOR, statuses=(202,)),
            Call("GET", rebuild, self.show_rebuild, Role.OPERATOR, refuses=("not-found",)),
            Call("GET", "/v1/backup", self.backup, Role.OPERATOR, refuses=("no-backup",), media=database),
        ]

    async def list_buckets(self) -> BucketsShown:
        """Who this gateway is, the buckets that it rules, and those where it refuses what is fenced."""
        authority, refused = self._store.authority, await self._records.refusals()
        return BucketsShown(
            database=authority.database,
            generation=authority.generation,
            records=not self._records.off,
            ruled=[ruling.bucket for ruling in await self._store.rulings() if ruling.bucket not in refused],
            unrecorded=sorted(self._records.unrecorded),
            refused=[RefusedBucket(bucket=b, reason=why, remedy=remedy(b)) for b, why in refused.items()],
        )

    async def rebuild(self, ask: Ask, bucket: BucketGiven) -> RebuildShown:
        """Make a bucket this database's, with the floors that its objects tell; answers at once."""
        _for_all_keys(ask, "a rebuild")
        return self._told(self._rebuilds.begin(bucket))

    async def show_rebuild(self, ask: Ask, bucket: BucketGiven, query: RebuildAsked) -> RebuildShown:
        """How far the last rebuild of a bucket has come; with `wait_s`, answered when it is over, else after that."""
        _for_all_keys(ask, "a rebuild")
        await self._rebuilds.wait(bucket, query.wait_s)
        progress = self._rebuilds.progress(bucket)
        if progress is None:
            raise Problem(404, "not-found", f"no rebuild of bucket {bucket!r} has been begun in this run")
        return self._told(progress)

    async def backup(self, ask: Ask) -> web.StreamResponse:
        """A consistent copy of the database, made while it is in use."""
        _for_all_keys(ask, "a backup")
        if self._data is None:
            raise Problem(409, "no-backup", "this gateway keeps its database in memory")
        with TemporaryDirectory(prefix=".backup-", dir=self._data) as directory:
            file = Path(directory) / "gateway.db"
            await self._store.backup(file)
            copy = file.open("rb")
        with copy:  # no longer in the directory, and gone with the process
            response = web.StreamResponse(headers={"content-type": "application/vnd.sqlite3"})
            response.content_length = os.fstat(copy.fileno()).st_size
            await response.prepare(ask.request)
            while piece := await asyncio.to_thread(copy.read, BACKUP_PIECE_BYTES):
                await response.write(piece)
            await response.write_eof()
        return response

    def _told(self, progress: Progress) -> RebuildShown:
        return RebuildShown(
            bucket=progress.bucket,
            phase=progress.phase.value,
            adopted=progress.adopted or None,
            generation=progress.generation,
            waits_s=max(0.0, round(progress.waits_until - self._clock.monotonic(), 1)),
            objects=progress.objects,
            fenced=progress.fenced,
            raised=progress.raised,
            raised_keys=[RaisedKey(key=one.key, before=one.before, floor=one.floor) for one in progress.raised_keys],
            owners=progress.owners,
            unreadable=progress.unreadable,
            unreadable_objects=progress.unreadable_objects,
            error=progress.error or None,
        )


def _for_all_keys(ask: Ask, what: str) -> None:
    """Raises `Problem` (403) where the caller may not use every key."""
    if not may_use_all(ask.caller):
        raise Problem(403, "forbidden", f"{what} is of all keys, and this API token is limited to some")
