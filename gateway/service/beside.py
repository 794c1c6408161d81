"""What runs beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Beside:
    """Tasks that go on without whoever began them, held until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def idle(self) -> bool:
        """Whether none runs."""
        return not self._tasks

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it; nobody has to wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """What it answers, or raises. A caller that goes away meanwhile does not end it."""
        task = self.run(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have gone
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Wait until all that run now have ended, however they do."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cut off all that run, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.ended()
