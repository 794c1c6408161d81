"""What the first look at the store behind tells whoever has just started a gateway."""

from __future__ import annotations

import json

import pytest

from gateway.cli.serve import _tell_refused
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.server.rig import running


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
