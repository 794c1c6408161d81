"""What is done to gateway, store and workers during a run, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.upstream.embedded import EmbeddedStore
from tests.chaos.crew import Crew
from tests.chaos.proxy import Chance
from tests.chaos.recorder import Recorder
from tests.gateway_process import GatewayProcess

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's package libfaketime. Where it is missing no clock steps."""
LONGEST_STORE_PAUSE_S = 1.2
LONGEST_STEP_S = 600
"""Signatures of more than 15 minutes off are refused, and nothing would be written at all."""
STARTS = 3
QUIET_SHARE, STORM_SHARE = 0.02, 0.15


def step_clock(directory: Path, seconds: int) -> None:
    """How far the wall clock of a process under `stepping_clock` is off from now on."""
    written = directory / "clock.new"
    written.write_text(f"{seconds:+d}\n")
    written.replace(directory / "clock")  # read at any moment


def stepping_clock(directory: Path) -> dict[str, str]:
    """The environment of a process whose wall clock `Torment` steps; its monotonic clock stays true."""
    if FAKETIME is None:
        return {}
    step_clock(directory, 0)
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(directory / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


async def start(gateway: GatewayProcess) -> None:
    """Start it. A host that is too slow for the launcher's bound, which kills it, gets some more tries.
    Raises `AssertionError` with its log if it ends by itself."""
    for _ in range(STARTS):
        try:
            await asyncio.to_thread(gateway.start)
        except AssertionError:
            if gateway.process.returncode != -signal.SIGKILL:
                raise
        else:
            return
    raise TimeoutError("the gateway takes too long to start")


class Torment:
    """One fault after another; `done` counts them by kind."""

    def __init__(
        self,
        seed: str,
        directory: Path,
        gateway: GatewayProcess,
        store: EmbeddedStore,
        crew: Crew,
        chances: tuple[Chance, ...],
    ) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._gateway, self._store, self._crew, self._chances = gateway, store, crew, chances
        self._recorder = Recorder(directory, "torment")
        self.done: Counter[str] = Counter()
        self.fallen: list[str] = []
        """How often the gateway ended by itself, which it should not."""
        self._faults: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "worker-stopped": (30, self._worker_stopped),
            "worker-killed": (6, self._worker_killed),
            "gateway-stopped": (5, self._gateway_stopped),
            "gateway-killed": (3, self._gateway_killed),
            "gateway-restarted": (1, self._gateway_restarted),
            "store-stopped": (4, self._store_stopped),
            "store-killed": (1, self._store_killed),
            "disk-full": (3, self._disk_full),
            "storm": (4, self._storm),
        }
        if FAKETIME is not None:
            self._faults["clock-stepped"] = (3, self._clock_stepped)

    async def run(self, for_s: float) -> None:
        """About so long; then everything runs again."""
        names, weights = list(self._faults), [weight for weight, _ in self._faults.values()]
        until = asyncio.get_running_loop().time() + for_s
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(self._random.uniform(0.1, 0.9))
            if self._gateway.process.poll() is not None:
                self.fallen.append(f"gateway {self._gateway.end()}")
                await start(self._gateway)
            name = self._random.choices(names, weights)[0]
            self.done[name] += 1
            self._recorder.fault(name)
            await self._faults[name][1]()

    async def _pause(self, longest_s: float) -> None:
        await asyncio.sleep(self._random.uniform(0.05, 1) * longest_s)

    async def _worker_stopped(self) -> None:
        """Often past its lease."""
        self._crew.stop(self._random.choice(self._crew.victims()), self._random.uniform(0.2, 5))

    async def _worker_killed(self) -> None:
        self._crew.kill(self._random.choice(self._crew.victims()))

    async def _gateway_stopped(self) -> None:
        await self._stopped(self._gateway.process.pid, 4)

    async def _stopped(self, pid: int, longest_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            await self._pause(longest_s)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _gateway_killed(self) -> None:
        await asyncio.to_thread(self._gateway.kill)
        await start(self._gateway)

    async def _gateway_restarted(self) -> None:
        await asyncio.to_thread(self._gateway.stop)
        await start(self._gateway)

    async def _store_stopped(self) -> None:
        if self._store.pid is not None:
            await self._stopped(self._store.pid, LONGEST_STORE_PAUSE_S)
            await asyncio.sleep(LONGEST_STORE_PAUSE_S)

    async def _store_killed(self) -> None:
        if self._store.pid is not None:
            os.kill(self._store.pid, signal.SIGKILL)
            await asyncio.sleep(5)

    async def _disk_full(self) -> None:
        """The gateway's files may not grow beyond where they would fill the disk: its log and its database."""
        pid = self._gateway.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (self._random.choice((1, 4096, 40_000, 200_000)), hard))
        try:
            await self._pause(3)
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    async def _clock_stepped(self) -> None:
        step_clock(self._directory, self._random.randint(-LONGEST_STEP_S, LONGEST_STEP_S))

    async def _storm(self) -> None:
        """Connections break much more often for a while."""
        for chance in self._chances:
            chance.share = STORM_SHARE
        await self._pause(4)
        for chance in self._chances:
            chance.share = QUIET_SHARE
