"""R5: the clean mark is left only when nothing that was sent can still land, and last of all."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import AsyncMock

import pytest

from gateway.cli.serve import _tell_refused
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest
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

    gateway = running(store=_Full(), backends=(end,))
    rig = await gateway.__aenter__()
    with pytest.raises(StoreUnavailable):
        await gateway.__aexit__(None, None, None)
    assert ended.is_set()
    last = json.loads(rig.logged.splitlines()[-1])
    assert (last["event"], last["clean"], last["reason"]) == ("stopped", False, "the disk is full")


async def test_a_store_that_cannot_be_reached_is_a_warning() -> None:
    """Who looks at warnings alone sees it at the start, and why."""
    async with running(upstream=_Away()) as rig:
        rig.gateway.look_at_upstream()
        await rig.gateway.refused_buckets()
        last = json.loads(rig.logged.splitlines()[-1])
    told = {"event": "upstream-unusable", "level": "warning", "reason": "no connection to the store"}
    assert last | told == last


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>Console</html>"), (200, b""), (405, b"Not allowed")])
async def test_a_store_that_is_none_is_a_warning(status: int, body: bytes) -> None:
    """The address of its console, or of another web server: what answers there lists no buckets, and tells no error
    of S3's."""
    async with running(upstream=_Other(status, body)) as rig:
        rig.gateway.look_at_upstream()
        await rig.gateway.refused_buckets()
        last = json.loads(rig.logged.splitlines()[-1])
    assert (last["event"], last["level"]) == ("upstream-unusable", "warning")
    assert last["reason"].startswith(f"it answers {status} to a list of buckets, with nothing of S3's")


async def test_a_store_that_wants_signatures_and_gets_none_is_a_warning() -> None:
    """Whoever has forgotten the store's credentials is told which settings they are."""
    denied = _Other(403, b"<Error><Code>AccessDenied</Code></Error>")
    async with running(upstream=denied, upstream_unsigned=True) as rig:
        rig.gateway.look_at_upstream()
        await rig.gateway.refused_buckets()
        last = json.loads(rig.logged.splitlines()[-1])
    assert (last["event"], last["level"]) == ("upstream-unusable", "warning")
    assert "[upstream] names no access_key and secret_key" in last["reason"]


@pytest.mark.parametrize(("status", "body"), [(403, b"<Error><Code>AccessDenied</Code></Error>"), (403, b"")])
async def test_a_store_that_lists_no_buckets_is_no_warning(status: int, body: bytes) -> None:
    """The gateway's credentials need not be allowed to."""
    async with running(upstream=_Other(status, body)) as rig:
        rig.gateway.look_at_upstream()
        await rig.gateway.refused_buckets()
        assert "upstream-unusable" not in rig.logged


class _Forgetful(MemoryStore):
    """A store that cannot say which buckets it rules."""

    async def rulings(self):
        raise StoreUnavailable("disk error")


async def test_a_database_that_cannot_say_which_buckets_it_rules_is_a_warning() -> None:
    """The first look ended without a word, and what tells a person of it with a traceback at the stop."""
    async with running(store=_Forgetful()) as rig:
        rig.gateway.look_at_upstream()
        await _tell_refused(rig.gateway, quiet=False)
        last = json.loads(rig.logged.splitlines()[-1])
    assert last | {"event": "buckets-not-looked-at", "level": "warning", "reason": "disk error"} == last


class _Other(MemoryUpstream):
    """What answers everything alike."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__()
        self._answer = (status, body)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        status, told = self._answer
        return MemoryResponse(status, [], told)


class _Away(MemoryUpstream):
    """A store that is not there."""

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        raise UpstreamNotReached("no connection to the store")
