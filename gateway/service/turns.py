"""One after another, for each key apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from gateway.service.beside import Beside

T = TypeVar("T")


class Turns:
    """Locks by key, each kept only as long as somebody is in it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Nobody else is inside for the same key."""
        lock, users = self._locks.get(key, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users > 1:
                self._locks[key] = (lock, users - 1)
            else:
                del self._locks[key]

    async def to_its_end(self, key: str, beside: Beside, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` answers, or raises, begun in its turn. Who goes away before has asked for nothing: else each who
        comes again while the disk hangs would leave one more to wait. From then on it goes on without him."""
        turn = AsyncExitStack()
        await turn.enter_async_context(self.of(key))

        async def within() -> T:
            async with turn:
                return await work()

        return await beside.to_its_end(within())
