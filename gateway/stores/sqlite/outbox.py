"""The outbox: what waits to be announced, written in the transaction of what it tells of (`outbox_rows`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import aiosqlite

from gateway.stores.base import Arrived, Wanted
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.outbox_rows import OutboxRows
from gateway.stores.sqlite.writer import Writer
from gateway.stores.values import Backlog, Dropped, Waiting


class SqliteOutbox:
    """Implements `gateway.stores.base.Outbox`. `fetch` answers what is committed."""

    def __init__(
        self,
        rows: OutboxRows,
        writer: Callable[[], Writer],
        fetch: Callable[[str, sql.Values], Awaitable[list[sql.Row]]],
    ) -> None:
        self._rows = rows
        self._writer = writer
        self._fetch = fetch

    def announce(self, wanted: Wanted, arrived: Arrived) -> None:
        self._rows.wanted, self._rows.arrived = wanted, arrived

    async def backlogs(self) -> list[Backlog]:
        return [Backlog(*row) for row in await self._fetch(sql.BACKLOGS, ())]

    async def waiting(self, webhook: str, after: int, limit: int) -> list[Waiting]:
        rows = await self._fetch(sql.WAITING, (webhook, after, limit))
        return [sql.waiting_of(row) for row in rows]

    async def next_of(self, webhook: str, key: str, after: int) -> Waiting | None:
        for row in await self._fetch(sql.NEXT_WAITING, (webhook, key, after)):
            return sql.waiting_of(row)
        return None

    def done(self, waiting: Waiting) -> None:
        self._rows.remove(waiting.serial)
        self._writer().flush_soon()

    async def drop_oldest(self, webhook: str, keep: int) -> Dropped:
        return await self._writer().change_rows(partial(_drop_oldest, webhook, keep))

    async def forget(self, webhook: str, before: float) -> int:
        return await self._writer().change_rows(partial(_forget, webhook, before))


async def _drop_oldest(webhook: str, keep: int, connection: aiosqlite.Connection) -> Dropped:
    for (up_to,) in await connection.execute_fetchall(sql.NEWEST_TO_DROP, (webhook, keep)):
        cursor = await connection.execute(sql.DROP_WAITING, (webhook, up_to))
        return Dropped(cursor.rowcount, up_to)
    return Dropped(0, 0)


async def _forget(webhook: str, before: float, connection: aiosqlite.Connection) -> int:
    return (await connection.execute(sql.FORGET_WAITING, (webhook, before))).rowcount
