"""Who waits for a lease, and in which order (gateway/service/lines.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.service.lease_errors import Held, Lost
from gateway.service.leases import Lease, LeaseTerms
from gateway.service.waits import Timing
from gateway.stores.values import Fence
from tests.service.lease_desk import J, desk, later, play, refused
from tests.service.rig import Fault, refusal


def test_those_who_wait_are_served_in_their_order() -> None:
    """64 at once on one key: each is granted when the one before gives it up, first come, first served."""

    async def main() -> None:
        d, order = await desk(), []

        async def worker(number: int) -> None:
            lease = await d.acquire(f"w{number}", wait_s=600)
            order.append((number, lease.token))
            await later(1)
            await d.leases.release(J, lease.token)

        await asyncio.gather(*(worker(number) for number in range(64)))
        assert order == [(number, number + 1) for number in range(64)]
        assert d.leases.waiting == d.leases.held == 0

    play(main())


def test_who_waits_is_granted_the_key_when_the_lease_runs_out() -> None:
    """At that moment, not at a look now and then; renewals put it off."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        waiting = asyncio.create_task(d.acquire("B", wait_s=100))
        await later(20)
        await d.leases.renew(J, first.token)
        before = asyncio.get_running_loop().time()
        second = await waiting
        assert asyncio.get_running_loop().time() - before == pytest.approx(30)
        assert second.token == first.token + 1
        lost = await refused(d.leases.renew(J, first.token))
        assert isinstance(lost, Lost)
        assert (lost.floor, lost.sealed) == (second.token, False)

    play(main())


def test_who_waits_while_a_grant_is_pending_is_served_when_its_lease_runs_out() -> None:
    """He came when nobody could tell until when it lasts."""

    async def main() -> None:
        d = await desk(timing=Timing(settle_timeout_s=30, handover_wait_s=60))
        d.rig.upstream.faults = [Fault.LOST_LATE]
        await refusal(d.rig.put(1, b"lost"))
        pending = asyncio.create_task(d.acquire("A", 10))
        await later(1)
        waiting = asyncio.create_task(d.acquire("B", wait_s=500))
        first = await pending
        before = asyncio.get_running_loop().time()
        assert (await waiting).token == first.token + 1
        assert asyncio.get_running_loop().time() - before == pytest.approx(10)

    play(main())


def test_who_has_waited_long_enough_is_told_who_holds_it() -> None:
    """And he stands in nobody's way after that."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        impatient = asyncio.create_task(refused(d.acquire("B", wait_s=5)))
        patient = asyncio.create_task(d.acquire("C", wait_s=25))
        held = await impatient
        assert isinstance(held, Held)
        assert (held.holder, held.expires_in_s) == ("A", pytest.approx(25))
        await d.leases.release(J, first.token)
        assert (await patient).holder == "C"

    play(main())


def test_who_goes_away_leaves_his_place() -> None:
    """A caller that is cancelled, first in line or not, holds nobody up, and is granted nothing."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        tasks = [asyncio.create_task(d.acquire(f"w{number}", wait_s=100)) for number in range(4)]
        await later(1)
        tasks[0].cancel()
        tasks[2].cancel()
        await later(1)
        await d.leases.release(J, first.token)
        second = await tasks[1]
        await d.leases.release(J, second.token)
        assert ((await tasks[3]).holder, second.holder) == ("w3", "w1")
        assert await d.rig.floor() == 3

    play(main())


def test_nobody_passes_those_who_wait() -> None:
    """Who does not want to wait is refused while others do, even in the moment in which the key is free."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        waiting = asyncio.create_task(d.acquire("B", wait_s=100))
        await later(1)
        seal, passing = d.store.seal, []

        async def seal_then(*given: Any) -> Fence:
            fence = await seal(*given)
            passing.append(asyncio.create_task(refused(d.acquire("C"))))  # its turn comes before that of B
            return fence

        d.leases.seal = seal_then
        await d.leases.release(J, first.token)
        assert (await waiting).holder == "B"
        held = await passing[0]
        assert isinstance(held, Held)
        assert held.holder == "B"

    play(main())


def test_of_two_at_once_the_second_is_told_of_the_first() -> None:
    """Not of a lease that was not yet there when he came."""

    async def main() -> None:
        d = await desk()
        lease, held = await asyncio.gather(d.acquire("A"), refused(d.acquire("B")))
        assert lease.holder == "A"
        assert isinstance(held, Held)
        assert held.holder == "A"

    play(main())


def test_a_bounded_number_waits() -> None:
    """One more is told to come again."""

    async def main() -> None:
        d = await desk(LeaseTerms(max_waiting=2))
        await d.acquire("A")
        tasks = [asyncio.create_task(d.acquire("B", wait_s=5)) for _ in range(2)]
        await later(1)
        with pytest.raises(TryAgain) as caught:
            await d.acquire("C", wait_s=5)
        assert caught.value.reason is Reason.OVERLOADED
        for task in tasks:
            assert isinstance(await refused(_of(task)), Held)

    play(main())


async def _of(task: asyncio.Task[Lease]) -> Lease:
    return await task


def test_a_stop_ends_the_waiting() -> None:
    """Who waits in line is told to come again, at once."""

    async def main() -> None:
        d = await desk()
        first = await d.acquire("A")
        task = asyncio.create_task(d.acquire("B", wait_s=500))
        await later(1)
        d.leases.drain()
        with pytest.raises(TryAgain) as caught:
            await task
        assert caught.value.reason is Reason.DRAINING
        await d.leases.renew(J, first.token)
        await d.leases.stop()

    play(main())
