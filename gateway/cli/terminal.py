"""The terminal's foreground, handed to a process group and taken back: what makes Ctrl-C, Ctrl-Z and reading go where
the user means them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Self


class Terminal:
    """Standard input, where that is a terminal. SIGTTOU must be blocked."""

    descriptor = 0

    @classmethod
    def in_foreground(cls) -> Self | None:
        """None where there is none, or where others have it: then signals are passed on instead."""
        return cls() if os.isatty(cls.descriptor) and cls._owner() == os.getpgrp() else None

    def give(self, group: int) -> None:
        """Let `group` have it, if it is ours: a job that was continued in the background has none to give."""
        if self._owner() == os.getpgrp():
            self._set(group)

    def take(self, group: int) -> None:
        """Have it back from `group`."""
        if self._owner() == group:
            self._set(os.getpgrp())

    @classmethod
    def _owner(cls) -> int:
        try:
            return os.tcgetpgrp(cls.descriptor)
        except OSError:
            return -1

    def _set(self, group: int) -> None:
        with suppress(OSError):  # the group, or the terminal, has gone
            os.tcsetpgrp(self.descriptor, group)


def stop_here(*, whole_group: bool) -> None:
    """Stop as Ctrl-Z stops a job, and return when continued; at once where nobody could continue us: the kernel lets
    no orphaned group be stopped so (POSIX, "Orphaned process group"). SIGTSTP must be blocked, and is afterwards."""
    if whole_group:
        os.killpg(os.getpgrp(), signal.SIGTSTP)
    else:
        os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
