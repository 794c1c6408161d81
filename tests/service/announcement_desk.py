"""A store, its webhooks and their receivers on a table, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps

from gateway.service.courier import NotTaken, Pace
from gateway.service.webhooks import Answer, Webhook, Webhooks
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind
from tests.virtual_time import VirtualClock, run

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DAY_S = 86400.0
DOWN = NotTaken("no connection")


def virtually(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in virtual time: days pass in no time, and the same way each time."""

    @wraps(test)
    def run_it(**given: object) -> None:
        run(test(**given))

    return run_it


@dataclass
class Receiver:
    """Takes posts; what is in `sick` says by key (or for all, under "*") what it does instead."""

    sick: dict[str, NotTaken | Answer | Exception] = field(default_factory=dict)
    takes_s: float = 0.01
    posts: list[tuple[float, dict[str, str], dict[str, object]]] = field(default_factory=list)
    """Every attempt: when, headers, body."""
    taken: list[dict[str, object]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    closed: bool = False

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        told = json.loads(body)
        self.posts.append((asyncio.get_running_loop().time(), dict(headers), told))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.under_way -= 1
        answer = self.sick.get("*") or self.sick.get(told["subject"]) or Answer(204)
        if isinstance(answer, Exception):
            raise answer
        if answer.status < 300:
            self.taken.append(told)
        return answer

    async def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[object]:
        return [told["id"] for told in self.taken]

    def of(self, key: str) -> list[object]:
        """The tokens that were taken of a key, in their order."""
        return [told["data"]["token"] for told in self.taken if told["subject"] == key]

    def attempts(self, key: str) -> list[float]:
        """When announcements of a key were posted."""
        return [at for at, _, told in self.posts if told["subject"] == key]


class Desk:
    """A store, its webhooks and their receivers, in virtual time."""

    def __init__(self, store: MemoryStore, **settings: object) -> None:
        self.clock = VirtualClock()
        self.store = store
        self.receiver, self.other = Receiver(), Receiver()
        self.webhook = Webhook("first", (SECRET,), **settings)
        self.webhooks = Webhooks(
            [(self.webhook, self.receiver), (Webhook("other", (SECRET,), ("none",)), self.other)],
            store,
            self.clock,
            Pace(),
        )
        (_, self.courier), _ = self.webhooks.all

    async def raises(self, key: str, *tokens: int) -> None:
        for token in tokens:
            await self.store.raise_floor(key, token, Event(key, EventKind.RAISED, token, token - 1, "check"))

    async def until(self, come_about: Callable[[], object], within_s: float = 3 * DAY_S) -> None:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while not come_about():
                await asyncio.sleep(0.05 + (asyncio.get_running_loop().time() - began) / 100)


@asynccontextmanager
async def desk(store: MemoryStore | None = None, **settings: object) -> AsyncIterator[Desk]:
    clock = VirtualClock()
    store = store or MemoryStore(clock=clock.wall)
    await store.start("rules")
    it = Desk(store, **settings)
    await it.webhooks.start()
    yield it
    await it.webhooks.stop()
    await store.stop(clean=True)
