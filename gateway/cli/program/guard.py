"""Ends a process group in time, whatever has become of who started it: `python guard.py GRACE_S`.

Told on standard input, a line each:

    group PGID          whom to end; nothing happens before
    deadline SECONDS    by when, on the clock of `gateway.clock.HolderClock`; told anew with every renewal
    stop                end it now
    done                it has ended by itself; the guard ends too, with status 0

The group is sent SIGTERM (and continued, if it was stopped) GRACE_S before the deadline, or when told to stop, or when
standard input ends without `done`, which is what the death of the other side looks like. What is left of it after the
grace, and at the deadline at the latest, is killed. Then the guard ends with status 1.

A script of its own that imports nothing of the gateway: small, started within milliseconds, and with nothing to wait
for but its clock. It has a session of its own, so that no key and no signal to the group of its parent reaches it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

LONGEST_NAP_S = 1.0
"""A timer stands still while the machine sleeps; the clock does not."""
LOOK_S = 0.02


def now() -> float:
    """Seconds on the clock of `gateway.clock.HolderClock`, which this script does not import."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Told:
    """What has been said on standard input."""

    def __init__(self) -> None:
        self.group = 0
        self.deadline = float("inf")
        self.stop = False
        self.done = False
        self.over = False
        self._rest = b""

    def listen(self, wait_s: float) -> None:
        """Take in what is said within that time."""
        if not select.select([0], [], [], max(0.0, wait_s))[0]:
            return
        piece = os.read(0, 4096)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._take(line)
        self.over = not piece
        self.stop = self.stop or self.over

    def _take(self, line: bytes) -> None:
        word, _, value = line.partition(b" ")
        match word:
            case b"group":
                self.group = int(value)
            case b"deadline":
                self.deadline = float(value)
            case b"stop":
                self.stop = True
            case b"done":
                self.done = True


def watch(grace_s: float) -> int:
    """The exit status."""
    told = Told()
    while not told.done:
        left_s = told.deadline - grace_s - now()
        if told.group and (told.stop or left_s <= 0):
            end(told.group, min(now() + grace_s, told.deadline))
            return 1
        if told.over:
            return 1
        told.listen(min(max(left_s, LOOK_S), LONGEST_NAP_S))
    return 0


def end(group: int, latest: float) -> None:
    """Ask, wait, kill."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGCONT)
    with suppress(ProcessLookupError, PermissionError):
        while now() < latest:
            os.killpg(group, 0)
            time.sleep(min(LOOK_S, max(0.0, latest - now())))
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(watch(float(sys.argv[1])))
