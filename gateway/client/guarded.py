"""What every lease and job in a worker's hands tells, in both faces of the client."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gateway.client.background import Background
from gateway.client.errors import LeaseLost
from gateway.client.hold import Hold, JobHold, LeaseHold
from gateway.client.records import LeaseCredentials


class Guarded:
    """The state of a lease. Safe to ask from any thread; raises `RuntimeError` before the context is entered."""

    def __init__(self, hold: Hold, background: Background) -> None:
        self._hold = hold
        self._background = background

    def __repr__(self) -> str:
        try:
            told = f" {self.key!r}, token {self.token}, {self.left_s:.1f} s left"
        except RuntimeError:
            told = ", not entered"
        return f"<{type(self).__name__}{told}>"

    @property
    def key(self) -> str:
        return self._hold.held.grant.key

    @property
    def token(self) -> int:
        """Higher than every token that the key's earlier holders have."""
        return self._hold.held.grant.token

    @property
    def holder(self) -> str:
        return self._hold.held.grant.holder

    @property
    def output(self) -> str | None:
        """The object key that a rule gives the job's output."""
        return self._hold.held.grant.output

    @property
    def credentials(self) -> LeaseCredentials | None:
        """AWS credentials with which every request bears key and token by itself; None where the gateway gives none."""
        return self._hold.held.grant.credentials

    @property
    def deadline(self) -> float:
        """Until when it lasts unless it is renewed, on `gateway.clock.HolderClock`."""
        return self._hold.held.deadline

    @property
    def left_s(self) -> float:
        """How long that is, in seconds; 0 once the lease is lost."""
        return self._hold.held.left_s

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost or could not be renewed in time."""
        return self._hold.held.lost

    def check(self) -> None:
        """Raises `LeaseLost` once the lease is lost. Costs no request. Call it before each step that should not be
        begun in vain; what has been sent to the store is the gateway's to refuse."""
        self._hold.held.check()

    def run_out(self) -> LeaseLost:
        """The error of who has ended the work in time, since the lease would have run out under it."""
        return self._hold.held.run_out()

    def on_lost(self, callback: Callable[[LeaseLost], None]) -> None:
        """Have `callback` called when the lease is lost; at once if it has been. It is called in the thread of the
        heartbeats, which all wait for it: it must not block."""
        self._hold.held.on_lost(callback)

    def on_renewed(self, callback: Callable[[float], None]) -> None:
        """Have `callback` called with every new deadline, as `on_lost`'s is."""
        self._hold.held.on_renewed = callback


class GuardedLease(Guarded):
    """A lease on a key."""

    _hold: LeaseHold


class GuardedJob(Guarded):
    """A job that a queue has delivered: known before its context is entered, kept from then on."""

    _hold: JobHold

    @property
    def key(self) -> str:
        return self._hold.grant.key

    @property
    def token(self) -> int:
        return self._hold.grant.token

    @property
    def payload(self) -> object:
        """What it was submitted with."""
        return self._hold.grant.payload

    @property
    def attempts(self) -> int:
        """How often it has been delivered, this time included."""
        return self._hold.grant.attempts


def in_words(error: BaseException) -> str:
    """Why an attempt failed, for the job's record. Names of files in it may be no UTF-8."""
    return f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "backslashreplace").decode()
