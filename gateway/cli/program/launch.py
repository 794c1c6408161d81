"""Begins a program once its guard knows of it: `python launch.py GATE TERMINAL MASK PROGRAM ARGUMENT...`

GATE is a descriptor: one byte lets the program begin, its end says that who started it has died. TERMINAL is the
descriptor of the terminal whose foreground this process group is to be, or -1. MASK is the signals to be blocked in the
program, separated by commas. A script of its own, because between fork and exec of a threaded process no Python may
run.
"""

from __future__ import annotations

import os
import signal
import sys

NEVER_BEGAN, CANNOT_BE_RUN, NOT_FOUND = 125, 126, 127
"""What shells and env(1) answer."""


def main(arguments: list[str]) -> None:
    gate, terminal, mask = int(arguments[0]), int(arguments[1]), arguments[2]
    program = arguments[3:]
    if not os.read(gate, 1):
        sys.exit(NEVER_BEGAN)
    os.close(gate)
    if terminal >= 0:
        os.tcsetpgrp(terminal, os.getpgrp())  # SIGTTOU is blocked
    for ignored_by_python in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [int(number) for number in mask.split(",") if number])
    try:
        os.execvp(program[0], program)  # noqa: S606 - the user's own command
    except (OSError, ValueError) as error:  # ValueError: the name is empty
        if sys.stderr is not None:  # it may be closed
            why = error.strerror if isinstance(error, OSError) else "no program has an empty name"
            sys.stderr.write(f"fencing-gateway: {program[0]}: {why}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError | ValueError) else CANNOT_BE_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
