"""The one place where time and chance come from, so that tests and simulations can hold both in their hands."""

from __future__ import annotations

import itertools
import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """What is asked of time and chance."""

    def monotonic(self) -> float:
        """Seconds that never go back; decides every expiry."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch; for signatures and for people."""
        ...

    def nonce(self) -> str:
        """A string that no send before or after bears."""
        ...

    def chance(self) -> float:
        """A number from 0 up to 1, for pauses that many must not make alike. No secret may be made of it."""
        ...


class SystemClock:
    """The machine's clock and randomness."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    chance = staticmethod(random.random)

    def __init__(self) -> None:
        # One draw for the process and a count: as unique as a draw for each, without a system call.
        self._drawn = secrets.token_hex(12)
        self._nonces = itertools.count(1)

    def nonce(self) -> str:
        return f"{self._drawn}{next(self._nonces):x}"


class HolderClock(SystemClock):
    """The clock of who holds a lease and counts it himself: it goes on while the machine sleeps, where the platform has
    such a one (CLOCK_BOOTTIME of Linux; elsewhere its monotonic clock, which on Windows does so too)."""

    @staticmethod
    def monotonic() -> float:
        return _since_boot()


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
