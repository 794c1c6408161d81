"""Calls that are repeated while they are still being answered: one answer, for all who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Asked(Generic[T]):
    task: asyncio.Task[T]
    terms: object
    callers: int = 0


class Repeats(Generic[K, T]):
    """What is being answered, by what names a call (its idempotency key, and what that is for)."""

    def __init__(self) -> None:
        self._asked: dict[K, _Asked[T]] = {}

    async def answer(
        self, call: K, terms: object, begin: Callable[[], asyncio.Task[T]], reused: Callable[[], Exception]
    ) -> T:
        """What the task answers that `begin` makes, or that an equal call has made and that is not done. Cancelled
        when the last who waits for it has gone. Raises what the task does, and `reused` where the same call is being
        answered on other `terms`."""
        asked = self._asked.get(call)
        if asked is None:
            asked = self._asked[call] = _Asked(begin(), terms)
            asked.task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waited has been told
        elif asked.terms != terms:
            raise reused()
        asked.callers += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            asked.callers -= 1
            if not asked.callers:
                asked.task.cancel()
                if self._asked.get(call) is asked:
                    del self._asked[call]
