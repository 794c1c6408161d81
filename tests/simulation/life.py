"""How long one run of the gateway lives. It may die at any step, before or after what it does to disk or network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Life:
    """One run's. Once it is over, nothing of the run reaches disk or network."""

    def __init__(self, steps_left: int | None, on_death: Callable[[], None]) -> None:
        self._steps_left = steps_left
        self._on_death = on_death
        self.over = False
        self._spared = False

    def step(self) -> None:
        """One more step. Raises `CancelledError` in whoever takes it after the run's end, or takes its last."""
        if self._steps_left is not None and not self.over:
            self._steps_left -= 1
            if self._steps_left < 0:
                self.kill()
        self.check()

    def kill(self) -> None:
        """It dies now."""
        if not self.over and not self._spared:
            self.over = True
            self._on_death()

    def check(self) -> None:
        """No step, but who has been away finds out here."""
        if self.over:
            raise asyncio.CancelledError

    def spare(self) -> None:
        """It dies no more by itself."""
        self._spared = True

    def end(self) -> None:
        self.over = True
