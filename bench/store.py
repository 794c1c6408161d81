"""Durable raises a second of the SQLite store: `python -m bench.store [--json]`, about 20 seconds.

Every raise is of a random key, by a token that is higher than its floor, and counts once it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from gateway.stores.sqlite import SqliteStore
from gateway.stores.values import Event, EventKind

RUN_S = 3.0


_PRELOAD = """
INSERT INTO fence (key, floor, completed_floor, sealed_token, shadow_floor, raised_at) VALUES (?, 1, 0, 0, 0, 0)
"""


@dataclass(frozen=True)
class Case:
    keys: int
    callers: int
    events: bool = False
    """Each raise also writes a line of history."""


@dataclass(frozen=True)
class Result:
    keys: int
    callers: int
    events: bool
    raises_per_s: int
    median_ms: float
    p99_ms: float


CASES = (
    Case(keys=1_000, callers=64),
    Case(keys=1_000_000, callers=64),
    Case(keys=1_000_000, callers=64, events=True),
    Case(keys=1_000, callers=1),
)


def key_of(number: int) -> str:
    return f"job-{number:08d}"


async def preload(path: Path, keys: int) -> None:
    """Give every key the floor 1, in one transaction past the store."""
    store = SqliteStore(path)
    await store.start("bench")
    await store.stop(clean=True)
    connection = sqlite3.connect(path)
    rows = ((key_of(number),) for number in range(keys))
    connection.executemany(_PRELOAD, rows)
    connection.commit()
    connection.close()


async def measure(store: SqliteStore, case: Case) -> Result:
    """Let the callers raise for RUN_S seconds."""
    chance = random.Random(case.keys)
    floors = [1] * case.keys
    took: list[float] = []
    end = time.perf_counter() + RUN_S

    async def caller() -> None:
        while (began := time.perf_counter()) < end:
            number = chance.randrange(case.keys)
            floors[number] = token = floors[number] + 1
            key = key_of(number)
            event = Event(key, EventKind.RAISED, token, token, "put") if case.events else None
            await store.raise_floor(key, token, event)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(case.callers)))
    rate = len(took) / (time.perf_counter() - began)
    took.sort()
    median, p99 = (1000 * took[int(len(took) * part)] for part in (0.5, 0.99))
    return Result(case.keys, case.callers, case.events, round(rate), round(median, 2), round(p99, 2))


async def run(case: Case) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=Path.cwd()) as directory:
        path = Path(directory) / "gateway.db"
        await preload(path, case.keys)
        store = SqliteStore(path)
        await store.start("bench")
        try:
            return await measure(store, case)
        finally:
            await store.stop(clean=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    for case in CASES:
        result = uvloop.run(run(case))
        if options.json:
            print(json.dumps(asdict(result)), flush=True)
        else:
            print(
                f"{result.keys:>9,} keys  {result.callers:>3} callers  {'history' if result.events else '':7}"
                f"  {result.raises_per_s:>7,} raises/s  median {result.median_ms} ms  p99 {result.p99_ms} ms",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
