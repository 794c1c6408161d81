"""Readers and fencers of a run."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from pathlib import Path

import aiohttp

from tests.chaos.client import Client, glance, look
from tests.chaos.recorder import Recorder
from tests.chaos.referee import next_token
from tests.chaos.world import CLIENT, JOBS, OBJECTS, World, place


class Reader:
    """Looks at all objects in turn, at the store itself, and at some through the gateway."""

    def __init__(self, directory: Path, name: str, seed: str) -> None:
        world = World.load(directory)
        self._random = random.Random(seed)
        self._recorder = Recorder(directory, name)
        self._store = Client(world.store, world.store_credentials)
        self._gateway = Client(world.gateway, CLIENT)

    async def run(self) -> None:
        """For ever."""
        names = [place(job, name) for job in JOBS for name in OBJECTS]
        await asyncio.gather(self._look(self._store, names, 0.01), self._look(self._gateway, names, 0.1))

    async def _look(self, client: Client, names: list[str], pause_s: float) -> None:
        while True:
            see = look if self._random.random() < 0.7 else glance
            await see(client, self._recorder, self._random.choice(names))
            await asyncio.sleep(pause_s)


async def look_at_all(directory: Path, name: str) -> None:
    """What the store holds when all is over."""
    world = World.load(directory)
    recorder, store = Recorder(directory, name), Client(world.store, world.store_credentials)
    for job in JOBS:
        for one in OBJECTS:
            await look(store, recorder, place(job, one))


class Fencer:
    """Raises floors past whoever holds a lease, checks tokens, and reads floors, by the control API."""

    def __init__(self, directory: Path, name: str, seed: str) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._recorder = Recorder(directory, name)
        self._url = World.load(directory).control

    async def run(self) -> None:
        """For ever."""
        timeout = aiohttp.ClientTimeout(total=12)
        async with aiohttp.ClientSession(self._url, timeout=timeout) as session:
            while True:
                job = self._random.choice(JOBS)
                do = self._random.choices((self._raise, self._read), (1, 6))[0]
                with suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):  # no answer
                    await do(session, job)
                await asyncio.sleep(self._random.uniform(0.05, 0.4))

    async def _raise(self, session: aiohttp.ClientSession, job: str) -> None:
        """And now and then a check, of the token that comes next or of the one before."""
        token = await next_token(self._directory, job)
        operation = self._random.choice(("raise", "check"))
        call = self._recorder.call(operation, job, token)
        await self._ask(session, job, operation, token, call)

    async def _ask(self, session: aiohttp.ClientSession, job: str, what: str, token: int, call: str) -> None:
        body = {"token": token, **({"reason": "chaos"} if what == "raise" else {})}
        async with session.post(f"/v1/fences/{job}/{what}", json=body) as answer:
            await answer.read()
            self._recorder.answer(call, answer.status)

    async def _read(self, session: aiohttp.ClientSession, job: str) -> None:
        since = time.monotonic()
        async with session.get(f"/v1/fences/{job}") as answer:
            if answer.status == 200:
                self._recorder.floor(since, job, int(json.loads(await answer.read())["floor"]))
