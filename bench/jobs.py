"""What jobs cost: received and completed with many waiting, and workers who wait for jobs that do not come.

What is here runs in a process of its own, as `bench.load` does.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import uvloop

from bench.leases import Caller, callers_of
from bench.load import Door, NotMeasured, Sample
from gateway.stores.sqlite import SqliteStore

QUEUE = "bench"
WORKERS = 32
POLLS = 1000
SETTLE_S = 2.0
_PRELOAD = """
INSERT INTO job (key, queue, state, priority, attempts, submitted_at, available_at, token, delivery, error, holder,
    completed_at, outputs, payload)
VALUES (?, ?, 'waiting', 0, 0, 1, 0, 0, '', '', '', 0, '[]', '{"frame": 7}')
"""


def preload(path: Path, jobs: int) -> None:
    """A database with so many jobs in line, in one transaction past the store."""

    async def make() -> None:
        store = SqliteStore(path)
        await store.start("bench")
        await store.stop(clean=True)

    asyncio.run(make())
    connection = sqlite3.connect(path)
    connection.executemany(_PRELOAD, ((f"job-{number:08d}", QUEUE) for number in range(jobs)))
    connection.execute("DELETE FROM meta WHERE name = 'rules_digest'")  # as if it had never served: a clean start
    connection.commit()
    connection.close()


def jobs_over_http(door: Door, port: int, seconds: float) -> Sample:
    """Workers receive jobs, one at a time, and complete them. Raises `NotMeasured`."""

    async def measure() -> Sample:
        took: list[float] = []

        async def work(caller: Caller, end: float) -> None:
            while (began := time.perf_counter()) < end:
                asked = '{"holder":"worker","visibility_s":60,"wait_s":5}'
                told = json.loads(await caller.call("POST", f"/v1/queues/{QUEUE}/receive", asked))
                for job in told["jobs"]:
                    done = f'{{"token":{job["token"]},"result":{{"frames":24}}}}'
                    await caller.call("POST", f"/v1/jobs/{job['key']}/complete", done)
                    took.append(time.perf_counter() - began)

        async with callers_of(port, WORKERS) as callers:
            began, cpu_began = time.perf_counter(), door.cpu_s()
            await asyncio.gather(*(work(caller, began + seconds) for caller in callers))
            return Sample(len(took), time.perf_counter() - began, door.cpu_s() - cpu_began, tuple(took))

    return uvloop.run(measure())


def idle_polls(door: Door, port: int, seconds: float) -> tuple[Sample, float]:
    """Workers wait for jobs in a queue that has none: what that costs, and the memory of each, in bytes. Raises
    `NotMeasured`."""

    async def measure() -> tuple[Sample, float]:
        async with callers_of(port, POLLS) as callers:
            before = _resident_bytes(door)
            asked = '{"holder":"worker","wait_s":60}'
            polls = [
                asyncio.ensure_future(caller.call("POST", "/v1/queues/empty/receive", asked)) for caller in callers
            ]
            await asyncio.sleep(SETTLE_S)
            each = (_resident_bytes(door) - before) / POLLS
            began, cpu_began = time.perf_counter(), door.cpu_s()
            await asyncio.sleep(seconds)
            sample = Sample(POLLS, time.perf_counter() - began, door.cpu_s() - cpu_began, (seconds,))
            if any(poll.done() for poll in polls):
                raise NotMeasured("a long poll was answered before its time")
            for poll in polls:
                poll.cancel()
            return sample, each

    return uvloop.run(measure())


def _resident_bytes(door: Door) -> int:
    pages = Path(f"/proc/{door.pid}/statm").read_text().split()[1]
    return int(pages) * 4096
