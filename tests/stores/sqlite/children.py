"""Gateways in processes of their own, to be killed: `python -m tests.stores.sqlite.children WHAT PATH …`."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
from pathlib import Path

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite import SqliteStore
from gateway.stores.values import Event, EventKind


def say(line: str) -> None:
    """One write for a line: a killed process leaves no half of one behind another."""
    os.write(1, f"{line}\n".encode())


async def hold(path: Path) -> None:
    """Open the store and keep it."""
    await SqliteStore(path).start("rules")
    say("open")
    await asyncio.Event().wait()


async def leave(path: Path) -> None:
    """Open the store and go, as after a fault of the program."""
    await SqliteStore(path).start("rules")


async def raise_for_ever(path: Path, seed: int) -> None:
    """Raise floors from 16 callers, and say each one that is acknowledged."""
    store = SqliteStore(path)
    start = await store.start("rules")
    say(f"start {start.clean}")
    chance = random.Random(seed)
    floors = {f"job-{number}": 0 for number in range(50)}

    async def caller() -> None:
        while True:
            key = chance.choice(list(floors))
            floors[key] = token = floors[key] + chance.randint(1, 9)
            fence = await store.raise_floor(key, token, Event(key, EventKind.RAISED, token, token))
            say(f"{key} {fence.floor}")

    await asyncio.gather(*(caller() for _ in range(16)))


async def fill_the_disk(path: Path) -> None:
    """Go on through a disk that is full: a limit on the size of files, lifted in the end."""
    store = SqliteStore(path, cache_size=0)
    await store.start("rules")
    await store.raise_floor("job", 5)
    used = path.with_name(path.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (used + 100_000, resource.RLIM_INFINITY))
    token = 5
    refused = ""
    while not refused:
        try:
            await store.raise_floor("job", token + 1)
            token += 1
        except StoreUnavailable as error:
            refused = str(error)
    say(f"refused after {token}: {refused}")
    for call in (store.check(), store.raise_floor("job", token + 1), store.claim("b", "o", "job", instead_of=None)):
        try:
            await call
            say("a write went through")
        except StoreUnavailable:
            pass
    say(f"read {(await store.fence('job')).floor == token}")
    say(f"equal {(await store.raise_floor('job', token)).floor == token}")
    store.complete_handover("job", token)
    store.record(Event("job", EventKind.REFUSED, 1, token))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.check()
    say(f"raised {(await store.raise_floor('job', token + 1)).floor == token + 1}")
    say(f"lazy {(await store.fence('job')).completed_floor == token}")
    await store.stop(clean=True)
    say("stopped")


def main() -> None:
    what, path, *rest = sys.argv[1:]
    match what:
        case "hold":
            asyncio.run(hold(Path(path)))
        case "leave":
            asyncio.run(leave(Path(path)))
        case "raise":
            asyncio.run(raise_for_ever(Path(path), int(rest[0])))
        case "fill":
            asyncio.run(fill_the_disk(Path(path)))


if __name__ == "__main__":
    main()
