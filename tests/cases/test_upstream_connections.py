"""A store that fails on its connections, played by hand: what the client is told, and what is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.service.waits import Timing
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from tests.conftest import REGION
from tests.server.rig import Answer, Pairs, Rig, rule, running
from tests.upstream.peer import Listener, Peer

STORED = b'HTTP/1.1 200 OK\r\netag: "e"\r\ncontent-length: 0\r\n\r\n'
ABSENT = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
DENIED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 50\r\n\r\n<Error><Code>AccessDenied</Code><Message/></Error>"
TOKEN = ("x-fencing-token", "5")
LARGE = bytes(range(256)) * 24_000
WRITES: list[tuple[str, Pairs]] = [("/b/plain", ()), ("/b/renders/7/out", (TOKEN,))]


@asynccontextmanager
async def before_a_peer() -> AsyncIterator[tuple[Rig, Listener]]:
    """A gateway, and the store that it talks to; a lost answer is given up soon."""
    listener = Listener()
    upstream = UpstreamClient(listener.url, region=REGION, credentials=StaticCredentials(None))
    timing = Timing(handover_wait_s=0.2, commit_timeout_s=0.3, settle_timeout_s=30)
    try:
        async with running(upstream=upstream, rules=[rule("renders/{job}/**", "{job}")], timing=timing) as rig:
            yield rig, listener
    finally:
        listener.close()


async def used_once(rig: Rig, listener: Listener, *request: Any) -> Peer:
    """The connection to the store that the request, which went well, has left in the pool."""
    asking = asyncio.ensure_future(rig.ask(*request))
    peer = await listener.accept()
    await peer.request()
    await peer.send(STORED)
    assert (await asking).status == 200
    return peer


async def heads_answered(peer: Peer) -> bytes:
    """The head of the next request that is no HEAD; those are told that nothing is there."""
    while (head := await peer.head()).startswith(b"HEAD"):
        await peer.send(ABSENT)
    return head


async def every_look_answered(listener: Listener) -> None:
    """Tell each new connection that nothing is there, for ever."""
    while True:
        peer = await listener.accept()
        with_head = await peer.head()
        assert with_head.startswith(b"HEAD"), with_head
        await peer.send(ABSENT)


@asynccontextmanager
async def beside(main: Awaitable[None]) -> AsyncIterator[None]:
    """Something that goes on until the end of the context."""
    task = asyncio.ensure_future(main)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("target", "fields"), WRITES, ids=["plain", "fenced"])
async def test_a_pooled_connection_that_the_store_has_closed(target: str, fields: Pairs) -> None:
    """The next write goes over a new connection, once; the client notices nothing."""
    async with before_a_peer() as (rig, listener):
        peer = await used_once(rig, listener, "PUT", target, fields, b"1")
        peer.close()
        second = asyncio.ensure_future(rig.ask("PUT", target, fields, b"2"))
        peer = await listener.accept()
        assert (await peer.request()).endswith(b"\r\n\r\n2")
        await peer.send(STORED)
        assert (await second).status == 200
        assert listener.nobody_waits()


@pytest.mark.parametrize(("target", "fields"), WRITES, ids=["plain", "fenced"])
async def test_a_pooled_connection_that_the_store_closes_under_a_write(target: str, fields: Pairs) -> None:
    """Nobody knows whether it was applied: 503 with `Unknown`, and it is not sent a second time."""
    async with before_a_peer() as (rig, listener):
        peer = await used_once(rig, listener, "PUT", target, fields, b"1")
        second = asyncio.ensure_future(rig.ask("PUT", target, fields, b"2"))
        await peer.request()
        peer.close()
        async with beside(every_look_answered(listener)):
            answer = await second
        assert answer.status == 503
        assert answer.xml["FencingOutcome"] == "Unknown"
        assert answer.xml["FencingReason"] == "InDoubt"


async def test_a_pooled_connection_that_the_store_closes_under_a_read() -> None:
    """A read is tried once more on a new connection, and no false 502 or 503 comes of it."""
    async with before_a_peer() as (rig, listener):
        peer = await used_once(rig, listener, "GET", "/b/k")
        second = asyncio.ensure_future(rig.ask("GET", "/b/k"))
        await peer.request()
        peer.close()
        peer = await listener.accept()
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthere")
        assert (await second).body == b"there"


Fault = Callable[[Peer], Awaitable[None]]


async def resets(peer: Peer) -> None:
    peer.reset()


async def closes(peer: Peer) -> None:
    peer.close()


async def answers_500(peer: Peer) -> None:
    await peer.send(FAILED)


async def answers_200(peer: Peer) -> None:
    await peer.send(STORED)


@pytest.mark.parametrize("fault", [resets, closes, answers_500, answers_200])
@pytest.mark.parametrize(("target", "fields"), WRITES, ids=["plain", "fenced"])
async def test_a_store_that_fails_in_mid_put(target: str, fields: Pairs, fault: Fault) -> None:
    """A reset, an end, a 500 or a 200 before it has the whole body: 503 `NotApplied`, nothing is in doubt, and the
    client can read it although it has not sent all of its body."""
    async with before_a_peer() as (rig, listener):
        wire = asyncio.ensure_future(begun(rig, target, fields))
        peer = await listener.accept()
        assert (await heads_answered(peer)).startswith(b"PUT")
        await fault(peer)
        answer = await wire
        assert answer.status == 503, answer.body
        assert answer.xml["FencingOutcome"] == "NotApplied"
        assert rig.gateway.fences.unsettled() == []


async def test_a_store_that_refuses_in_mid_put() -> None:
    """Its own refusal is passed on, as it came."""
    for target, fields in WRITES:
        async with before_a_peer() as (rig, listener):
            wire = asyncio.ensure_future(begun(rig, target, fields))
            peer = await listener.accept()
            await heads_answered(peer)
            await peer.send(DENIED)
            answer = await wire
            assert (answer.status, answer.code) == (403, "AccessDenied")


async def begun(rig: Rig, target: str, fields: Pairs) -> Answer:
    """Send a large body, and read what is answered meanwhile."""
    return await rig.ask("PUT", target, fields, LARGE)


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("target", "fields"), WRITES, ids=["plain", "fenced"])
async def test_a_store_that_never_answers(target: str, fields: Pairs, body: bytes) -> None:
    """It has the whole body and says nothing: 503 `Unknown` after the commit time-out, the connection reset."""
    async with before_a_peer() as (rig, listener):
        asked = asyncio.ensure_future(rig.ask("PUT", target, fields, body))
        peer = await listener.accept()
        await heads_answered(peer)
        ended = asyncio.ensure_future(peer.end())
        async with beside(every_look_answered(listener)):
            answer = await asked
        assert answer.status == 503
        assert answer.xml["FencingOutcome"] == "Unknown"
        assert await ended == "reset"
        assert len(rig.gateway.fences.unsettled()) == 1


async def test_a_store_that_is_not_there() -> None:
    """503 `NotApplied` for every write and read."""
    listener = Listener()
    listener.close()
    upstream = UpstreamClient(listener.url, region=REGION, credentials=StaticCredentials(None))
    async with running(upstream=upstream, rules=[rule("renders/{job}/**", "{job}")]) as rig:
        for target, fields in WRITES:
            for method in ("PUT", "DELETE", "GET"):
                answer = await rig.ask(method, target, fields, b"x" if method == "PUT" else None)
                assert (answer.status, answer.xml["FencingReason"]) == (503, "UpstreamUnavailable")
                assert answer.xml["FencingOutcome"] == "NotApplied"
        assert rig.gateway.fences.unsettled() == []
