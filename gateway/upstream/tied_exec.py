"""Run a program that ends with its parent: `python tied_exec.py PARENT_PID PROGRAM ARGUMENT...`

The kernel kills the program (prctl(2), PR_SET_PDEATHSIG) when the *thread* that started it ends, so also when
the parent is killed and cannot clean up. A script of its own, because between fork and exec of a threaded
process no Python may run. What the program writes is readable for its user alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, program = int(arguments[0]), arguments[1]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent ended before its child began")
    os.umask(0o077)
    os.execv(program, arguments[1:])  # noqa: S606 - the program is named by our own parent


if __name__ == "__main__":
    main(sys.argv[1:])
