"""One timer for many moments: whoever sets an alarm is called at it, and says then whether it still concerns him."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from gateway.clock import Clock

T = TypeVar("T")
MIN_WAIT_S = 0.001
"""A timer may fire a hair before its moment."""


class Alarms(Generic[T]):
    """Calls `ring` with what was set, at or after its moment. An alarm cannot be taken back: what has become of it, its
    receiver knows."""

    def __init__(self, clock: Clock, ring: Callable[[T], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._set: list[tuple[float, int, T]] = []
        self._serial = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float, what: T) -> None:
        """`at` in monotonic seconds."""
        heapq.heappush(self._set, (at, next(self._serial), what))
        if self._set[0][0] == at:
            self._wait()

    def stop(self) -> None:
        """None rings any more."""
        self._set.clear()
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._set:
            wait_s = max(self._set[0][0] - self._clock.monotonic(), MIN_WAIT_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        now = self._clock.monotonic()
        due = []
        while self._set and self._set[0][0] <= now:
            due.append(heapq.heappop(self._set)[2])
        self._wait()
        for what in due:
            self._ring(what)
