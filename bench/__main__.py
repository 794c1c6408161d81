"""Measures the gateway beside the bare store and a bare pass-through, all in one run: `python -m bench`.

Exit status 1 if something could not be measured; a target that is missed is marked, and no failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Awaitable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.figures import Outcome
from bench.job_rows import JOB_ROWS
from bench.lease_rows import LEASE_ROWS
from bench.load import BLOCK_BYTES, NotMeasured
from bench.processes import started
from bench.report import as_json, table
from bench.rows import DEFAULT, QUICK, Generator, Scale, measure, measure_floors, measure_refusals, rows
from gateway.upstream.embedded import EmbeddedStoreError

LARGE_UPLOAD_BYTES = 256 * BLOCK_BYTES
TABLE_WIDTH = 124


class Steps:
    """Runs measurements one after another, and shows on a terminal how far they are."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.outcomes: list[Outcome] = []
        self._progress = progress
        self._task = progress.add_task("", total=total)

    async def step(self, title: str, what: Awaitable[Outcome]) -> None:
        self._progress.update(self._task, description=title)
        self.outcomes.append(await what)
        self._progress.advance(self._task)


async def run(scale: Scale, only: str, progress: Progress) -> list[Outcome]:
    """All rows whose title holds `only`. Raises `NotMeasured`, `EmbeddedStoreError`."""
    wanted = [row for row in rows(scale) if only in row.title]
    floors = [keys for keys in scale.floor_keys if only in "durable floor raises"]
    refusals = only in "refused"
    leases = [title for title in LEASE_ROWS if only in title]
    jobs = [title for title in JOB_ROWS if only in title]
    steps = Steps(progress, len(wanted) + len(floors) + refusals + len(leases) + len(jobs))
    for keys in floors:
        await steps.step(f"floor raises, {keys:,} keys", measure_floors(keys))
    if not wanted and not refusals and not leases and not jobs:
        return steps.outcomes
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=Path.cwd(), ignore_cleanup_errors=True) as directory,
        ProcessPoolExecutor(1, mp_context=spawn) as pool,
    ):
        generator = Generator(pool)
        async with started(Path(directory)) as bench:
            if refusals:
                await steps.step("refusals", measure_refusals(bench, generator, scale))
            for number, row in enumerate(wanted):
                await steps.step(row.title, measure(bench, generator, row, number, scale.row_s))
            for title in leases:
                await steps.step(title, LEASE_ROWS[title](bench, pool, scale))
            for title in jobs:
                await steps.step(title, JOB_ROWS[title](bench, pool, scale))
    return steps.outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller requests, at most a minute")
    parser.add_argument("--large", action="store_true", help="also 32 uploads of 256 MiB side by side")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the rows whose title holds TEXT")
    options = parser.parse_args()
    scale = QUICK if options.quick else DEFAULT
    if options.large:
        scale = replace(scale, upload_bytes=(*scale.upload_bytes, LARGE_UPLOAD_BYTES))
    errors = Console(stderr=True)
    columns = SpinnerColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    try:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            outcomes = uvloop.run(run(scale, options.only, progress))
    except (NotMeasured, EmbeddedStoreError) as error:
        errors.print(f"could not measure: {error}", markup=False)
        return 1
    if options.json:
        print(as_json(outcomes))
    else:
        Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
