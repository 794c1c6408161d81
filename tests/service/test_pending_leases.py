"""Repeated calls for a lease, and grants that are pending meanwhile (gateway/service/leases.py, holdings.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.core.keys import Token
from gateway.service.lease_errors import Held, Lost, Repeated
from gateway.service.leases import Lease
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Fence
from tests.service.between import Call, fails, held, next_call
from tests.service.lease_desk import Desk, J, desk, later, play, refused
from tests.service.rig import Fault, refusal


def test_a_repeated_call_is_answered_the_same_grant() -> None:
    """At once, later, beside itself and after a restart; the same holder without the key is held off like anyone."""

    async def main() -> None:
        d = await desk()
        beside = await asyncio.gather(*(d.acquire(idempotency_key="once") for _ in range(3)))
        assert {lease.token for lease in beside} == {1}
        await later(10)
        again = await d.acquire(idempotency_key="once")
        assert (again.token, again.expires_in_s) == (1, 20)
        assert isinstance(await refused(d.acquire(idempotency_key="another")), Held)
        assert isinstance(await refused(d.acquire()), Held)
        d = await desk(store=d.store)
        assert (await d.acquire(idempotency_key="once")).token == 1
        await later(60)
        late = await d.acquire(idempotency_key="once")
        assert (late.token, late.expires_in_s) == (1, 30)

    play(main())


def test_a_repeated_call_whose_lease_is_lost_is_told_so() -> None:
    """It gets no second lease: its worker may have worked with the first."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire(idempotency_key="once")
        await later(31)
        second = await d.acquire("B")
        lost = await refused(d.acquire(idempotency_key="once"))
        assert isinstance(lost, Lost)
        assert (lost.token, lost.floor) == (first.token, second.token)
        await d.leases.release(J, second.token)
        for _ in range(2):
            assert isinstance(await refused(d.acquire(idempotency_key="once")), Lost)
            d = await desk(store=d.store)

    play(main())


def test_an_idempotency_key_is_for_one_request() -> None:
    """Another holder or time under it is an error, while it is being answered and after."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        task = asyncio.create_task(d.acquire("B", idempotency_key="once", wait_s=9))
        await later(1)
        assert isinstance(await refused(d.acquire("C", idempotency_key="once")), Repeated)
        await d.leases.release(J, first.token)
        await task
        for holder, ttl_s in (("C", 30), ("B", 31)):
            assert isinstance(await refused(d.acquire(holder, ttl_s, idempotency_key="once")), Repeated)

    play(main())


def test_a_pending_grant_lapses_unless_it_is_asked_for_again() -> None:
    """After its own time; then it is sealed, and the next is higher."""

    async def main() -> None:
        d = await desk(timing=Timing(settle_timeout_s=300))
        d.rig.upstream.faults = [Fault.LOST_LATE]
        await refusal(d.rig.put(1, b"lost"))
        for _ in range(2):
            with pytest.raises(TryAgain):
                await d.acquire(idempotency_key="once")
            await later(25)
        lease = await d.leases.lease_of(J)
        assert lease is not None
        assert (lease.token, lease.pending) == (2, True)
        other = await refused(d.acquire("B"))
        assert isinstance(other, Held)
        assert "'A' has been granted it, for 30.0 s from the end of its pending hand-over" in other.message
        await later(10)
        assert d.ends == [("j", 2, EventKind.LAPSED)]
        assert isinstance(await refused(d.acquire(idempotency_key="once")), Lost)
        assert (await d.history())[-1] is EventKind.LAPSED
        await later(300)
        assert (await d.acquire("B")).token == 3

    play(main())


def test_a_grant_that_was_pending_when_the_gateway_was_killed_is_pending_for_who_asks_again() -> None:
    """Nobody is granted the key before him, however short his lease; and its time begins with the hand-over, which a
    new run awaits once more."""

    async def main() -> None:
        timing = Timing(settle_timeout_s=30, handover_wait_s=12)
        d = await desk(timing=timing)
        d.rig.upstream.faults = [Fault.LOST_LATE]
        await refusal(d.rig.put(1, b"lost"))
        with pytest.raises(TryAgain):
            await d.acquire("A", 15, idempotency_key="once")
        await d.leases.stop()
        d = await desk(store=d.store, timing=timing, clean=False)
        waiting = asyncio.create_task(d.acquire("B", wait_s=100))
        for _ in range(2):
            with pytest.raises(TryAgain):
                await d.acquire("A", 15, idempotency_key="once")
        lease = await d.acquire("A", 15, idempotency_key="once")
        assert (lease.token, lease.expires_in_s) == (2, 15)
        assert (await waiting).token == 3

    play(main())


def test_a_grant_that_is_told_at_last_lasts_for_who_was_told_before() -> None:
    """That its hand-over is complete is written lazily: a killed gateway may not know. Who was told of his lease renews
    it in the next run at once, and without being asked for again it runs out like any other."""

    async def main() -> None:
        d = await desk()
        d.store.complete_handover = lambda *_: None
        lease = await d.acquire("A", 15, idempotency_key="once")
        await d.leases.stop()
        d = await desk(store=d.store, clean=False)
        before = asyncio.get_running_loop().time()
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 15
        assert asyncio.get_running_loop().time() == before
        again = asyncio.create_task(d.acquire("A", 15, idempotency_key="once"))
        await later(1)
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 15
        assert asyncio.get_running_loop().time() == before + 1
        again.cancel()
        await later(16)
        assert d.ends == [("j", 1, EventKind.EXPIRED)]
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 15

    play(main())


def test_a_pending_grant_that_nobody_can_ask_for_again_lapses_at_once() -> None:
    """Without an idempotency key there is no way back to it: the key must not be held for nobody."""

    async def main() -> None:
        d = await desk()
        d.rig.upstream.faults = [Fault.LOST_LATE]
        await refusal(d.rig.put(1, b"lost"))
        with pytest.raises(TryAgain):
            await d.acquire("A")
        await later(1)
        assert d.ends == [("j", 2, EventKind.LAPSED)]
        assert (await d.acquire("B")).token == 3

    play(main())


def test_a_grant_that_is_lapsing_is_not_told_to_who_asks_again() -> None:
    """He would hold it for as long as the store takes to take it back."""

    async def main() -> None:
        d, free = await _lapsing()
        again = asyncio.create_task(d.acquire(idempotency_key="once"))
        renewed = asyncio.create_task(d.leases.renew(J, Token(2)))
        await later(15)  # by now its hand-over could be complete
        assert not again.done()
        assert not renewed.done()
        free.set_result(None)
        assert isinstance(await refused(again), Lost)
        assert isinstance(await refused(renewed), Lost)
        assert d.ends == [("j", 2, EventKind.LAPSED)]

    play(main())


def test_a_grant_that_could_not_be_taken_back_goes_on() -> None:
    """The store fails, and it is asked for meanwhile."""

    async def main() -> None:
        d, free = await _lapsing()
        again = asyncio.create_task(d.acquire(idempotency_key="once"))
        await later(5)
        free.set_exception(StoreUnavailable("disk I/O error"))
        assert (await again).token == 2
        await later(5)
        assert d.ends == []

    play(main())


def test_a_grant_that_could_not_be_taken_back_is_taken_back_later() -> None:
    """The store fails, and nobody asks for it: the key is not held for ever."""

    async def main() -> None:
        d, free = await _lapsing()
        free.set_exception(StoreUnavailable("disk I/O error"))
        await later(5)
        assert d.ends == [("j", 2, EventKind.LAPSED)]

    play(main())


def test_a_lease_that_could_not_be_given_up_ends_like_any() -> None:
    """The store fails at its release: when an operator takes the key, that is told."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()

        async def failing(*_: Any) -> Fence:
            raise StoreUnavailable("disk I/O error")

        d.leases.seal = failing
        with pytest.raises(TryAgain):
            await d.leases.release(J, lease.token)
        d.rig.fences.unpin(await d.rig.fences.admit(J, Token(9), cause="raise", issued=True))
        assert d.ends == [("j", 1, EventKind.RAISED)]

    play(main())


def test_an_end_that_fails_hides_no_other() -> None:
    """Found by simulation (seed 8034037): a grant was to lapse, and the store failed; an operator had sealed its token
    meanwhile, and since its end was coming, nobody was told of that one. A job that ran under it stayed with nobody."""

    async def main() -> None:
        d, free = await _lapsing()
        await d.rig.fences.seal(J, Token(2), Event("j", EventKind.SEALED, 2, 2))
        assert d.ends == []
        free.set_exception(StoreUnavailable("disk I/O error"))
        await later(5)
        assert d.ends == [("j", 2, EventKind.SEALED)]
        assert (await d.acquire("B")).token == 3

    play(main())


async def _lapsing() -> tuple[Desk, asyncio.Future[None]]:
    """A grant that is pending, behind a write of token 1 whose answer is lost, and that nobody has asked for again: the
    store is about to take it back, and waits for that future."""
    d = await desk(timing=Timing(settle_timeout_s=60))
    d.rig.upstream.faults = [Fault.LOST_DROPPED]
    await refusal(d.rig.put(1, b"x"))
    assert (await refusal(d.acquire(idempotency_key="once"))).reason is Reason.HANDOVER_PENDING
    lapsing, free = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def slow(seal: Call, *given: Any) -> Any:
        lapsing.set()
        await free
        return await seal(*given)

    next_call(d.store, "seal", slow)
    await lapsing.wait()
    return d, free


def test_a_caller_that_goes_away_while_he_is_granted_the_key_holds_it_for_nobody() -> None:
    """The grant lapses at once, or can be asked for again where it bears an idempotency key."""

    async def main() -> None:
        d = await desk()
        grant = held(d.store, "grant")
        gone = asyncio.create_task(d.acquire("A"))
        await later(1)
        gone.cancel()
        await later(1)
        grant.go_on.set()
        second = await d.acquire("B", wait_s=5)
        assert second.token == 2
        await d.leases.release(J, second.token)
        grant = held(d.store, "grant")
        gone = asyncio.create_task(d.acquire("C", idempotency_key="once"))
        await later(1)
        gone.cancel()
        await later(1)
        grant.go_on.set()
        await later(1)
        assert (await d.acquire("C", idempotency_key="once")).token == 3

    play(main())


def test_a_caller_that_goes_away_while_the_hand_over_is_awaited_holds_the_key_for_nobody() -> None:
    """The next in line is granted it as soon as lower sends have settled."""

    async def main() -> None:
        d = await desk(timing=Timing(settle_timeout_s=60, handover_wait_s=100))
        d.rig.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(d.rig.put(1, b"x"))
        gone = asyncio.create_task(d.acquire("A", ttl_s=1000))
        await later(1)
        gone.cancel()
        assert (await d.acquire("B", wait_s=70)).token == 3

    play(main())


def test_a_renewal_does_not_come_in_between_a_take_over() -> None:
    """Who renews while another is just being granted the key is told what came of it, not what was."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        await later(31)
        grant = held(d.store, "grant")
        taking = asyncio.create_task(d.acquire("B"))
        await later(1)
        renewing = asyncio.create_task(refused(d.leases.renew(J, first.token)))
        await later(1)
        assert not renewing.done()
        grant.go_on.set()
        assert (await taking).token == 2
        assert isinstance(await renewing, Lost)

    play(main())


def test_a_store_that_fails_grants_nothing_and_loses_nothing() -> None:
    """The caller is told to come again, and the line goes on; a grant that cannot be sealed is tried anew."""

    async def main() -> None:
        d = await desk()
        fails(d.store, "grant", StoreUnavailable("the disk is full"))
        outcomes = await asyncio.gather(d.acquire("A"), d.acquire("B", wait_s=5), return_exceptions=True)
        assert isinstance(outcomes[0], TryAgain)
        assert outcomes[0].reason is Reason.STORE_UNAVAILABLE
        assert isinstance(outcomes[1], Lease)

    play(main())


def test_a_call_that_is_repeated_while_the_first_goes_away_is_answered() -> None:
    """The connection broke while it waited in line; the same call is there again before the end of the first."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        gone = asyncio.create_task(d.acquire("B", idempotency_key="once", wait_s=50))
        await later(1)
        gone.cancel()
        await asyncio.sleep(0)
        again = asyncio.create_task(d.acquire("B", idempotency_key="once", wait_s=50))
        await later(1)
        await d.leases.release(J, first.token)
        assert (await again).token == 2

    play(main())


def test_a_grant_that_nobody_confirms_lapses() -> None:
    """Whoever took the key with more in the same transaction, and failed before its hand-over."""

    async def main() -> None:
        d = await desk()
        token = await d.leases.take(J, "A", 30, grant_id="x", call=d.store.grant)
        await later(29)
        assert isinstance(await refused(d.acquire("B")), Held)
        await later(2)
        assert d.ends == [("j", token, EventKind.LAPSED)]
        assert (await d.acquire("B")).token == token + 1

    play(main())


def test_what_calls_were_answered_is_kept_for_a_day() -> None:
    """After that the same idempotency key names another call."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire(idempotency_key="once")
        await d.leases.release(J, lease.token)
        await later(86400)
        assert isinstance(await refused(d.acquire(idempotency_key="once")), Lost)
        await later(3700)
        assert (await d.acquire(idempotency_key="once")).token == lease.token + 1
        await d.leases.stop()

    play(main())
