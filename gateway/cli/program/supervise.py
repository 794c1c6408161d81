"""Waiting for a guarded program: its end, its stops, and the signals that are meant for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.cli.program.terminal import Terminal, stop_here
from gateway.cli.program.ward import Ward


def _known(*names: str) -> frozenset[signal.Signals]:
    """Those that the platform has, so that other commands can be imported on every one."""
    return frozenset(signal.Signals[name] for name in names if name in signal.Signals.__members__)


PASSED_ON = _known("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH")
AWAITED = PASSED_ON | _known("SIGCHLD", "SIGTSTP", "SIGCONT")


@contextmanager
def awaiting() -> Iterator[frozenset[int]]:
    """Keep these signals for `follow`; answers those that were blocked before."""
    # Without a handler the system may throw SIGCHLD away.
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED | {signal.SIGTTOU})
    try:
        yield frozenset(map(int, mask))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, before)


def follow(ward: Ward, terminal: Terminal | None) -> int:
    """Wait for the program's end; its exit status, 128 and the signal's number for one that a signal has ended.

    On a terminal our whole job stops when it stops: by Ctrl-Z, or because it wants to read in the background."""
    while True:
        for status in iter(ward.poll, None):
            if terminal is not None:
                terminal.take(ward.pid)
            if not os.WIFSTOPPED(status):
                return status_of(status)
            if terminal is not None:
                stop_here(whole_group=True)
                _go_on(ward, terminal)
        match signal.sigwait(AWAITED):
            case signal.SIGCHLD:
                pass
            case signal.SIGTSTP:
                ward.send(signal.SIGTSTP)
                stop_here(whole_group=False)
                _go_on(ward, terminal)
            case signal.SIGCONT:
                _go_on(ward, terminal)
            case signum:
                ward.send(signum)


def _go_on(ward: Ward, terminal: Terminal | None) -> None:
    if terminal is not None:
        terminal.give(ward.pid)
    ward.send(signal.SIGCONT)


def status_of(wait_status: int) -> int:
    """As shells tell it."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code
