"""Leases: who is granted a key, and until when (gateway/service/leases.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Malformed, Reason, TryAgain
from gateway.core.keys import FencingKey, Token
from gateway.core.lease import Caps
from gateway.service.lease_errors import Capped, Completed, Exhausted, Held, Lost
from gateway.service.leases import Lease, Leases, LeaseTerms
from gateway.service.lines import Waiter
from gateway.stores.base import StoreUnavailable
from gateway.stores.rules import completed
from gateway.stores.values import Event, EventKind, Granted
from tests.service.lease_desk import J, desk, later, play, refused
from tests.service.rig import JOB, Fault, refusal, rig
from tests.virtual_time import VirtualClock

# --- grants


@pytest.mark.parametrize("told", [True, False], ids=["told", "gone"])
def test_a_grant_that_is_overtaken_before_it_is_known_here_stands_in_nobodys_way(told: bool) -> None:
    """Found by simulation: an operator's raise is durable after the grant, and known to the gate before it. Its holder
    is told that it is lost, or has gone, and the next one is granted the key."""

    async def main() -> None:
        d = await desk()
        granted, free = asyncio.Event(), asyncio.Event()
        grant = d.store.grant

        async def slow(*wanted: Any) -> Granted:
            d.store.grant = grant
            answer = await grant(*wanted)
            granted.set()
            await free.wait()
            return answer

        d.store.grant = slow
        asked = asyncio.create_task(d.acquire())
        await granted.wait()
        live = await d.rig.fences.admit(J, Token(500), cause="raise", issued=True)
        d.rig.fences.unpin(live)
        if not told:
            asked.cancel()
            await asyncio.sleep(1)
        free.set()
        if told:
            assert isinstance(await refused(asked), Lost)
        await asyncio.sleep(1)
        assert (await d.acquire("B")).token == 501
        assert d.ends == [("j", 1, EventKind.RAISED)]

    play(main())


def test_a_refused_grant_that_is_told_late_brings_no_sealed_lease_back() -> None:
    """Found by simulation (seed 4002682): the store refuses a grant, because the key is held; before its answer comes,
    an operator seals the token. The state of before must not be taken for that of now: its holder has lost it, and the
    next one is granted the key."""

    async def main() -> None:
        earlier = await desk()
        assert (await earlier.acquire()).token == 1
        d = await desk(store=earlier.store)
        refused_there, free = asyncio.Event(), asyncio.Event()
        grant = d.store.grant

        async def slow(*wanted: Any) -> Granted:
            d.store.grant = grant
            answer = await grant(*wanted)
            refused_there.set()
            await free.wait()
            return answer

        d.store.grant = slow
        asked = asyncio.create_task(d.acquire("B", wait_s=60))
        await refused_there.wait()
        await d.rig.fences.seal(J, Token(1), Event("j", EventKind.SEALED, 1, 1))
        free.set()
        await asyncio.sleep(1)
        assert isinstance(await refused(d.leases.renew(J, Token(1))), Lost)
        assert asked.done()
        assert (await asked).token == 2

    play(main())


def test_a_grant_whose_store_failed_after_it_is_found_when_it_is_asked_for_again() -> None:
    """Found by simulation: the gate did not know the token, and held it for one that no lease has issued."""

    async def main() -> None:
        d = await desk()
        await d.leases.release(J, (await d.acquire()).token)
        grant = d.store.grant

        async def failing(*wanted: Any) -> Granted:
            d.store.grant = grant
            await grant(*wanted)
            raise StoreUnavailable("disk I/O error")

        d.store.grant = failing
        error = await refusal(d.acquire("B", idempotency_key="once"))
        assert error.reason is Reason.STORE_UNAVAILABLE
        assert (await d.acquire("B", idempotency_key="once")).token == 2
        assert (await d.rig.put(2, b"B")).status == 200

    play(main())


def test_those_who_wait_for_a_decision_do_not_wake_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by simulation: while the store takes its time, two that wait for it and one who gives up would have gone
    round in circles."""
    waits = 0
    wait = Waiter.wait

    async def counted(self: Waiter, timeout_s: float) -> None:
        nonlocal waits
        waits += 1
        assert waits < 50
        await wait(self, timeout_s)

    monkeypatch.setattr(Waiter, "wait", counted)

    async def main() -> None:
        d = await desk()
        free = asyncio.Event()
        grant = d.store.grant

        async def slow(*wanted: Any) -> Granted:
            await free.wait()
            return await grant(*wanted)

        d.store.grant = slow
        first = asyncio.create_task(d.acquire())
        await asyncio.sleep(0)
        others = [asyncio.create_task(d.leases.renew(J, Token(1))) for _ in range(2)]
        impatient = asyncio.create_task(d.acquire("B", wait_s=60))
        await asyncio.sleep(1)
        impatient.cancel()
        await asyncio.sleep(1)
        free.set()
        assert (await first).token == 1
        await asyncio.gather(*others)

    play(main())


def test_a_grant_raises_the_floor_before_it_is_answered() -> None:
    """Whoever held the key is harmless once another is told that he holds it."""

    async def main() -> None:
        d = await desk()
        await d.rig.put(33, b"old")
        lease = await d.acquire()
        assert (lease.token, lease.holder, lease.ttl_s, lease.expires_in_s) == (34, "A", 30, 30)
        fence = await d.store.fence("j")
        assert (fence.floor, fence.completed_floor) == (34, 34)
        assert (await refusal(d.rig.put(33, b"late"))).reason is Reason.STALE_TOKEN
        await d.rig.put(34, b"new")
        assert d.rig.data() == b"new"

    play(main())


def test_a_grant_waits_for_lower_sends_to_settle() -> None:
    """R3: nothing lower can land any more when it is answered, and its time begins then."""

    async def main() -> None:
        d = await desk()
        d.rig.upstream.faults = [Fault.LOST_LATE]
        assert (await refusal(d.rig.put(1, b"lost"))).reason is Reason.IN_DOUBT
        before = asyncio.get_running_loop().time()
        with pytest.raises(TryAgain) as caught:
            await d.acquire(idempotency_key="once")
        assert caught.value.reason is Reason.HANDOVER_PENDING
        assert asyncio.get_running_loop().time() - before == pytest.approx(20)
        again = await d.acquire(idempotency_key="once")
        assert (again.token, again.expires_in_s) == (2, 30)
        assert asyncio.get_running_loop().time() - before == pytest.approx(30)
        d.rig.upstream.land()

    play(main())


def test_a_held_key_is_refused_with_holder_and_remaining_time() -> None:
    """To everybody, the holder himself included."""

    async def main() -> None:
        d = await desk()
        await d.acquire("A")
        await later(12)
        for holder in "BA":
            held = await refused(d.acquire(holder))
            assert isinstance(held, Held)
            assert (held.holder, held.expires_in_s, held.free_in_s) == ("A", 18, 18)

    play(main())


def test_tokens_rise_through_releases_expiries_and_restarts() -> None:
    """None comes twice, and the order of grants is the order of tokens."""

    async def main() -> None:
        d, tokens = await desk(), []
        for _ in range(3):
            lease = await d.acquire()
            tokens.append(lease.token)
            await d.leases.release(J, lease.token)
            tokens.append((await d.acquire("B")).token)
            d = await desk(store=d.store)
            await later(31)
            tokens.append((await d.acquire("C")).token)
            await later(31)
        assert tokens == sorted(set(tokens))

    play(main())


def test_a_completed_key_and_one_without_tokens_left_are_refused() -> None:
    """Each says why: reopen the job; take another key."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        d.store._decide("j", 0, lambda fence: completed(fence, lease.token))
        assert isinstance(await refused(d.acquire("B")), Completed | Held)
        d = await desk(store=d.store)
        done = await refused(d.acquire("B"))
        assert isinstance(done, Completed)
        assert done.token == lease.token
        await d.store.raise_floor("last", 2**63 - 1)
        assert isinstance(await refused(d.leases.acquire(FencingKey("last"), "A", 30)), Exhausted)

    play(main())


def test_a_token_that_no_lease_has_issued_is_refused() -> None:
    """R10, through the whole service: the key's tokens are the leases' from the first grant on."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        error = await refusal(d.rig.put(lease.token + 1, b"x"))
        assert error.reason is Reason.TOKEN_NOT_ISSUED
        assert await d.rig.floor() == lease.token
        d = await desk(store=d.store)
        assert (await refusal(d.rig.put(2**62, b"x"))).reason is Reason.TOKEN_NOT_ISSUED

    play(main())


# --- renewals and ends


def test_a_lease_that_ran_out_and_was_not_taken_is_renewed_with_its_token() -> None:
    """However long ago: nobody else has been told that he holds the key."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        for pause_s in (29, 31, 5000):
            await later(pause_s)
            renewed = await d.leases.renew(J, lease.token)
            assert (renewed.token, renewed.holder, renewed.expires_in_s) == (lease.token, "A", 30)
        assert isinstance(await refused(d.acquire("B")), Held)
        assert await d.history() == [EventKind.GRANTED, EventKind.EXPIRED, EventKind.EXPIRED]

    play(main())


def test_what_was_never_granted_is_not_lost() -> None:
    """400 and not 409: a number out of thin air, and one of another source."""

    async def main() -> None:
        d = await desk()
        for floor in (0, 5):
            await d.store.raise_floor("j", floor)
            with pytest.raises(Malformed) as caught:
                await d.leases.renew(J, Token(5))
            assert caught.value.reason is Reason.TOKEN_NOT_ISSUED
        lease = await d.acquire()
        for call in (d.leases.renew, d.leases.release):
            with pytest.raises(Malformed):
                await call(J, Token(lease.token + 1))
        assert isinstance(await refused(d.leases.renew(J, Token(3))), Lost)

    play(main())


def test_a_released_lease_is_sealed_and_its_floor_stays() -> None:
    """Twice is as good as once; the token writes no more."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        for _ in range(2):
            await d.leases.release(J, lease.token)
        lost = await refused(d.leases.renew(J, lease.token))
        assert isinstance(lost, Lost)
        assert (lost.floor, lost.sealed) == (lease.token, True)
        assert (await refusal(d.rig.put(lease.token, b"x"))).reason is Reason.SEALED
        assert await d.rig.floor() == lease.token
        assert d.leases.held == 0
        assert d.ends == [("j", lease.token, EventKind.RELEASED)]

    play(main())


def test_a_lease_that_has_been_lost_cannot_be_released() -> None:
    """Its holder learns that another has the key, and the other keeps it."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        await later(31)
        second = await d.acquire("B")
        assert isinstance(await refused(d.leases.release(J, first.token)), Lost)
        assert (await d.leases.renew(J, second.token)).holder == "B"

    play(main())


def test_an_operators_raise_and_seal_end_a_lease() -> None:
    """The holder is told that it is lost, who waits is granted the key, and `on_end` tells of both."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        live = await d.rig.fences.admit(J, Token(9), cause="operator: x", issued=True)
        d.rig.fences.unpin(live)
        assert isinstance(await refused(d.leases.renew(J, first.token)), Lost)
        second = await d.acquire("B")
        assert second.token == 10
        waiting = asyncio.create_task(d.acquire("C", wait_s=1))
        await later(0.5)
        await d.rig.fences.seal(J, second.token, Event("j", EventKind.SEALED, second.token, 10, "operator: y"))
        assert (await waiting).token == 11
        assert d.ends == [("j", 1, EventKind.RAISED), ("j", 10, EventKind.SEALED)]

    play(main())


def test_expiry_is_told_once() -> None:
    """To the history and to who asked to be told; a renewal after it makes it an end that may come again."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        await later(100)
        assert d.ends == [("j", lease.token, EventKind.EXPIRED)]
        await d.leases.renew(J, lease.token)
        await later(100)
        assert len(d.ends) == 2
        assert d.leases.counts["expired"] == 2
        assert d.leases.held == 0  # in memory: the store alone knows it
        assert isinstance(await d.leases.lease_of(J), Lease)

    play(main())


def test_a_lease_lasts_while_it_is_held() -> None:
    """Not once it has run out, though it may still be renewed, and then lasts again; another's token has none; nor has
    one that is given up."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        other = Token(lease.token + 1)
        assert await d.leases.lasts(J, lease.token)
        assert not await d.leases.lasts(J, other)
        await later(100)
        assert not await d.leases.lasts(J, lease.token)
        await d.leases.renew(J, lease.token)
        assert await d.leases.lasts(J, lease.token)
        await later(100)
        await d.acquire("B")
        assert not await d.leases.lasts(J, lease.token)
        assert await d.leases.lasts(J, other)
        await d.leases.release(J, other)
        assert not await d.leases.lasts(J, other)

    play(main())


def test_renewals_are_capped() -> None:
    """In number and in total time: the lease goes on to its end, and then the key is free."""

    async def main() -> None:
        d = await desk(LeaseTerms(Caps(max_renewals=1)))
        lease = await d.acquire()
        await d.leases.renew(J, lease.token)
        await later(10)
        capped = await refused(d.leases.renew(J, lease.token))
        assert isinstance(capped, Capped)
        assert capped.expires_in_s == 20
        await later(25)
        assert isinstance(await refused(d.leases.renew(J, lease.token)), Capped)
        assert (await d.acquire("B")).token == lease.token + 1
        d = await desk(LeaseTerms(Caps(max_total_s=40)))
        lease = await d.acquire()
        await later(20)
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 20
        await later(20)
        assert isinstance(await refused(d.leases.renew(J, lease.token)), Capped)

    play(main())


def test_a_lock_delay_keeps_a_key_free_after_an_expiry_alone() -> None:
    """Its holder may still renew meanwhile; a release is followed at once."""

    async def main() -> None:
        d = await desk(LeaseTerms(lock_delay_s=15))
        first = await d.acquire("A")
        await later(31)
        held = await refused(d.acquire("B"))
        assert isinstance(held, Held)
        assert (held.expires_in_s, held.free_in_s) == (0, pytest.approx(14))
        await d.leases.renew(J, first.token)
        before = asyncio.get_running_loop().time()
        second = await d.acquire("B", wait_s=100)
        assert asyncio.get_running_loop().time() - before == pytest.approx(45)
        await d.leases.release(J, second.token)
        assert (await d.acquire("C")).token == second.token + 1

    play(main())


# --- restarts


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_restart_gives_every_holder_one_full_time(asked_first: bool) -> None:
    """However little was left, and whether somebody else asks for the key or the holder renews first."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        await later(29)
        d = await desk(store=d.store)
        await later(29)
        if asked_first:
            held = await refused(d.acquire("B"))
            assert isinstance(held, Held)
            assert (held.holder, held.expires_in_s) == ("A", 1)
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 30
        d = await desk(store=d.store)
        await later(31)
        assert (await d.acquire("B")).token == lease.token + 1

    play(main())


def test_wall_clock_steps_change_no_lease() -> None:
    """The monotonic clock alone decides, in either direction."""

    class Jumping(VirtualClock):
        step = 0.0

        def wall(self) -> float:
            return super().wall() + self.step

    async def main() -> None:
        clock = Jumping()
        table = await rig(clock=clock)
        leases = Leases(table.fences)
        await leases.start()
        lease = await leases.acquire(J, "A", 30)
        for step in (-86400.0, 86400.0 * 365):
            clock.step = step
            await later(10)
            with pytest.raises(Held) as caught:
                await leases.acquire(J, "B", 30)
            assert caught.value.expires_in_s == 20
            assert (await leases.renew(J, lease.token)).expires_in_s == 30

    play(main())


# --- lists


def test_leases_are_listed_with_what_is_left() -> None:
    """Of this run and of earlier ones; those that ran out and were not taken are among them."""

    async def main() -> None:
        d = await desk()
        for key in ("a", "b", "c"):
            await d.leases.acquire(FencingKey(key), "A", 30)
        d = await desk(store=d.store)
        await later(10)
        await d.leases.renew(FencingKey("b"), Token(1))
        await d.leases.release(FencingKey("c"), Token(1))
        await d.leases.acquire(FencingKey("d"), "B", 5)
        await later(10)
        listed = await d.leases.listed(None, 10)
        assert [(lease.key, lease.expires_in_s) for lease in listed] == [("a", 10), ("b", 20), ("d", 0)]
        assert [lease.key for lease in await d.leases.listed("a", 1)] == ["b"]

    play(main())


def test_job_names_the_object_of_the_rig() -> None:
    """The key of these tests is that of the rig's object."""
    assert JOB.split("/")[1] == J
