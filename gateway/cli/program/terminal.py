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
    def of_stdin(cls) -> Self | None:
        """None where standard input is none."""
        return cls() if os.isatty(cls.descriptor) else None

    @property
    def is_ours(self) -> bool:
        """Whether our group is the foreground: a job in the background has no terminal to give."""
        return self._owner() == os.getpgrp()

    def give(self, group: int) -> None:
        """Let `group` have it, if it is ours."""
        if self.is_ours:
            self._set(group)

    def take(self, group: int) -> None:
        """Have it back from `group`."""
        if self._owner() == group:
            self._set(os.getpgrp())

    def _owner(self) -> int:
        try:
            return os.tcgetpgrp(self.descriptor)
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
