"""What a transaction adds to the outbox and takes out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import aiosqlite

from gateway.stores.base import Arrived, Wanted
from gateway.stores.sqlite import statements as sql
from gateway.stores.values import Event


class OutboxRows:
    """Waits for the writer's next commit, and is told whether it has succeeded."""

    def __init__(self) -> None:
        self.wanted: Wanted | None = None
        self.arrived: Arrived = lambda _: None
        self._done: list[int] = []
        self._taken: list[int] = []
        self._added: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._done)

    def remove(self, serial: int) -> None:
        """Take a row out with the next commit."""
        self._done.append(serial)

    async def write(self, connection: aiosqlite.Connection, events: Sequence[Event]) -> None:
        """Part of a transaction: add what is wanted of `events`, take out what is done."""
        if self.wanted is not None:
            rows = [(webhook, *sql.row_of_event(event)) for event in events for webhook in self.wanted(event)]
            if rows:
                self._added.update(webhook for webhook, *_ in rows)
                await connection.executemany(sql.ADD_WAITING, rows)
        self._taken, self._done = self._done, []
        if self._taken:
            await connection.executemany(sql.REMOVE_WAITING, [(serial,) for serial in self._taken])

    def committed(self) -> None:
        """The transaction is durable: tell of what has been added."""
        added, self._added, self._taken = self._added, Counter(), []
        if added:
            self.arrived(added)

    def failed(self) -> None:
        """It is not: what was to be taken out waits for the next."""
        self._done = self._taken + self._done
        self._added, self._taken = Counter(), []
