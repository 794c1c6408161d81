"""What leases cost: durable pairs of acquire and release in the service, and the renewals of many.

`python -m bench.leases`, about 15 seconds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.clock import SystemClock
from gateway.core.keys import FencingKey
from gateway.service.fences import Fences
from gateway.service.leases import Leases
from gateway.service.waits import Timing
from gateway.stores.sqlite import SqliteStore
from gateway.telemetry import configure_logging

RUN_S = 3.0
WORKERS = 64
TTL_S = 30.0


@dataclass(frozen=True)
class Pairs:
    """Each worker acquires the lease on a key, and gives it up."""

    pairs_per_s: float
    median_ms: float
    p99_ms: float
    cpu_us: float
    """Of the whole process, for one pair."""


@asynccontextmanager
async def service() -> AsyncIterator[Leases]:
    """Leases over a database on the disk of the working directory."""
    configure_logging("warning")
    with tempfile.TemporaryDirectory(prefix="bench-leases-", dir=Path.cwd()) as directory:
        store = SqliteStore(Path(directory) / "gateway.db")
        await store.start("bench")
        leases = Leases(Fences(store, SystemClock(), Timing()))
        await leases.start()
        try:
            yield leases
        finally:
            await leases.stop()
            await store.stop(clean=True)


async def measure_pairs(keys_of_a_worker: int = 16, seconds: float = RUN_S) -> Pairs:
    """64 workers, each with keys of its own."""
    took: list[float] = []

    async def worker(leases: Leases, number: int, end: float) -> None:
        turn = 0
        while (began := time.perf_counter()) < end:
            key = FencingKey(f"job-{number}-{turn % keys_of_a_worker}")
            lease = await leases.acquire(key, f"worker-{number}", TTL_S)
            await leases.release(key, lease.token)
            took.append(time.perf_counter() - began)
            turn += 1

    async with service() as leases:
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker(leases, number, began + seconds) for number in range(WORKERS)))
        elapsed, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    took.sort()
    median, p99 = (1000 * took[int(len(took) * part)] for part in (0.5, 0.99))
    return Pairs(len(took) / elapsed, median, p99, 1e6 * cpu_s / len(took))


def main() -> int:
    print(asyncio.run(measure_pairs()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
