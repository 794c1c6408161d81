"""Leases that are granted: to whom, with which token, and what a slow or failing store makes of it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.core.keys import FencingKey, Token
from gateway.service.lease_errors import Completed, Exhausted, Held, Lost
from gateway.service.lines import Waiter
from gateway.stores.rules import completed
from gateway.stores.values import Event, EventKind
from tests.service.between import answers_late, held
from tests.service.lease_desk import J, desk, later, play, refused
from tests.service.rig import Fault, refusal


@pytest.mark.parametrize("told", [True, False], ids=["told", "gone"])
def test_a_grant_that_is_overtaken_before_it_is_known_here_stands_in_nobodys_way(told: bool) -> None:
    """Found by simulation: an operator's raise is durable after the grant, and known to the gate before it. Its holder
    is told that it is lost, or has gone, and the next one is granted the key."""

    async def main() -> None:
        d = await desk()
        grant = held(d.store, "grant", done=True)
        asked = asyncio.create_task(d.acquire())
        await grant.reached.wait()
        live = await d.rig.fences.admit(J, Token(500), cause="raise", issued=True)
        d.rig.fences.unpin(live)
        if not told:
            asked.cancel()
            await asyncio.sleep(1)
        grant.go_on.set()
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
        refusal_there = held(d.store, "grant", done=True)
        asked = asyncio.create_task(d.acquire("B", wait_s=60))
        await refusal_there.reached.wait()
        await d.rig.fences.seal(J, Token(1), Event("j", EventKind.SEALED, 1, 1))
        refusal_there.go_on.set()
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
        answers_late(d.store, "grant", denied=True)
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
        grant = held(d.store, "grant")
        first = asyncio.create_task(d.acquire())
        await asyncio.sleep(0)
        others = [asyncio.create_task(d.leases.renew(J, Token(1))) for _ in range(2)]
        impatient = asyncio.create_task(d.acquire("B", wait_s=60))
        await asyncio.sleep(1)
        impatient.cancel()
        await asyncio.sleep(1)
        grant.go_on.set()
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
