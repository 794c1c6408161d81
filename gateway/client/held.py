"""A lease as its holder counts it: until when, and what happens when it is lost.

The gateway counts `expires_in_s` from some moment after the request was sent; its holder counts from before he sent it,
and ends a margin earlier. So he stops before anybody else can begin, whatever the wall clocks say. The clock is one
that goes on while the machine sleeps, where the platform has such a one (`clock.HolderClock`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from gateway.client.errors import LeaseLost
from gateway.client.records import Grant
from gateway.clock import Clock

T = TypeVar("T")

LEAST_MARGIN_S = 0.05
MARGIN_OF_TERM = 0.02
"""What the two monotonic clocks may differ in speed, and what stopping takes."""
RENEWALS_IN_TERM = 3
SHORTENED = 0.9
"""A renewal that gives less than this part of what was granted has been cut at the lease's total time."""


class Held:
    """One lease in its holder's hands. Safe to ask from any thread."""

    def __init__(self, grant: Grant, clock: Clock) -> None:
        self.grant = grant
        self.lost = threading.Event()
        self.error: LeaseLost | None = None
        self.finishing = False
        """A call is under way that ends the lease: what the heartbeat is told meanwhile decides nothing."""
        self.last_failure: Exception | None = None
        """Why the last renewal failed."""
        self.on_renewed: Callable[[float], None] = lambda deadline: None
        self._clock = clock
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[LeaseLost], None]] = []
        self.renewed(grant.sent_at, grant.expires_in_s)

    def renewed(self, sent_at: float, expires_in_s: float) -> None:
        """It lasts `expires_in_s` from some moment after `sent_at`."""
        self.term_s = expires_in_s
        self.deadline = sent_at + expires_in_s - max(LEAST_MARGIN_S, MARGIN_OF_TERM * expires_in_s)
        self.renew_at = sent_at + expires_in_s / RENEWALS_IN_TERM
        self.last_failure = None
        _tell(self.on_renewed, self.deadline)

    @property
    def left_s(self) -> float:
        """How long it lasts, as its holder counts; at least 0, and 0 once it is lost."""
        return 0.0 if self.lost.is_set() else max(0.0, self.deadline - self._clock.monotonic())

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> None:
        """Have it called once when the lease is lost; at once if it has been."""
        with self._lock:
            if self.error is None:
                self._callbacks.append(callback)
                return
        callback(self.error)

    def lose(self, error: LeaseLost) -> None:
        """It is lost: tell everybody, once."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            callbacks, self._callbacks = self._callbacks, []
        self.lost.set()
        for callback in callbacks:
            _tell(callback, error)

    def check(self) -> None:
        """Raises `LeaseLost` if it is lost, or if its time is over and the heartbeat has not told so yet, as in a
        process that has just been continued."""
        if self.error is None and self._clock.monotonic() >= self.deadline:
            self.lose(self.run_out())
        if self.error is not None:
            raise LeaseLost(str(self.error), self.error.problem) from self.error

    def run_out(self) -> LeaseLost:
        """The error of a lease whose time is over."""
        lease = f"the lease of {self.grant.key!r}"
        if self.last_failure is None and self.term_s < SHORTENED * self.grant.expires_in_s:
            return LeaseLost(f"{lease} has lasted for as long as the gateway lets any ([lease] max_total_s)")
        why = f": {self.last_failure}" if self.last_failure else ""
        return LeaseLost(f"{lease} could not be renewed in time{why}")


def _tell(callback: Callable[[T], None], news: T) -> None:
    """What fails in a holder's own code, an exit included, is told like what nobody catches: the heartbeats of all
    leases go on in this thread."""
    try:
        callback(news)
    except BaseException:
        sys.excepthook(*sys.exc_info())
