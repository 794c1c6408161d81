"""The rows of the report that are about leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bench.figures import Outcome, at_least, at_most, figures
from bench.leases import RENEWED_EVERY_S, WORKERS, pairs_in_service, pairs_over_http, renewals_over_http
from bench.load import Sample
from bench.processes import Bench
from bench.rows import Scale

HELD = 10_000


async def measure_service(_: Bench, pool: ProcessPoolExecutor, scale: Scale) -> Outcome:
    """Acquire and release, in the service, durably."""
    samples = [await _run(pool, partial(pairs_in_service, scale.small_s)) for _ in range(scale.rounds)]
    found = figures("service", samples, 0, large=False, measured=True, peak_mb=None)
    title = f"Acquire and release a lease, {WORKERS} workers, in the service"
    return Outcome(title, (found,), (at_least("≥ 3,000/s", found.per_s, 3000),))


async def measure_http(bench: Bench, pool: ProcessPoolExecutor, scale: Scale) -> Outcome:
    """The same over HTTP."""
    call = partial(pairs_over_http, bench.gateway, bench.control_port, scale.small_s)
    samples = [await _run(pool, call) for _ in range(scale.rounds)]
    found = figures("gateway", samples, 0, large=False, measured=True, peak_mb=None)
    title = f"Acquire and release a lease, {WORKERS} workers, over HTTP"
    return Outcome(title, (found,), (at_least("≥ 500/s", found.per_s, 500),))


async def measure_renewals(bench: Bench, pool: ProcessPoolExecutor, scale: Scale) -> Outcome:
    """Many leases, each renewed in its time."""
    call = partial(renewals_over_http, bench.gateway, bench.control_port, HELD, 4 * scale.small_s)
    sample = await _run(pool, call)
    found = figures("gateway", [sample], 0, large=False, measured=True, peak_mb=None)
    title = f"{HELD:,} leases renewed every {RENEWED_EVERY_S:g} s"
    return Outcome(title, (found,), (at_most("≤ 0.5 CPU", sample.cpu_s / sample.wall_s, 0.5),))


LEASE_ROWS: dict[str, Callable[[Bench, ProcessPoolExecutor, Scale], Awaitable[Outcome]]] = {
    "lease pairs in the service": measure_service,
    "lease pairs over HTTP": measure_http,
    "lease renewals": measure_renewals,
}


async def _run(pool: ProcessPoolExecutor, call: Callable[[], Sample]) -> Sample:
    return await asyncio.get_running_loop().run_in_executor(pool, call)
