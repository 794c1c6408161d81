"""SqliteStore: the store of one gateway, durable in one file.

One connection writes, in group commits (`writer`); another reads what is committed, behind bounded caches
(`cache`). Both have a thread of their own, so the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiosqlite

from gateway.stores.base import StoreUnavailable
from gateway.stores.rules import (
    granted,
    next_generation,
    raised,
    require_text,
    require_token,
    sealed,
    shadowed,
    storable,
)
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.backup import write_backup
from gateway.stores.sqlite.cache import ReadThrough
from gateway.stores.sqlite.database import (
    Run,
    begin_run,
    connect_reader,
    connect_writer,
    in_place,
    leave_clean_mark,
    make_directory,
    make_file,
    refuse_stray_log,
    unavailable,
    write_generation,
)
from gateway.stores.sqlite.jobs import SqliteJobs
from gateway.stores.sqlite.lazy import LazyWrites
from gateway.stores.sqlite.lock import FileLock
from gateway.stores.sqlite.outbox import SqliteOutbox
from gateway.stores.sqlite.outbox_rows import OutboxRows
from gateway.stores.sqlite.rows import execute, forget_before
from gateway.stores.sqlite.uploads import SqliteUploads
from gateway.stores.sqlite.writer import CHECK_TIMEOUT_S, Writer
from gateway.stores.values import Authority, Event, Fence, Granted, GrantWanted, Ruling, Start

_ObjectId = tuple[str, str]


class SqliteStore:
    """Implements `gateway.stores.base.Store`. `clock` gives wall-clock time in seconds since the epoch;
    `cache_size` bounds the keys, uploads and owners kept in memory, each."""

    def __init__(self, path: Path, *, cache_size: int = 65536, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = FileLock(path)
        self._fences: ReadThrough[str, Fence] = ReadThrough(cache_size)
        self._owners: ReadThrough[_ObjectId, str | None] = ReadThrough(cache_size)
        self._lazy = LazyWrites()
        self._outbox_rows = OutboxRows()
        self.uploads = SqliteUploads(lambda: self._writer, self._fetch, clock, cache_size)
        self.jobs = SqliteJobs(lambda: self._writer, self._fetch, lambda: self.authority.generation, clock)
        self.outbox = SqliteOutbox(self._outbox_rows, lambda: self._writer, self._fetch)
        self._connections = contextlib.AsyncExitStack()
        self._open_reader: aiosqlite.Connection | None = None
        self._open_writer: Writer | None = None
        self._authority: Authority | None = None

    # --- beginning and end ----------------------------------------------------------------------------------

    async def start(self, rules_digest: str) -> Start:
        """See Store. Makes what is missing; never replaces a file that it cannot read."""
        try:
            run = await self._open(rules_digest)
            await self.jobs.start()
        except BaseException as error:
            self._open_reader = self._open_writer = None
            await self._connections.aclose()
            if isinstance(error, sqlite3.Error | OSError):
                raise unavailable(error) from error
            raise
        return run.start

    async def _open(self, rules_digest: str) -> Run:
        """What has been opened when this fails, is in `_connections`."""
        await asyncio.to_thread(make_directory, self._path.parent)
        await asyncio.to_thread(self._lock.acquire)
        self._connections.callback(self._lock.release)
        await asyncio.to_thread(make_file, self._path)
        await asyncio.to_thread(self._lock.acquire_database)
        await asyncio.to_thread(refuse_stray_log, self._path)
        connection = await connect_writer(self._path)
        self._connections.push_async_callback(connection.close)
        run = await begin_run(connection, rules_digest)
        self._open_reader = await connect_reader(self._path)
        self._connections.push_async_callback(self._open_reader.close)
        self._open_writer = Writer(
            connection,
            self._fences,
            self._lazy,
            outbox=self._outbox_rows,
            in_place=in_place(self._path),
            on_failure=self._forget_rows,
            clock=self._clock,
        )
        self._authority = run.authority
        return run

    async def stop(self, *, clean: bool) -> None:
        """See Store. Closes and unlocks in any case; StoreUnavailable if something could not be written."""
        writer = self._writer
        self._open_reader = self._open_writer = None
        try:
            await writer.finish()
            if clean:
                await writer.change_rows(leave_clean_mark)
        finally:
            self._fences.clear()
            self._forget_rows()
            await self._connections.aclose()

    async def check(self) -> None:
        """See Store. Bounded by CHECK_TIMEOUT_S."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._writer.change_rows(partial(execute, sql.COUNT_CHECK, {}))
        except TimeoutError as error:
            raise StoreUnavailable(f"no durable write within {CHECK_TIMEOUT_S:g} s") from error

    # --- fences ---------------------------------------------------------------------------------------------

    async def fence(self, key: str) -> Fence:
        return await self._fences.read(key, partial(self._load_fence, key))

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        writer = self._writer
        require_token(token)
        known = self._fences.get(key)
        if known is not None and token <= known.floor:
            return self._lazy.upon(known)
        rule = partial(raised, token=token, at=self._clock())
        return await writer.change_fence(require_text(key), rule, event and storable(event))

    async def raise_shadow(self, key: str, token: int) -> Fence:
        writer = self._writer
        require_token(token)
        # Asked before the read: what is committed meanwhile is in one of the two.
        waiting = self._lazy.shadow(key)
        fence = await self.fence(require_text(key))
        if token > max(fence.shadow_floor, waiting):
            waiting = self._lazy.raise_shadow(key, token)
            writer.flush_soon()
        return shadowed(fence, waiting)

    def complete_handover(self, key: str, token: int) -> None:
        writer = self._writer
        self._lazy.complete_handover(require_text(key), require_token(token))
        writer.flush_soon()

    async def seal(self, key: str, token: int, event: Event | None = None) -> Fence:
        rule = partial(sealed, token=require_token(token))
        return await self._writer.change_fence(require_text(key), rule, event and storable(event))

    async def fences(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        return await self._list(sql.FENCES, after, limit, prefix)

    async def _list(self, statement: str, after: str | None, limit: int, prefix: str) -> list[Fence]:
        beyond = require_text(prefix).encode() + b"\xff"
        values = {"after": after or "", "prefix": prefix, "beyond": beyond, "limit": limit}
        return [sql.fence_of(row) for row in await self._fetch(statement, values)]

    # --- leases ---------------------------------------------------------------------------------------------

    async def grant(self, key: str, wanted: GrantWanted, event: Event | None = None) -> Granted:
        writer, at, token = self._writer, self._clock(), 0

        def rule(fence: Fence) -> Fence:
            nonlocal token
            new = granted(fence, wanted, self.authority.generation, at)
            token = 0 if new is fence else new.floor
            return new

        def rows(fence: Fence) -> Iterable[tuple[str, sql.Values]]:
            if wanted.repeatable is not None:
                yield sql.REMEMBER_GRANT, (*wanted.repeatable, fence.floor, at)

        for text in (wanted.holder, wanted.id, *(wanted.repeatable or ())):
            require_text(text)
        fence = await writer.change_fence(require_text(key), rule, event and storable(event), rows)
        return Granted(fence, token)

    async def granted_before(self, scope: str, idempotency_key: str) -> int:
        for (token,) in await self._fetch(sql.GRANTED_BEFORE, (scope, idempotency_key)):
            return int(token)
        return 0

    async def forget_grants(self, before: float) -> int:
        return await forget_before(self._writer, sql.FORGET_GRANTS, before)

    async def leases(self, after: str | None, limit: int, prefix: str = "") -> list[Fence]:
        return await self._list(sql.LEASES, after, limit, prefix)

    # --- history --------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        writer = self._writer
        if not self._lazy.counted(event):
            self._lazy.record(storable(event)._replace(at=self._clock()))
        writer.flush_soon()

    async def events(self, key: str, before: int | None, limit: int) -> list[Event]:
        values = {"key": key, "before": before, "limit": limit}
        return [sql.event_of(row) for row in await self._fetch(sql.EVENTS, values)]

    @property
    def dropped_events(self) -> int:
        return self._lazy.dropped_events

    # --- owners ---------------------------------------------------------------------------------------------

    async def owner(self, bucket: str, object_key: str) -> str | None:
        this = (bucket, object_key)
        return await self._owners.read(this, partial(self._load_owner, this))

    async def claim(self, bucket: str, object_key: str, fence_key: str, *, instead_of: str | None) -> str:
        this = (require_text(bucket), require_text(object_key))
        if self._owners.get(this) == fence_key:
            return fence_key
        values = {
            "bucket": bucket,
            "object_key": object_key,
            "fence_key": require_text(fence_key),
            "instead_of": instead_of,
        }

        async def claim(connection: aiosqlite.Connection) -> str:
            await connection.execute(sql.CLAIM, values)
            ((owner,),) = await execute(sql.OWNER, this, connection)
            return str(owner)

        return await self._writer.change_rows(claim, lambda _: self._owners.forget(this))

    # --- who rules a bucket -----------------------------------------------------------------------------------

    @property
    def authority(self) -> Authority:
        if self._authority is None:
            raise StoreUnavailable("the store has not been started")
        return self._authority

    async def raise_generation(self, above: int) -> Authority:
        async def write(connection: aiosqlite.Connection) -> Authority:
            authority = replace(self.authority, generation=next_generation(self.authority.generation, above))
            await write_generation(connection, authority.generation)
            return authority

        def committed(authority: Authority) -> None:
            self._authority = authority

        return await self._writer.change_rows(write, committed)

    async def knows_run(self, run: str) -> bool:
        return bool(await self._fetch(sql.KNOWN_RUN, (run,)))

    async def ruling(self, bucket: str) -> Ruling | None:
        for row in await self._fetch(sql.RULING, (bucket,)):
            return sql.ruling_of(row)
        return None

    async def rulings(self) -> list[Ruling]:
        return [sql.ruling_of(row) for row in await self._fetch(sql.RULINGS, ())]

    async def rule(self, bucket: str) -> None:
        await self._write_ruling(bucket, None)

    async def begin_rebuild(self, bucket: str, claim: str) -> None:
        await self._write_ruling(bucket, require_text(claim))

    async def _write_ruling(self, bucket: str, claim: str | None) -> None:
        values = {"bucket": require_text(bucket), "claim": claim}
        await self._writer.change_rows(partial(execute, sql.WRITE_RULING, values))

    async def advance_rebuild(self, bucket: str, claim: str, after: str, objects: int) -> None:
        values = {"bucket": bucket, "claim": claim, "after": require_text(after), "objects": objects}
        await self._writer.change_rows(partial(execute, sql.ADVANCE_REBUILD, values))

    async def forget_bucket(self, bucket: str) -> None:
        await self._writer.change_rows(partial(execute, sql.FORGET_BUCKET, (bucket,)))

    async def backup(self, file: Path) -> None:
        if self._open_reader is None:
            raise StoreUnavailable("the store is closed")
        try:
            await asyncio.to_thread(write_backup, self._path, file, self._clock())
        except (sqlite3.Error, OSError) as error:
            raise unavailable(error) from error

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _writer(self) -> Writer:
        if self._open_writer is None:
            raise StoreUnavailable("the store is closed")
        return self._open_writer

    def _forget_rows(self) -> None:
        self.uploads.clear_cache()
        self._owners.clear()

    async def _fetch(self, statement: str, values: sql.Values) -> list[sql.Row]:
        """What is committed, all rows at once."""
        if self._open_reader is None:
            raise StoreUnavailable("the store is closed")
        try:
            return list(await self._open_reader.execute_fetchall(statement, values))
        except (sqlite3.Error, ValueError) as error:
            raise unavailable(error) from error

    async def _load_fence(self, key: str) -> Fence:
        for row in await self._fetch(sql.FENCE, (key,)):
            return sql.fence_of(row)
        return Fence(key)

    async def _load_owner(self, this: _ObjectId) -> str | None:
        for (fence_key,) in await self._fetch(sql.OWNER, this):
            return str(fence_key)
        return None
