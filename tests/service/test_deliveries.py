"""Jobs handed to workers: what they wait for, what is in the way, and who goes away meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.core.job import Completion, JobState
from gateway.core.keys import MAX_TOKEN, Token
from gateway.core.lease import Caps
from gateway.service.lease_errors import Capped
from gateway.service.leases import LeaseTerms
from gateway.service.returns import UNDELIVERED_S
from gateway.service.waits import Timing
from tests.service.between import preceded
from tests.service.job_desk import Desk, J, at, desk, play
from tests.service.rig import Fault, refusal


def test_asked_again_after_a_restart_it_is_the_same_delivery() -> None:
    """A worker whose answer was lost with the gateway gets the very job, for the full time; nobody else does."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received(idempotency_key="once")
        await at(20)
        d = await d.restarted(clean=False)
        assert await d.receive("B") == []
        (again,) = await d.receive(idempotency_key="once")
        assert (again.lease.token, again.job.attempts, again.lease.expires_in_s) == (1, 1, 30)

    play(main())


async def _in_doubt(d: Desk, token: int) -> None:
    """A write of `token` on the key j whose answer was lost."""
    d.rig.upstream.faults.append(Fault.LOST_DROPPED)
    with pytest.raises(TryAgain):
        await d.rig.put(token, b"frame")


def test_a_delivery_runs_from_its_completed_hand_over() -> None:
    """What an earlier token has sent is waited for; then the worker has all his time."""

    async def main() -> None:
        d = await desk(timing=Timing(handover_wait_s=60))
        await _in_doubt(d, 5)
        await d.submit("j")
        (one,) = await d.receive()
        assert (one.lease.token, one.lease.expires_in_s) == (6, 30)
        assert asyncio.get_running_loop().time() >= 1030

    play(main())


def test_a_hand_over_that_nobody_waits_for_to_its_end() -> None:
    """No attempt is counted, and the job stands aside for a moment, so that others come first; it comes back later."""

    async def main() -> None:
        d = await desk(timing=Timing(handover_wait_s=1))
        await _in_doubt(d, 5)
        await d.submit("j", "other")
        with pytest.raises(TryAgain):
            await d.receive()
        assert await d.received() == ("other", 1, 1)
        await asyncio.sleep(UNDELIVERED_S / 2)
        assert ((await d.job()).state, (await d.job()).attempts) == (JobState.DELAYED, 0)
        await at(31)
        key, token, attempts = await d.received(wait_s=30)
        assert (key, attempts) == ("j", 1)
        assert token > 6
        assert d.jobs.counts["undelivered"] == 1

    play(main())


def test_a_lease_in_the_way_of_a_delivery() -> None:
    """A job whose key is leased without the queue holds up nobody; it is delivered when the lease has run out."""

    async def main() -> None:
        d = await desk(terms=LeaseTerms(lock_delay_s=5))
        await d.submit("j", "other")
        await d.leases.acquire(J, "me", 10)
        assert await d.received() == ("other", 1, 1)
        assert await d.receive() == []
        assert await d.received(wait_s=60) == ("j", 2, 1)
        assert asyncio.get_running_loop().time() == pytest.approx(1015, abs=0.1)

    play(main())


def test_a_lease_in_the_way_that_is_released_holds_up_no_delivery() -> None:
    """The job is delivered at once, and not when that lease would have run out."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        lease = await d.leases.acquire(J, "me", 3600)
        waiting = asyncio.ensure_future(d.received(wait_s=60))
        await asyncio.sleep(1)
        await d.leases.release(J, lease.token)
        assert await waiting == ("j", 2, 1)
        assert asyncio.get_running_loop().time() < 1002

    play(main())


def test_a_job_whose_key_has_no_token_left_is_not_delivered() -> None:
    """It cannot be, ever; the others are."""

    async def main() -> None:
        d = await desk()
        await d.fences.found(J, Token(MAX_TOKEN), "on an object")
        await d.submit("j", "other")
        assert await d.received() == ("other", 1, 1)
        assert await d.receive() == []

    play(main())


def test_what_is_not_answered_with_the_others_is_not_delivered_behind_their_back() -> None:
    """Of two jobs one has to wait for its hand-over. The other is answered alone; when the hand-over is complete, that
    delivery has lapsed, and no attempt counts."""

    async def main() -> None:
        d = await desk(timing=Timing(settle_timeout_s=60, handover_wait_s=100))
        await _in_doubt(d, 5)
        await d.submit("j", "other")
        (one,) = await d.receive(most=2, visibility_s=40)
        assert one.job.key == "other"
        await at(75)
        assert ((await d.job()).state, (await d.job()).attempts) == (JobState.WAITING, 0)

    play(main())


def test_completed_by_a_lease_while_it_stands_in_line() -> None:
    """It is not delivered any more."""

    async def main() -> None:
        d = await desk()
        await d.submit("j", "other")
        lease = await d.leases.acquire(J, "me", 10)
        done = Completion(lease.token, "me", None, (), 1.0)

        async def complete() -> Any:
            return (await d.store.jobs.complete("j", done)).fence

        await d.leases.end(J, lease.token, complete)
        assert await d.received() == ("other", 1, 1)
        assert await d.receive() == []

    play(main())


def test_completed_by_the_lease_in_its_way_and_reopened_it_is_delivered_at_once() -> None:
    """And not when that lease would have run out."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        lease = await d.leases.acquire(J, "me", 3600)
        assert await d.receive() == []
        await completions.complete(J, lease.token)
        await d.jobs.reopen(J, "again")
        assert await d.received() == ("j", 2, 1)

    play(main())


def test_a_lease_in_its_way_that_is_sealed_while_it_completes_the_job() -> None:
    """Nothing is completed, and nobody holds the key: the job is delivered at once."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        lease = await d.leases.acquire(J, "me", 3600)
        assert await d.receive() == []
        preceded(d.store.jobs, "complete", lambda: d.store.seal(J, 1))
        assert (await refusal(completions.complete(J, lease.token))).reason is Reason.SEALED
        assert await d.received() == ("j", 2, 1)

    play(main())


@pytest.mark.parametrize(("call", "after_s"), [("release", 0), ("fail", 10)])
def test_given_up_within_the_lock_delay_of_its_last_delivery(call: str, after_s: float) -> None:
    """Who had it was late, and nobody need wait any more: another is delivered it at once, or after its back-off."""

    async def main() -> None:
        d = await desk(terms=LeaseTerms(lock_delay_s=3600))
        await d.submit("j")
        (had,) = await d.receive()
        await asyncio.sleep(31)
        waiting = asyncio.ensure_future(d.received(wait_s=600))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await getattr(d.jobs, call)(J, had.lease.token)
        assert (await waiting)[:2] == ("j", 2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(after_s, abs=0.1)

    play(main())


def test_a_lock_delay_keeps_a_job_from_the_next_worker() -> None:
    """As it keeps a key from the next lease: who was late has so much time to notice, however long the gateway runs."""

    async def main() -> None:
        d = await desk(terms=LeaseTerms(lock_delay_s=5))
        await at(100)
        await d.submit("j")
        await d.receive()
        assert await d.received(wait_s=60) == ("j", 2, 2)
        assert asyncio.get_running_loop().time() == pytest.approx(1135, abs=0.1)

    play(main())


def test_the_renewals_of_a_delivery_that_has_run_out_are_counted_on() -> None:
    """Running out takes nothing from a worker, and gives him no more than [lease] says."""

    async def main() -> None:
        d = await desk(terms=LeaseTerms(Caps(max_renewals=1)))
        await at(100)
        await d.submit("j")
        (had,) = await d.receive()
        await d.jobs.extend(J, had.lease.token)
        await asyncio.sleep(31)
        with pytest.raises(Capped):
            await d.jobs.extend(J, had.lease.token)

    play(main())


def test_who_goes_away_while_he_is_being_delivered_a_job() -> None:
    """It is called back and given to the next, and no attempt counts; who can ask again keeps it."""

    async def main() -> None:
        for once, outcome in ((None, ("j", 7, 1)), ("once", None)):
            d = await desk(timing=Timing(handover_wait_s=60))
            await _in_doubt(d, 5)
            await d.submit("j")
            call = asyncio.ensure_future(d.receive(idempotency_key=once))
            await asyncio.sleep(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.sleep(40)
            if outcome is None:
                assert await d.received(idempotency_key="once") == ("j", 6, 1)
            else:
                assert await d.received() == outcome

    play(main())


def test_receive_while_the_gateway_drains() -> None:
    """Who waits is told that there is nothing; what was given out goes on."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        waiting = asyncio.ensure_future(d.receive(wait_s=60))
        await asyncio.sleep(1)
        d.jobs.drain()
        assert await waiting == []
        await d.submit("k")
        with pytest.raises(TryAgain) as caught:
            await d.receive(wait_s=60)
        assert caught.value.reason is Reason.DRAINING
        assert (await d.jobs.extend(J, Token(1))).expires_in_s == 30

    play(main())


def test_too_many_who_wait() -> None:
    """One more is told to come again; who does not wait is served all the same."""

    async def main() -> None:
        d = await desk(max_waiting=2)
        waiting = [asyncio.ensure_future(d.receive(wait_s=10)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(TryAgain) as caught:
            await d.receive(wait_s=10)
        assert caught.value.reason is Reason.OVERLOADED
        assert await d.receive() == []
        assert await asyncio.gather(*waiting) == [[], []]

    play(main())
