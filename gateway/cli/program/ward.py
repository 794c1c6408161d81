"""A program that ends when the lease does under which it works: it has a process group of its own, and a guard.

Whoever started it renews the lease and tells the guard of each new deadline. Frozen, killed or cut off, he tells it of
none, and the guard ends the program by the last one. What leaves the group (setsid) leaves the guard, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from gateway.cli.program import guard, launch


class Ward:
    """The program and its guard. `stop`, `keep_until` and `send` may be called from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        deadline: float,
        grace_s: float,
        *,
        terminal: int = -1,
        mask: Sequence[int] = (),
        stdin: int | None = None,
    ) -> None:
        """Begin it. `deadline` on `gateway.clock.HolderClock`; `terminal` is handed to the program; `mask` are the
        signals to be blocked in it."""
        script = (sys.executable, "-I", "-S")
        self._lock = threading.Lock()
        self._guard = subprocess.Popen(  # noqa: S603 - our own script
            [*script, guard.__file__, str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tell(f"deadline {deadline!r}")
        gate, opener = os.pipe()
        with open(opener, "wb", buffering=0) as opened:
            try:
                self._child = subprocess.Popen(  # noqa: S603 - the user's own command
                    [*script, launch.__file__, str(gate), str(terminal), ",".join(map(str, mask)), *command],
                    env=dict(environ),
                    stdin=stdin,
                    pass_fds=(gate,),
                    process_group=0,
                )
            except BaseException:
                self._dismiss()
                raise
            finally:
                os.close(gate)
            self.pid = self._child.pid
            self._tell(f"group {self.pid}")
            opened.write(b".")

    def keep_until(self, deadline: float) -> None:
        """The lease lasts until then."""
        self._tell_or_end(f"deadline {deadline!r}")

    def stop(self) -> None:
        """Have it ended: asked at once, killed after the grace."""
        self._tell_or_end("stop")

    def send(self, signum: int) -> None:
        """A signal for the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def poll(self) -> int | None:
        """What has become of it since the last look: its wait status, ended or stopped; None if nothing has."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            return self._ended(status)
        if self._guard.poll() is not None:  # nobody would end it in time
            self.send(signal.SIGKILL)
        return None

    def wait(self) -> int:
        """Its wait status, when it has ended."""
        return self._ended(os.waitpid(self.pid, 0)[1])

    def _ended(self, status: int) -> int:
        if not os.WIFSTOPPED(status):
            self._child.returncode = os.waitstatus_to_exitcode(status)
        return status

    def finish(self) -> bool:
        """The program has ended. Whether its guard has ended it; what else there is of its group then has ended,
        too."""
        return self._dismiss() != 0

    def _dismiss(self) -> int:
        self._tell("done")
        with self._lock:
            stdin: IO[bytes] | None = self._guard.stdin
            assert stdin is not None
            with suppress(OSError):
                stdin.close()
        return self._guard.wait()

    def _tell_or_end(self, line: str) -> None:
        if not self._tell(line) and self._child.returncode is None:  # nobody would end it in time
            self.send(signal.SIGKILL)

    def _tell(self, line: str) -> bool:
        """Whether the guard is there to hear it; after its dismissal nobody need be."""
        with self._lock:
            stdin: IO[bytes] | None = self._guard.stdin
            assert stdin is not None
            if not stdin.closed:
                try:
                    stdin.write(line.encode() + b"\n")
                    stdin.flush()
                except OSError:
                    return False
            return True
