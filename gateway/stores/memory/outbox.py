"""The outbox without a disk."""

from __future__ import annotations

from itertools import groupby, islice

from gateway.stores.base import Arrived, Wanted
from gateway.stores.values import Backlog, Dropped, Event, Waiting


class MemoryOutbox:
    """Implements `gateway.stores.base.Outbox`."""

    def __init__(self) -> None:
        self._rows: dict[int, Waiting] = {}
        self._serial = 0
        self.restarted()

    def restarted(self) -> None:
        """Another run: who announces has to say so anew."""
        self._wanted: Wanted = lambda _: ()
        self._arrived: Arrived = lambda _: None

    def add(self, event: Event) -> None:
        """An event has been recorded."""
        for webhook in self._wanted(event):
            self._serial += 1
            self._rows[self._serial] = Waiting(self._serial, webhook, event)
            self._arrived({webhook: 1})

    def announce(self, wanted: Wanted, arrived: Arrived) -> None:
        self._wanted, self._arrived = wanted, arrived

    async def backlogs(self) -> list[Backlog]:
        by_webhook = groupby(sorted(self._rows.values(), key=_webhook), _webhook)
        grouped = [(webhook, list(rows)) for webhook, rows in by_webhook]
        return [Backlog(webhook, len(rows), min(row.event.at for row in rows)) for webhook, rows in grouped]

    async def waiting(self, webhook: str, after: int, limit: int) -> list[Waiting]:
        return list(islice((row for row in self._of(webhook) if row.serial > after), limit))

    async def next_of(self, webhook: str, key: str, after: int) -> Waiting | None:
        return next((row for row in self._of(webhook) if row.event.key == key and row.serial > after), None)

    def done(self, waiting: Waiting) -> None:
        self._rows.pop(waiting.serial, None)

    async def drop_oldest(self, webhook: str, keep: int) -> Dropped:
        rows = self._of(webhook)
        old = rows[: max(0, len(rows) - keep)]
        for row in old:
            del self._rows[row.serial]
        return Dropped(len(old), old[-1].serial if old else 0)

    async def forget(self, webhook: str, before: float) -> int:
        old = [row for row in self._of(webhook) if row.event.at < before]
        for row in old:
            del self._rows[row.serial]
        return len(old)

    def _of(self, webhook: str) -> list[Waiting]:
        return [row for row in self._rows.values() if row.webhook == webhook]


def _webhook(row: Waiting) -> str:
    return row.webhook
