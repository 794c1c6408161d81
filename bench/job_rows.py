"""The rows of the report that are about jobs, each over a gateway whose queue is as long as it says."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from bench.figures import Figures, Outcome, at_least, at_most, figures
from bench.jobs import POLLS, WORKERS, idle_polls, jobs_over_http, preload
from bench.load import Door
from bench.processes import CLIENT, Bench, serve
from bench.rows import Scale

POLLED_S = 10.0


async def measure_jobs(bench: Bench, pool: ProcessPoolExecutor, scale: Scale) -> Outcome:
    """Receive and complete, with so many jobs waiting and with ten times as many."""
    found: list[Figures] = []
    for waiting in scale.waiting_jobs:
        async with _served(bench, pool, waiting) as (door, port):
            call = partial(jobs_over_http, door, port, 2 * scale.small_s)
            samples = [await asyncio.get_running_loop().run_in_executor(pool, call) for _ in range(scale.rounds)]
        found.append(figures(f"{waiting:,}", samples, 0, large=False, measured=True, peak_mb=None))
    verdicts = [at_least("≥ 300/s", found[0].per_s, 300)]
    if len(found) > 1:
        verdicts.append(at_most("≤ 1.3 times as long", found[0].per_s / found[-1].per_s, 1.3))
    title = f"Receive and complete jobs, {WORKERS} workers, over HTTP, by how many wait"
    return Outcome(title, tuple(found), tuple(verdicts))


async def measure_polls(bench: Bench, pool: ProcessPoolExecutor, scale: Scale) -> Outcome:
    """Workers who wait for jobs that do not come."""
    async with _served(bench, pool, 0) as (door, port):
        call = partial(idle_polls, door, port, POLLED_S)
        sample, each = await asyncio.get_running_loop().run_in_executor(pool, call)
    found = figures("gateway", [sample], 0, large=False, measured=True, peak_mb=None)
    return Outcome(
        f"{POLLS:,} workers wait for jobs",
        (found,),
        (
            at_most("≤ 0.02 CPU", sample.cpu_s / sample.wall_s, 0.02),
            at_most("≤ 50 KB each", each / 1000, 50),
        ),
    )


JOB_ROWS: dict[str, Callable[[Bench, ProcessPoolExecutor, Scale], Awaitable[Outcome]]] = {
    "jobs received and completed": measure_jobs,
    "jobs waited for": measure_polls,
}


@contextlib.asynccontextmanager
async def _served(bench: Bench, pool: ProcessPoolExecutor, waiting: int) -> AsyncIterator[tuple[Door, int]]:
    """A gateway of its own before the same store, with so many jobs in line; and its control port."""
    with tempfile.TemporaryDirectory(prefix="bench-jobs-", dir=Path.cwd()) as directory:
        here = Path(directory)
        await asyncio.get_running_loop().run_in_executor(pool, preload, here / "gateway.db", waiting)
        async with contextlib.AsyncExitStack() as stack:
            url = f"http://127.0.0.1:{bench.direct.port}"
            served = await serve(stack, here, url, bench.direct.credentials)
            yield Door("gateway", served.s3_port, CLIENT, served.pid), served.control_port
