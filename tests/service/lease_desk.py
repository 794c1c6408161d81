"""The service layer with leases on a table, in virtual time, and how to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.keys import FencingKey
from gateway.service.lease_errors import LeaseError
from gateway.service.leases import Lease, Leases, LeaseTerms
from gateway.service.waits import Timing
from gateway.stores.memory import MemoryStore
from gateway.stores.values import EventKind
from tests.service.rig import Rig, rig
from tests.virtual_time import run

J = FencingKey("j")


@dataclass
class Desk:
    """A service layer with leases."""

    rig: Rig
    leases: Leases
    ends: list[tuple[str, int, EventKind]] = field(default_factory=list)

    @property
    def store(self) -> MemoryStore:
        return self.rig.store

    async def acquire(self, holder: str = "A", ttl_s: float = 30, **options: Any) -> Lease:
        return await self.leases.acquire(J, holder, ttl_s, **options)

    async def history(self) -> list[EventKind]:
        return [event.kind for event in reversed(await self.store.events("j", None, 99))]


async def desk(
    terms: LeaseTerms | None = None,
    store: MemoryStore | None = None,
    timing: Timing | None = None,
    *,
    clean: bool = True,
) -> Desk:
    """One that has started; with `store` of an earlier one, after a restart, or after a crash."""
    if store is not None:
        await store.stop(clean=clean)
    table = await rig(store=store, timing=timing)
    leases = Leases(table.fences, terms or LeaseTerms())
    await leases.start()
    made = Desk(table, leases)
    leases.on_end.append(lambda key, token, how: made.ends.append((key, token, how)))
    return made


def play(main: Coroutine[Any, Any, None]) -> None:
    run(main)


async def later(s: float) -> None:
    await asyncio.sleep(s)


async def refused(call: Coroutine[Any, Any, object]) -> LeaseError:
    with pytest.raises(LeaseError) as caught:
        await call
    return caught.value
