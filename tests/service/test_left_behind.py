"""Callers that go away and stores that fail: neither leaves anything behind, and neither takes others along."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.core.keys import FencingKey, Token
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, GrantWanted
from tests.service.job_desk import BreakableStore, J, desk
from tests.service.record_desk import LAPSE_S, Counting, gateway
from tests.service.rig import BUCKET, JOB, Fault, Payload, Rig, refusal, rig
from tests.service.test_batches import delete
from tests.service.test_uploads import ready
from tests.virtual_time import VirtualClock, run


def slow(owner: Any, name: str, *, before_s: float = 0.0, after_s: float = 0.0) -> None:
    """This method takes so long, before and after it does its part."""
    call: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def slowly(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(before_s)
        done = await call(*given, **named)
        await asyncio.sleep(after_s)
        return done

    setattr(owner, name, slowly)


async def gone(task: asyncio.Task[Any]) -> None:
    """Its caller goes away."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def pins(r: Rig) -> set[int]:
    return {live.pins for live in r.fences.gates}


# --- gates


def test_a_token_is_sealed_although_who_has_it_sealed_goes_away() -> None:
    """R3: the seal is on its way to disk when its caller goes; no write of the token passes after it."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        slow(r.store, "seal", after_s=2)
        sealing = asyncio.create_task(r.fences.seal(J, Token(33), Event(J, EventKind.SEALED, 33, 33)))
        await asyncio.sleep(1)
        await gone(sealing)
        await asyncio.sleep(2)
        assert (await refusal(r.put(33, b"late"))).reason is Reason.SEALED

    run(main())


def test_who_asks_for_a_gate_first_and_goes_away_takes_nobody_along() -> None:
    """All who come to an unknown key wait for one look into the store."""

    async def main() -> None:
        r = await rig()
        slow(r.store, "fence", after_s=2)
        first, second = (asyncio.create_task(r.put(33, b"A")) for _ in range(2))
        await asyncio.sleep(1)
        await gone(first)
        assert (await second).status == 200

    run(main())


def test_who_waits_for_a_hand_over_and_goes_away_is_not_counted_any_more() -> None:
    """R3: neither among those who wait, nor among those who keep the gate from being forgotten."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        waiting = asyncio.create_task(r.fences.admit(J, Token(34), cause="check"))
        await asyncio.sleep(1)
        (pending,) = r.fences.pending()
        assert pending.requests == 1
        await gone(waiting)
        (pending,) = r.fences.pending()
        assert pending.requests == 0
        assert pins(r) == {0}

    run(main())


@pytest.mark.parametrize("broken", [False, True], ids=["sound", "broken"])
def test_no_call_keeps_a_gate_pinned(broken: bool) -> None:
    """Whether the store does what it is asked or fails, the gate can be forgotten afterwards."""

    async def main() -> None:
        r = await rig(store=BreakableStore(clock=VirtualClock().wall))
        assert isinstance(r.store, BreakableStore)
        await r.put(33, b"A")
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A2"))
        r.store.broken = broken
        calls: list[Awaitable[object]] = [
            r.fences.settle(J, None, "its host is gone"),
            r.fences.found(J, Token(34), "on an object"),
            r.put(35, b"B"),
            r.fences.grant(J, lambda: r.store.grant(J, GrantWanted("A", 30, "grant"))),
            r.fences.seal(J, Token(33 if broken else 36), Event(J, EventKind.SEALED, 36, 36)),
        ]
        for call in calls:
            if broken:
                with pytest.raises((TryAgain, StoreUnavailable)):
                    await call
            else:
                await call
            assert pins(r) == {0}

    run(main())


def test_batches_and_repeated_completes_keep_nothing_pinned() -> None:
    """Neither the gate nor the object."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        for _ in range(2):
            assert (await r.complete(upload_id, etag=etag)).status == 200
        await delete(r, (JOB, 33))
        assert pins(r) == {0}
        assert {entry.pins for entry in r.writes.objects._entries.values()} == {0}

    run(main())


def test_calls_for_leases_and_completions_keep_no_gate_pinned() -> None:
    """Nor does a send that is over keep its way through it."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        lease = await d.leases.acquire(J, "A", 30)
        await d.rig.put(lease.token, b"A")
        await d.leases.release(J, lease.token)
        await completions.complete(FencingKey("elsewhere"), Token(5))
        assert pins(d.rig) == {0}
        assert [live.passages for live in d.fences.gates] == [{}, {}]

    run(main())


# --- records


@pytest.mark.parametrize("who", ["first", "second"])
def test_who_waits_for_a_look_at_a_record_and_goes_away_takes_nobody_along(who: str) -> None:
    """All writes that come to a bucket wait for one look at its record."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        slow(upstream, "read", before_s=2)
        first = asyncio.create_task(one.put(34, b"a"))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(one.put(34, b"b"))
        await asyncio.sleep(0.5)
        leaver, stayer = (first, second) if who == "first" else (second, first)
        await gone(leaver)
        assert (await stayer).status == 200
        await one.writes.close()

    run(main())


async def _refused(one: Rig, upstream: Counting) -> None:
    upstream.unreadable = 500
    await refusal(one.put(34, b"b"))
    upstream.unreadable = None


async def _left(one: Rig, upstream: Counting) -> None:
    slow(upstream, "read", before_s=2)
    writing = asyncio.create_task(one.put(34, b"b"))
    await asyncio.sleep(1)
    await gone(writing)


async def _stale_in_a_batch(one: Rig, _: Counting) -> None:
    await one.put(34, b"a")
    _, (error,) = await delete(one, (JOB, 33))
    assert error.reason is Reason.STALE_TOKEN


async def _left_in_a_batch(one: Rig, _: Counting) -> None:
    await one.put(34, b"a")
    slow(one.store, "raise_floor", after_s=2)
    deleting = asyncio.create_task(delete(one, (JOB, 35)))
    await asyncio.sleep(1)
    await gone(deleting)


async def _deleted_in_a_batch(one: Rig, _: Counting) -> None:
    await one.put(34, b"a")
    await delete(one, (JOB, 34))


async def _looked_at(one: Rig, _: Counting) -> None:
    assert await one.writes.records.look_at(BUCKET) == ""


@pytest.mark.parametrize("use", [_refused, _left, _stale_in_a_batch, _left_in_a_batch, _deleted_in_a_batch, _looked_at])
def test_no_use_keeps_a_bucket_looked_at(use: Callable[[Rig, Counting], Awaitable[None]]) -> None:
    """However a write ended, its bucket's record is looked at no more soon after it."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await use(one, upstream)
        await asyncio.sleep(2 * LAPSE_S)
        await one.put(35, b"c")
        await asyncio.sleep(2 * LAPSE_S)
        reads = upstream.reads
        await asyncio.sleep(10 * LAPSE_S)
        assert upstream.reads == reads
        await one.writes.close()

    run(main())


def test_a_record_that_is_not_to_be_seen_for_a_moment_is_looked_at_again() -> None:
    """One look of those made beside a slow upload fails: the upload goes through, also where nobody has written to the
    bucket for long before."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        await asyncio.sleep(3 * LAPSE_S)
        body = Payload(length=100)
        upload = asyncio.create_task(one.put(34, body))
        await body.wanted.wait()
        reads = upstream.reads
        upstream.lost_reads = True
        async with asyncio.timeout(LAPSE_S):
            while upstream.reads == reads:
                await asyncio.sleep(1)
        upstream.lost_reads = False
        await asyncio.sleep(2 * LAPSE_S)
        body.give(b"a" * 100)
        body.end()
        assert (await upload).status == 200
        await one.writes.close()

    run(main())


def test_a_store_that_fails_at_a_record_says_try_again() -> None:
    """Who sends a fenced write, or has deleted a bucket, is told that nothing is wrong with his request."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        store = BreakableStore(clock=VirtualClock().wall)
        one = await gateway(upstream, store=store, timing=Timing())
        store.broken = True
        assert (await refusal(one.writes.records.enter(BUCKET, token=True))).reason is Reason.STORE_UNAVAILABLE
        assert (await refusal(one.writes.records.bucket_is_gone(BUCKET))).reason is Reason.STORE_UNAVAILABLE
        await one.writes.close()

    run(main())
