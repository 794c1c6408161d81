"""Leases in time: renewed, run out, given up, found again after a restart (gateway/service/leases.py)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import FencingKey, Token
from gateway.core.lease import Caps
from gateway.service.lease_errors import Capped, Held, Lost
from gateway.service.leases import Lease, Leases, LeaseTerms
from gateway.stores.values import Event, EventKind
from tests.service.lease_desk import J, desk, later, play, refused
from tests.service.rig import JOB, refusal, rig
from tests.virtual_time import VirtualClock

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


def test_a_lease_that_ran_out_and_is_renewed_for_less_ends_in_time() -> None:
    """Its end was found when the whole of its first time had passed once more: so long its job came back to nobody."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire(ttl_s=3600)
        await later(3601)
        await d.leases.renew(J, lease.token, ttl_s=5)
        await later(4.9)
        assert len(d.ends) == 1
        await later(0.2)
        assert d.ends == [("j", 1, EventKind.EXPIRED)] * 2

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


def test_a_lease_at_its_cap_is_not_renewed_by_being_asked_for_again() -> None:
    """As long as it lasts a repeated call is answered the same, then told so; and a new one is granted the key."""

    async def main() -> None:
        d = await desk(LeaseTerms(Caps(max_renewals=0)))
        assert (await d.acquire(idempotency_key="once")).expires_in_s == 30
        await later(20)
        again = await d.acquire(idempotency_key="once")
        assert (again.token, again.expires_in_s) == (1, 10)
        await later(15)
        assert isinstance(await refused(d.acquire(idempotency_key="once")), Capped)
        assert (await d.acquire(idempotency_key="another")).token == 2

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
        assert "the lease of 'A' has run out, and the key is free in 14.0 s" in held.message
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
