"""The gates in memory: read from the store when a key is first asked for, forgotten when the store knows as much."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from gateway.clock import Clock
from gateway.core.gate import Gate
from gateway.core.keys import FencingKey, stand_in_of
from gateway.service.earlier_run import EarlierRun
from gateway.service.passages import LiveGate
from gateway.service.refusals import store_unavailable
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import Event, EventKind, Fence

T = TypeVar("T")
MAX_IDLE_GATES = 65536


class Gates:
    """The gates of all keys that are in use, or were a while ago."""

    def __init__(self, store: Store, clock: Clock, earlier_run: EarlierRun) -> None:
        self._store = store
        self._clock = clock
        self._earlier_run = earlier_run
        self._live: OrderedDict[FencingKey, LiveGate] = OrderedDict()
        self._loading: dict[FencingKey, asyncio.Task[Fence]] = {}

    def __iter__(self) -> Iterator[LiveGate]:
        return iter(self._live.values())

    def get(self, key: FencingKey) -> LiveGate | None:
        """The gate of a key if it is in memory."""
        return self._live.get(key)

    async def of(self, key: FencingKey) -> LiveGate:
        """The gate of a key; the only one, as long as it is pinned. Raises `TryAgain` (StoreUnavailable)."""
        return self._live.get(key) or await self._load(key)

    def unpin(self, live: LiveGate) -> None:
        """Nobody works on it any more who has pinned it."""
        live.pins -= 1
        if len(self._live) > MAX_IDLE_GATES:
            self._forget_idle()

    async def fence(self, key: FencingKey) -> Fence:
        """What the store knows of a key. Raises `TryAgain` (StoreUnavailable)."""
        fence = await stored(self._store.fence(key))
        if (stand_in := stand_in_of(key)) is None:
            return fence
        # A rebuild may have found the token of this key where only the key's hash stood.
        found = await stored(self._store.fence(stand_in))
        if found.floor <= fence.floor:
            return fence
        event = Event(key, EventKind.FOUND, found.floor, fence.floor, "by the hash of the key")
        return await stored(self._store.raise_floor(key, found.floor, event))

    async def _load(self, key: FencingKey) -> LiveGate:
        # One load at a time for a key: two could leave a writer with a gate that is not the one in the table.
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self.fence(key))
            task.add_done_callback(lambda done: self._loaded(key, done))
        fence = await asyncio.shield(task)
        live = self._live.get(key)
        if live is None:
            if len(self._live) >= MAX_IDLE_GATES:
                self._forget_idle()
            until = self._earlier_run.until(key)
            gate = Gate(
                key, fence.floor, fence.completed_floor, fence.sealed_token, until, granted_token=fence.granted_token
            )
            live = self._live[key] = LiveGate(gate, self._clock.monotonic())
        return live

    def _loaded(self, key: FencingKey, task: asyncio.Task[Fence]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has been told; nobody may have

    def _forget_idle(self) -> None:
        for _ in range(8):
            key, live = self._live.popitem(last=False)
            if live.pins or not live.gate.idle:
                self._live[key] = live
            elif len(self._live) <= MAX_IDLE_GATES:
                return


async def stored(call: Awaitable[T]) -> T:
    """What the store answers. Raises `TryAgain` (StoreUnavailable)."""
    try:
        return await call
    except StoreUnavailable as error:
        raise store_unavailable(error) from error
