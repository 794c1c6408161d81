"""The guard by itself: when it ends a process group, when it kills it, and when it leaves it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from gateway.cli.program import guard
from gateway.cli.program.guard import now
from gateway.clock import HolderClock

BOUND_S = 20
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
QUICK = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


@contextmanager
def program(script: str) -> Iterator[subprocess.Popen[str]]:
    """A shell in a process group of its own, that has begun."""
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, process_group=0) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)


class Guard:
    """The script, and what it is told."""

    def __init__(self, grace_s: float) -> None:
        command = [sys.executable, "-I", "-S", guard.__file__, str(grace_s)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def told(self, *lines: str) -> Guard:
        self._stdin.write("".join(f"{line}\n" for line in lines).encode())
        self._stdin.flush()
        return self

    def forsaken(self) -> Guard:
        """As when whoever started it has died."""
        self._stdin.close()
        return self

    def status(self) -> int:
        try:
            return self.process.wait(BOUND_S)
        finally:
            self._stdin.close()


def test_its_clock_is_that_of_whoever_tells_it() -> None:
    """A deadline means the same moment to both."""
    before = HolderClock.monotonic()
    assert before <= now() <= HolderClock.monotonic()


def test_the_group_is_asked_before_the_deadline() -> None:
    """SIGTERM comes a grace before, so that what listens to it has ended by then."""
    with program(QUICK) as child:
        deadline = now() + 3.0
        one = Guard(2.5).told(f"deadline {deadline}", f"group {child.pid}")
        assert child.wait(BOUND_S) == 0
        assert deadline - 2.5 <= now() < deadline
        assert one.status() == 1


def test_what_is_deaf_is_killed_by_the_deadline() -> None:
    """What ignores SIGTERM is killed, not before its grace is over, and at the deadline at the latest."""
    with program(DEAF) as child:
        deadline = now() + 0.8
        one = Guard(0.4).told(f"deadline {deadline}", f"group {child.pid}")
        assert child.wait(BOUND_S) == -signal.SIGKILL
        assert deadline <= now() < deadline + 1.5
        assert one.status() == 1


def test_what_is_stopped_is_ended_too() -> None:
    """A stopped program cannot hear: it is continued to be asked."""
    with program(QUICK) as child:
        os.killpg(child.pid, signal.SIGSTOP)
        one = Guard(5).told(f"deadline {now() + 60}", f"group {child.pid}", "stop")
        assert (child.wait(BOUND_S), one.status()) == (0, 1)


def test_children_of_the_group_end_with_it() -> None:
    """What the program has started, and left behind, is of the group."""
    with program("(trap '' TERM; echo ready; sleep 60; echo late) & trap '' TERM; wait") as child:
        one = Guard(0.2).told(f"deadline {now() + 60}", f"group {child.pid}", "stop")
        assert child.wait(BOUND_S) == -signal.SIGKILL
        assert child.stdout is not None
        assert child.stdout.read() == ""
        assert one.status() == 1


def test_a_renewal_moves_the_deadline() -> None:
    """The last deadline that was told counts."""
    with program(QUICK) as child:
        one = Guard(0.1).told(f"deadline {now() + 0.5}", f"group {child.pid}", f"deadline {now() + 60}")
        try:
            child.wait(0.8)
        except subprocess.TimeoutExpired:
            assert one.process.poll() is None
        else:
            raise AssertionError("ended before its deadline")
        assert one.told("done").status() == 0


def test_the_death_of_the_other_side_ends_the_group() -> None:
    """The end of its input without a word: nobody renews any more."""
    with program(QUICK) as child:
        one = Guard(5).told(f"deadline {now() + 60}", f"group {child.pid}").forsaken()
        assert (child.wait(BOUND_S), one.process.wait(BOUND_S)) == (0, 1)


def test_without_a_group_nothing_is_ended() -> None:
    """Forsaken before there was one, it ends by itself; so it does where the program has ended."""
    assert Guard(5).told("deadline 0").forsaken().process.wait(BOUND_S) == 1
    assert Guard(5).told(f"deadline {now() + 60}", "done").status() == 0
