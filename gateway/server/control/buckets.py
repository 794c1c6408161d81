"""The part of the control API that deals with the database as a whole: buckets that it rules, rebuilds, backups."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.clock import Clock
from gateway.server.control.access import Authorise
from gateway.server.control.documents import json_answer, number
from gateway.server.control.problems import Problem
from gateway.service.rebuild import Progress, Rebuilds
from gateway.service.records import Records, remedy
from gateway.stores.base import Store

MAX_WAIT_S = 30
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
BACKUP_PIECE_BYTES = 1 << 18


class BucketCalls:
    """Its handlers. `data` is where a backup may lie while it is made and sent; None: there are none to be had."""

    def __init__(self, store: Store, records: Records, rebuilds: Rebuilds, clock: Clock, data: Path | None) -> None:
        self._store = store
        self._records = records
        self._rebuilds = rebuilds
        self._clock = clock
        self._data = data

    def routes(self, as_caller: Authorise, as_operator: Authorise) -> list[web.RouteDef]:
        """The routes, each for its callers."""

        def of(authorise: Authorise, handler: Handler) -> Handler:
            async def handle(request: web.Request) -> web.StreamResponse:
                authorise(request)
                return await handler(request)

            return handle

        return [
            web.get("/v1/buckets", of(as_caller, self.list_buckets)),
            web.post("/v1/buckets/{bucket}/rebuild", of(as_operator, self.rebuild)),
            web.get("/v1/buckets/{bucket}/rebuild", of(as_operator, self.show_rebuild)),
            web.get("/v1/backup", of(as_operator, self.backup)),
        ]

    async def list_buckets(self, request: web.Request) -> web.StreamResponse:
        """Who this gateway is, the buckets that it rules, and those where it refuses what is fenced."""
        authority, refused = self._store.authority, await self._records.refusals()
        ruled = [ruling.bucket for ruling in await self._store.rulings() if ruling.bucket not in refused]
        return json_answer(
            {
                "database": authority.database,
                "generation": authority.generation,
                "records": not self._records.off,
                "ruled": ruled,
                "unrecorded": sorted(self._records.unrecorded),
                "refused": [{"bucket": b, "reason": why, "remedy": remedy(b)} for b, why in refused.items()],
            }
        )

    async def rebuild(self, request: web.Request) -> web.StreamResponse:
        """Make a bucket this database's, with the floors that its objects tell; answers at once."""
        return json_answer(self._told(self._rebuilds.begin(_bucket(request))), status=202)

    async def show_rebuild(self, request: web.Request) -> web.StreamResponse:
        """How far the last rebuild of a bucket has come; with `wait_s`, answered when it is over, else after that."""
        bucket = _bucket(request)
        wait_s = request.query.get("wait_s", "0")
        if not wait_s.isdecimal() or int(wait_s) > MAX_WAIT_S:
            raise Problem(400, "invalid", f"`wait_s` must be a whole number of seconds up to {MAX_WAIT_S}")
        await self._rebuilds.wait(bucket, int(wait_s))
        progress = self._rebuilds.progress(bucket)
        if progress is None:
            raise Problem(404, "not-found", f"no rebuild of bucket {bucket!r} has been begun in this run")
        return json_answer(self._told(progress))

    async def backup(self, request: web.Request) -> web.StreamResponse:
        """A consistent copy of the database, made while it is in use."""
        if self._data is None:
            raise Problem(409, "no-backup", "this gateway keeps its database in memory")
        with TemporaryDirectory(prefix=".backup-", dir=self._data) as directory:
            file = Path(directory) / "gateway.db"
            await self._store.backup(file)
            copy = file.open("rb")
        with copy:  # no longer in the directory, and gone with the process
            response = web.StreamResponse(headers={"content-type": "application/vnd.sqlite3"})
            response.content_length = os.fstat(copy.fileno()).st_size
            await response.prepare(request)
            while piece := await asyncio.to_thread(copy.read, BACKUP_PIECE_BYTES):
                await response.write(piece)
            await response.write_eof()
        return response

    def _told(self, progress: Progress) -> dict[str, object]:
        return {
            "bucket": progress.bucket,
            "phase": progress.phase.value,
            "adopted": progress.adopted or None,
            "generation": progress.generation,
            "waits_s": max(0.0, round(progress.waits_until - self._clock.monotonic(), 1)),
            "objects": progress.objects,
            "fenced": progress.fenced,
            "raised": progress.raised,
            "raised_keys": [
                {"key": one.key, "before": number(one.before), "floor": number(one.floor)}
                for one in progress.raised_keys
            ],
            "owners": progress.owners,
            "unreadable": progress.unreadable,
            "unreadable_objects": progress.unreadable_objects,
            "error": progress.error or None,
        }


def _bucket(request: web.Request) -> str:
    """The bucket in the path. Raises `Problem` for what names none."""
    bucket = request.match_info["bucket"]
    if not _BUCKET.fullmatch(bucket):
        raise Problem(400, "invalid", "a bucket's name has letters, digits, dots, hyphens and underscores alone")
    return bucket
