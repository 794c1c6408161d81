"""The rows that are measured, each with its load and its targets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import median

from bench import store
from bench.figures import Figures, Outcome, Verdict, at_least, at_most, figures, ratio
from bench.load import BLOCK_BYTES, Door, Load, Sample, connected, exchange, refused
from bench.processes import Bench, forget_peak, peak_mb

Judge = Callable[[Figures, Figures, Figures], tuple[Verdict, ...]]
"""The targets, of the direct, the bare and the gateway's figures."""
Run = Callable[[Door, Load], Sample]


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    small_s: float
    """One round of small requests."""
    rounds: int
    large_bytes: int
    upload_bytes: tuple[int, ...]
    """Of each of the uploads that go side by side."""
    floor_keys: tuple[int, ...]
    waiting_jobs: tuple[int, ...]
    row_s: float
    """A row begins no other round after this, so that a busy machine makes the run coarser and not longer."""


DEFAULT = Scale(
    small_s=0.8,
    rounds=5,
    large_bytes=256 * BLOCK_BYTES,
    upload_bytes=(40 * BLOCK_BYTES,),
    floor_keys=(1_000, 1_000_000),
    waiting_jobs=(100_000, 1_000_000),
    row_s=14,
)
QUICK = Scale(
    small_s=0.5,
    rounds=3,
    large_bytes=32 * BLOCK_BYTES,
    upload_bytes=(8 * BLOCK_BYTES,),
    floor_keys=(1_000,),
    waiting_jobs=(100_000,),
    row_s=3,
)


@dataclass(frozen=True)
class Row:
    """One kind of request through every door."""

    title: str
    load: Load
    rounds: int
    judge: Judge

    @property
    def large(self) -> bool:
        return self.load.size_bytes >= BLOCK_BYTES


def rows(scale: Scale) -> list[Row]:
    """All rows of S3 requests but the refusals."""
    small = Load("PUT", 4096, "", "", connections=16, keys=8, seconds=scale.small_s)
    large = Load("PUT", scale.large_bytes, "", "", connections=1, seconds=0.5)
    mib = scale.large_bytes // BLOCK_BYTES
    return [
        Row("4 KiB fenced PUT, signed, 16 at a time", small, scale.rounds, _cpu_us(330)),
        Row("4 KiB fenced PUT, signed, one at a time", replace(small, connections=1), scale.rounds, _added_ms(0.7)),
        Row("4 KiB GET, 16 at a time", replace(small, method="GET"), scale.rounds, _get),
        Row(f"{mib} MiB PUT, payload unsigned", replace(large, payload_signed=False), scale.rounds, _streamed),
        Row(f"{mib} MiB PUT, payload signed", large, scale.rounds, _cpu_s_per_gb(1.7)),
        Row(f"{mib} MiB GET", replace(large, method="GET"), scale.rounds, _cpu_s_per_gb(0.9)),
        *(
            Row(
                f"32 PUTs side by side, {size // BLOCK_BYTES} MiB each",
                replace(large, size_bytes=size, connections=32, payload_signed=False, seconds=0.0),
                1,
                _memory,
            )
            for size in scale.upload_bytes
        ),
    ]


def _get(_: Figures, __: Figures, gateway: Figures) -> tuple[Verdict, ...]:
    return (at_most("≤ 300 µs CPU", gateway.cpu_us or 0, 300),)


BARE_CPU_US = 190
"""What the bare pass-through took for the PUT where the targets were set. How fast the machine is, it tells here."""
BARE_ADDED_MS = 0.25
"""What it added there to a PUT, one at a time."""


def _cpu_us(bound: float) -> Judge:
    return lambda _, bare, gateway: _cpu_verdicts(bound, bare, gateway)


def _cpu_verdicts(bound: float, bare: Figures, gateway: Figures) -> tuple[Verdict, ...]:
    """The target as it stands, and in proportion to the bare pass-through."""
    cpu_us, times = gateway.cpu_us or 0, bound / BARE_CPU_US
    return (
        at_most(f"≤ {bound:g} µs CPU", cpu_us, bound),
        at_most(f"≤ {times:.2f} × bare PUT", cpu_us / (bare.cpu_us or BARE_CPU_US), times),
    )


def _added_ms(bound: float) -> Judge:
    def judge(direct: Figures, bare: Figures, gateway: Figures) -> tuple[Verdict, ...]:
        added, by_bare = ((one.median_ms or 0) - (direct.median_ms or 0) for one in (gateway, bare))
        times = bound / BARE_ADDED_MS
        return (
            at_most(f"≤ {bound:g} ms added", added, bound),
            at_most(f"≤ {times:g} × bare's", added / by_bare, times),
        )

    return judge


def _cpu_s_per_gb(bound: float) -> Judge:
    return lambda _, __, gateway: (at_most(f"≤ {bound:g} s CPU/GB", gateway.cpu_s_per_gb or 0, bound),)


def _streamed(direct: Figures, bare: Figures, gateway: Figures) -> tuple[Verdict, ...]:
    return *_cpu_s_per_gb(0.85)(direct, bare, gateway), at_least("≥ 0.85 of direct", ratio(direct, gateway), 0.85)


def _memory(_: Figures, __: Figures, gateway: Figures) -> tuple[Verdict, ...]:
    return (at_most("≤ 100 MB", gateway.peak_mb or 0, 100),)


class Generator:
    """Runs loads in a process of their own."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    async def run(self, kind: Run, door: Door, load: Load) -> Sample:
        return await asyncio.get_running_loop().run_in_executor(self._pool, kind, door, load)


async def measure(bench: Bench, generator: Generator, row: Row, number: int, row_s: float) -> Outcome:
    """All rounds of a row, door after door in each round, so that what else the machine does meets all alike."""
    async with _bucket(bench, f"bench-{number}", row.load) as bucket:
        load = replace(row.load, bucket=bucket)
        if load.method == "GET":
            await generator.run(exchange, bench.direct, _of(bench.direct, replace(load, method="PUT", seconds=0.0)))
        samples: dict[Door, list[Sample]] = {door: [] for door in bench.doors}
        for door in bench.doors:
            await generator.run(exchange, door, _of(door, _warm_up(load)))
            forget_peak(door)
        end = time.monotonic() + row_s
        for turn in range(row.rounds):
            first = turn % len(bench.doors)  # what one leaves to be written to the disk, the next has to bear
            for door in bench.doors[first:] + bench.doors[:first]:
                samples[door].append(await generator.run(exchange, door, _of(door, load)))
            if time.monotonic() > end:
                break
        found = tuple(
            figures(
                door.name,
                samples[door],
                load.size_bytes,
                large=row.large,
                measured=door.pid is not None,
                peak_mb=peak_mb(door),
            )
            for door in bench.doors
        )
    return Outcome(row.title, found, row.judge(*found))


async def measure_refusals(bench: Bench, generator: Generator, scale: Scale) -> Outcome:
    """Stale PUTs that announce a body. The gateway closes after each, so each has its own connection, whose cost is
    measured apart and taken off. Beside it what a PUT costs the bare pass-through."""
    door, name = bench.gateway, "bench-refused"
    load = Load("PUT", 4096, name, "renders/job/gateway-", connections=16, seconds=scale.small_s)
    async with _bucket(bench, name, load):
        await generator.run(exchange, door, replace(load, connections=1, seconds=0.0))
        await generator.run(refused, door, replace(load, seconds=0.3))
        await generator.run(connected, door, replace(load, seconds=0.3))
        put = replace(load, prefix="renders/job/bare-")
        await generator.run(exchange, bench.bare, replace(put, seconds=0.3))
        forget_peak(door)
        bytes_before = await bench.body_bytes_read()
        refusals: list[Sample] = []
        set_up_s: list[float] = []
        puts: list[Sample] = []
        for _ in range(scale.rounds):
            puts.append(await generator.run(exchange, bench.bare, put))
            refusals.append(await generator.run(refused, door, load))
            alone = await generator.run(connected, door, load)
            set_up_s.append(alone.cpu_s / alone.requests)
        bytes_read = await bench.body_bytes_read() - bytes_before
        set_up_us = 1e6 * median(set_up_s)
        whole = figures(door.name, refusals, 4096, large=False, measured=True, peak_mb=peak_mb(door))
    found = replace(whole, cpu_us=(whole.cpu_us or 0) - set_up_us)
    bare = figures("bare PUT", puts, 4096, large=False, measured=True, peak_mb=None)
    return Outcome(
        f"Refused stale PUT with Expect, 16 at a time (CPU without the {set_up_us:.0f} µs of its connection)",
        (bare, found),
        (*_cpu_verdicts(180, bare, found), at_most("0 body bytes read", bytes_read, 0)),
    )


async def measure_floors(keys: int) -> Outcome:
    """Durable raises of the database alone, as `bench.store` measures them."""
    result = await store.run(store.Case(keys=keys, callers=64))
    found = Figures("store", 1, result.raises_per_s, median_ms=result.median_ms, p99_ms=result.p99_ms)
    title = f"Durable floor raises, 64 at a time, {keys:,} keys"
    return Outcome(title, (found,), (at_least("≥ 20,000/s", result.raises_per_s, 20_000),))


@asynccontextmanager
async def _bucket(bench: Bench, name: str, load: Load) -> AsyncIterator[str]:
    await bench.create_bucket(name)
    yield name
    if load.size_bytes < BLOCK_BYTES:
        return
    doors = [bench.direct] if load.method == "GET" else bench.doors
    prefixes = [_of(door, load).prefix for door in doors]
    await bench.remove(name, [f"{prefix}{number}-0" for prefix in prefixes for number in range(load.connections)])


def _of(door: Door, load: Load) -> Load:
    """Each door writes objects of its own, since the gateway knows those it has written; all read the same."""
    owner = "direct" if load.method == "GET" else door.name
    return replace(load, prefix=f"renders/job/{owner}-")


def _warm_up(load: Load) -> Load:
    if load.method == "GET":
        return replace(load, seconds=min(load.seconds, 0.3))
    return replace(load, size_bytes=min(load.size_bytes, BLOCK_BYTES), seconds=min(load.seconds, 0.3))
