"""The worker processes of a run, each tied to the life of the run, and what is done to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from gateway.upstream import tied_exec
from tests.gateway_process import ROOT, environment

ROLES = ("writer",) * 5 + ("assembler", "reader", "reader", "fencer")
VICTIMS = ("writer", "assembler", "fencer")
"""Readers are left alone: what they see is the evidence."""

START_BOUND_S = 60.0


class Crew:
    """One process for each of `ROLES`."""

    def __init__(self, directory: Path, seed: str) -> None:
        self._directory = directory
        self._seed = seed
        self._started = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Returns when all have begun. Raises `TimeoutError`."""
        for place in range(len(ROLES)):
            self._start(place)
        async with asyncio.timeout(START_BOUND_S):
            while any(not (self._directory / f"{self._name(n)}.jsonl").exists() for n in range(1, len(ROLES) + 1)):
                await asyncio.sleep(0.05)

    def _name(self, serial: int) -> str:
        return f"w{serial}"

    def _start(self, place: int) -> None:
        """A new worker, with a name of its own: who is killed does not come back."""
        self._started += 1
        name = self._name(self._started)
        tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
        worker = ("-m", "tests.chaos.worker", ROLES[place], str(self._directory), name, f"{self._seed} {name}")
        with (self._directory / "workers.log").open("ab") as log:
            self._processes[place] = subprocess.Popen(
                [*tied, sys.executable, *worker],
                env=environment(PYTHONPATH=str(ROOT)),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def victims(self) -> list[int]:
        return [place for place, role in enumerate(ROLES) if role in VICTIMS]

    def stop(self, place: int, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        process = self._processes[place]
        process.send_signal(signal.SIGSTOP)

        async def go_on() -> None:
            try:
                await asyncio.sleep(for_s)
            finally:
                process.send_signal(signal.SIGCONT)

        task = asyncio.ensure_future(go_on())
        self._stopped.add(task)
        task.add_done_callback(self._stopped.discard)

    def kill(self, place: int) -> None:
        """SIGKILL, and another one in its place."""
        self._end(place)
        self._start(place)

    def _end(self, place: int) -> None:
        process = self._processes.pop(place)
        process.kill()
        process.wait()

    def fallen(self) -> list[str]:
        """Those who have ended by themselves, which none should."""
        return [f"{ROLES[p]} {one.returncode}" for p, one in self._processes.items() if one.poll() is not None]

    async def end(self) -> None:
        for task in list(self._stopped):
            task.cancel()
        for place in list(self._processes):
            with suppress(ProcessLookupError):
                self._end(place)
