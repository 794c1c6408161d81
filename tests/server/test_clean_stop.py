"""R5: the clean mark is left only when nothing that was sent can still land, and last of all."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import AsyncMock

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.server.rig import BUCKET, running


class Losing(MemoryUpstream):
    """A store whose every answer to a write is lost; it notes whether the database was open when it was closed."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(BUCKET)
        self.store = store
        self.closed_first = False

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        raise UpstreamLost("reset")

    async def close(self) -> None:
        await self.store.check()
        self.closed_first = True


async def next_start(store: MemoryStore) -> bool:
    """Whether the next start finds a clean mark."""
    return (await store.start("rules")).clean


async def crashed(store: MemoryStore) -> MemoryStore:
    await store.start("rules")
    await store.stop(clean=False)
    return store


async def test_a_stop_with_a_send_in_doubt_is_not_clean() -> None:
    """Counterexample of R5; and the database is closed only when the connections are."""
    store = MemoryStore()
    upstream = Losing(store)
    async with running(store=store, upstream=upstream) as rig:
        assert (await rig.put("o", b"A", 5)).xml["FencingOutcome"] == "Unknown"
    assert upstream.closed_first
    assert not await next_start(store)


async def test_a_stop_with_nothing_in_doubt_is_clean() -> None:
    """Else every restart would cost the settle time-out."""
    store = MemoryStore()
    async with running(store=store) as rig:
        await rig.put("o", b"A", 5)
    assert await next_start(store)


@pytest.mark.parametrize("settled", [False, True], ids=["a store that lives on", "an embedded store that had ended"])
async def test_a_stop_soon_after_a_crash_is_clean_only_if_nothing_can_land(settled) -> None:
    """What the crashed run sent may still be under way, unless the processes of the embedded store had ended."""
    store = await crashed(MemoryStore())
    async with running(store=store, upstream_settled=settled) as rig:
        assert rig.gateway.fences.earlier_run.unsettled != settled
    assert await next_start(store) == settled


def _unreadable() -> MemoryStore:
    """A store that cannot tell which uploads are open."""
    store = MemoryStore()
    store.uploads.unfinished = AsyncMock(side_effect=StoreUnavailable("disk error"))
    return store


async def test_a_start_that_fails_leaves_no_clean_mark_of_its_own() -> None:
    """It has sent nothing, but what the crashed run sent may still land."""
    store = await crashed(_unreadable())
    with pytest.raises(StoreUnavailable):
        async with running(store=store):
            pass
    assert not await next_start(store)


class _Full(MemoryStore):
    """A store on a disk that is full when it is stopped."""

    async def stop(self, *, clean: bool) -> None:
        await super().stop(clean=False)
        raise StoreUnavailable("the disk is full")


async def test_a_stop_that_cannot_write_is_told_when_all_has_ended() -> None:
    """The last line of the log says that the stop was not clean, and why; the store behind has been ended, too."""
    ended = asyncio.Event()

    async def end() -> None:
        ended.set()

    gateway = running(store=_Full(), stop_behind=end)
    rig = await gateway.__aenter__()
    with pytest.raises(StoreUnavailable):
        await gateway.__aexit__(None, None, None)
    assert ended.is_set()
    last = json.loads(rig.logged.splitlines()[-1])
    assert (last["event"], last["clean"], last["reason"]) == ("stopped", False, "the disk is full")
