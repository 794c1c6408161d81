"""`python -m tests.model`: every world to its end, then every rule taken away.

`--minutes` bounds each world; `--only TEXT` takes the worlds whose name holds it; `--ingredients N` adds those of the
systematic worlds that have three to N of them; `--table` only writes the table of rules into docs/model.md; `--walks N`
only goes N random ways through worlds of everything at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.model import systematic, table
from tests.model.explore import Found, explore
from tests.model.rules_off import SWITCHES
from tests.model.size import Size
from tests.model.transcript import transcript
from tests.model.walk import Walk, walk
from tests.model.worlds import FULL

WALKS = 500
"""So many at a time."""


def _explore(size: Size, minutes: float | None) -> Found:
    began = time.monotonic()

    def progress(depth: int, states: int, waiting: int) -> None:
        if states % 200_000 == 0:
            print(f"    {size.name}: {states:,} states, depth {depth}, {waiting:,} waiting", flush=True)

    return explore(
        size,
        progress=progress,
        enough=lambda: minutes is not None and time.monotonic() - began > minutes * 60,
    )


def _worlds(sizes: list[Size], minutes: float | None) -> Iterator[Found]:
    with ProcessPoolExecutor() as pool:
        for done in as_completed([pool.submit(partial(_explore, size, minutes)) for size in sizes]):
            yield done.result()


def _rules() -> int:
    found = []
    for switch in SWITCHES:
        one = table.harm(switch)
        print(f"\n{switch.rule} without: {switch.what} ({one.states:,} states)", flush=True)
        with switch.off():
            print(transcript(one) if one.violation is not None else "    no harm found", flush=True)
        found.append(one)
    table.write(table.table(found))
    return sum(one.violation is None for one in found)


def _walks(first: int, count: int) -> tuple[int, list[Walk]]:
    """How many steps, and the ways that break a guarantee."""
    walks = [walk(seed) for seed in range(first, first + count)]
    return sum(one.steps for one in walks), [one for one in walks if one.violation is not None]


def _many_walks(count: int) -> int:
    broken = steps = done = 0
    with ProcessPoolExecutor() as pool:
        chunks = [pool.submit(_walks, at, min(WALKS, count - at)) for at in range(0, count, WALKS)]
        for chunk in as_completed(chunks):
            taken, bad = chunk.result()
            steps, done, broken = steps + taken, done + WALKS, broken + len(bad)
            for one in bad[:1]:
                print(f"seed {one.seed}: {one.violation}", *one.story, sep="\n", flush=True)
            if done % (WALKS * 20) == 0:
                print(f"    {min(done, count):,} ways, {steps:,} steps, {broken} with a violation", flush=True)
    print(f"{count:,} ways, {steps:,} steps, {broken} with a violation", flush=True)
    return broken


def main() -> int:
    """Explore; answer how many worlds broke a guarantee and how many rules did no harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long each world may take")
    parser.add_argument("--only", default="", help="the worlds whose name holds this")
    parser.add_argument("--ingredients", type=int, default=2, help="so many in the systematic worlds")
    parser.add_argument("--table", action="store_true", help="only the rules")
    parser.add_argument("--walks", type=int, default=0, help="so many random ways through everything at once")
    asked = parser.parse_args()
    if asked.walks:
        return _many_walks(asked.walks)
    broken = states = 0
    if not asked.table:
        sizes = [*FULL, *systematic.worlds(asked.ingredients, least=3)]
        for found in _worlds([size for size in sizes if asked.only in size.name], asked.minutes):
            states += found.states
            end = "all" if found.complete else f"as far as depth {found.depth}"
            print(f"{found.size.name}: {found.states:,} states, {found.steps:,} steps, {end}", flush=True)
            if found.violation is not None:
                broken += 1
                print(transcript(found), flush=True)
        print(f"{states:,} states, {broken} worlds with a violation", flush=True)
    return broken + (_rules() if asked.table or not asked.only else 0)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
