"""What leases cost: pairs of acquire and release, in the service and over HTTP, and the renewals of many.

What is here runs in a process of its own, as `bench.load` does. `python -m bench.leases` measures the service alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.load import LIMIT_S, Door, NotMeasured, Sample
from gateway.clock import SystemClock
from gateway.core.keys import FencingKey
from gateway.service.fences import Fences
from gateway.service.leases import Leases
from gateway.service.waits import Timing
from gateway.stores.sqlite import SqliteStore
from gateway.telemetry import configure_logging

RUN_S = 3.0
WORKERS = 64
KEYS_OF_A_WORKER = 16
TTL_S = 60.0
RENEWED_EVERY_S = 10.0
_HEAD_END = b"\r\n\r\n"
Pair = Callable[[str], Awaitable[None]]


# --- in the service


def pairs_in_service(seconds: float = RUN_S) -> Sample:
    """64 workers acquire leases and give them up again, each on keys of its own, durably."""
    return uvloop.run(_in_service(seconds))


async def _in_service(seconds: float) -> Sample:
    async with _service() as leases:

        async def pair(name: str) -> None:
            key = FencingKey(name)
            await leases.release(key, (await leases.acquire(key, "worker", TTL_S)).token)

        return await _pairs([pair] * WORKERS, seconds, time.process_time)


@asynccontextmanager
async def _service() -> AsyncIterator[Leases]:
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


async def _pairs(workers: list[Pair], seconds: float, cpu: Callable[[], float]) -> Sample:
    took: list[float] = []

    async def work(number: int, pair: Pair, end: float) -> None:
        turn = 0
        while (began := time.perf_counter()) < end:
            await pair(f"job-{number}-{turn % KEYS_OF_A_WORKER}")
            took.append(time.perf_counter() - began)
            turn += 1

    began, cpu_began = time.perf_counter(), cpu()
    await asyncio.gather(*(work(number, pair, began + seconds) for number, pair in enumerate(workers)))
    return Sample(len(took), time.perf_counter() - began, cpu() - cpu_began, tuple(took))


# --- over HTTP


class Caller:
    """One kept connection to the control listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, path: str, body: str = "") -> bytes:
        """The body of the answer. Raises `NotMeasured` unless it is a success."""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write((head + body).encode())
        answer = await self._reader.readuntil(_HEAD_END)
        length = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        told = await self._reader.readexactly(int(length or 0))
        if answer[9:10] != b"2":
            raise NotMeasured(f"{method} {path} was answered {answer[9:12]!r}: {told[:300]!r}")
        return told

    def close(self) -> None:
        self._writer.close()

    async def acquire(self, name: str) -> int:
        told = await self.call("POST", f"/v1/leases/{name}", f'{{"holder":"worker","ttl_s":{TTL_S}}}')
        return int(json.loads(told)["token"])

    async def pair(self, name: str) -> None:
        await self.call("DELETE", f"/v1/leases/{name}?token={await self.acquire(name)}")


@asynccontextmanager
async def callers_of(port: int, count: int) -> AsyncIterator[list[Caller]]:
    callers = [Caller(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    try:
        async with asyncio.timeout(LIMIT_S):
            yield callers
    finally:
        for caller in callers:
            caller.close()


def pairs_over_http(door: Door, port: int, seconds: float) -> Sample:
    """The same through the control listener at `port`. Raises `NotMeasured`."""

    async def measure() -> Sample:
        async with callers_of(port, WORKERS) as callers:
            return await _pairs([caller.pair for caller in callers], seconds, door.cpu_s)

    return uvloop.run(measure())


def renewals_over_http(door: Door, port: int, leases: int, seconds: float) -> Sample:
    """So many leases, each renewed every 10 s, evenly spread. Raises `NotMeasured`."""

    async def measure() -> Sample:
        async with callers_of(port, WORKERS) as callers:
            held: list[tuple[str, str]] = []
            took: list[float] = []

            async def acquire(number: int) -> None:
                for turn in range(number, leases, WORKERS):
                    name = f"held-{turn}"
                    held.append((f"/v1/leases/{name}/renew", f'{{"token":{await callers[number].acquire(name)}}}'))

            async def renew(number: int) -> None:
                for turn in range(number, renewals, WORKERS):
                    at = began + turn * RENEWED_EVERY_S / leases
                    await asyncio.sleep(max(0.0, at - time.perf_counter()))
                    await callers[number].call("POST", *held[turn % leases])
                    took.append(time.perf_counter() - at)

            await asyncio.gather(*map(acquire, range(WORKERS)))
            renewals = int(leases * seconds / RENEWED_EVERY_S)
            began, cpu_began = time.perf_counter(), door.cpu_s()
            await asyncio.gather(*map(renew, range(WORKERS)))
            return Sample(len(took), time.perf_counter() - began, door.cpu_s() - cpu_began, tuple(took))

    return uvloop.run(measure())


def main() -> int:
    found = pairs_in_service()
    took = sorted(found.took_s)
    print(
        f"{found.requests / found.wall_s:,.0f} pairs/s  median {1000 * took[len(took) // 2]:.1f} ms"
        f"  CPU {1e6 * found.cpu_s / found.requests:.0f} µs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
