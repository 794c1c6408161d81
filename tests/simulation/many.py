"""Many seeds, on all processors."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.simulation.run import simulate

CHUNK = 25
PROGRESS_S = 5.0
SHOWN = 5
"""So many failing seeds are named."""


@dataclass(slots=True)
class Tally:
    """What many seeds came to."""

    seeds: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.requests += other.requests
        self.faults += other.faults
        self.failed += other.failed

    def told(self) -> str:
        failed = "".join(f" {seed}" for seed in sorted(self.failed)[:SHOWN])
        return (
            f"{self.seeds:,} seeds, {self.requests:,} requests, {self.faults.total():,} faults, "
            f"{len(self.failed)} seeds with violations{failed and ':' + failed}"
        )


def run_seeds(first: int, count: int, *, jobs: int = 0, progress: Callable[[str], None] = lambda line: None) -> Tally:
    """Run the seeds from `first` on; `progress` is told now and then how it goes."""
    tally, began = Tally(), time.monotonic()
    said = began
    for chunk in _chunks(first, count, jobs or os.cpu_count() or 1):
        tally.add(chunk)
        now = time.monotonic()
        if now - said >= PROGRESS_S:
            said = now
            progress(f"{tally.told()}; {tally.seeds / (now - began):.0f} seeds/s")
    return tally


def _chunks(first: int, count: int, jobs: int) -> Iterator[Tally]:
    starts = range(first, first + count, CHUNK)
    wanted = [(start, min(CHUNK, first + count - start)) for start in starts]
    if jobs == 1:
        yield from map(_some, wanted)
        return
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        yield from pool.imap_unordered(_some, wanted)


def _some(wanted: tuple[int, int]) -> Tally:
    first, count = wanted
    tally = Tally()
    for seed in range(first, first + count):
        outcome = simulate(seed)
        tally.seeds += 1
        tally.requests += outcome.story.requests
        tally.faults += outcome.story.faults
        if outcome.violations:
            tally.failed.append(seed)
    return tally
