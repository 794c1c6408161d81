"""Jobs in time: delivered, run out, tried again, dead (gateway/service/jobs.py, deliveries.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import Reason, TryAgain
from gateway.core.job import Completion, JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.job_errors import NoJob, NotDelivered
from gateway.service.jobs import UNDELIVERED_S
from gateway.service.lease_errors import Lost
from gateway.service.leases import LeaseTerms
from gateway.service.waits import Timing
from gateway.stores.values import EventKind
from tests.service.job_desk import Desk, J, at, desk, every, play
from tests.service.rig import Fault

# --- time


def test_a_job_comes_back_when_its_time_is_over() -> None:
    """Not before; extended, so much later; each delivery with a higher token, and counted."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        await at(20)
        lease = await d.jobs.extend(J, Token(1))
        assert lease.expires_in_s == 30
        await at(49)
        assert await d.receive() == []
        assert await d.received(wait_s=30) == ("j", 2, 2)
        assert asyncio.get_running_loop().time() == pytest.approx(1050, abs=0.1)
        with pytest.raises(Lost):
            await d.jobs.extend(J, Token(1))

    play(main())


def test_the_queue_says_how_long_unless_the_worker_does() -> None:
    """`visibility_s` of the call, else of the queue's settings; of an extension, else of the delivery."""

    async def main() -> None:
        d = await desk()
        await d.submit("a", "b")
        first, second = [(await d.receive(visibility_s=s))[0].lease for s in (None, 5)]
        assert (first.expires_in_s, second.expires_in_s) == (30, 5)
        assert (await d.jobs.extend(second.key, second.token, 60)).expires_in_s == 60

    play(main())


def test_dead_after_the_last_attempt() -> None:
    """Three workers in turn are not heard of: the job is dead, and its history says so once."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        for attempt in (1, 2, 3):
            assert await d.received(wait_s=60) == ("j", attempt, attempt)
        await at(200)
        assert (await d.job()).state is JobState.DEAD
        assert await d.receive() == []
        assert (await d.kinds()).count(EventKind.DEAD_LETTERED) == 1
        assert d.jobs.counts["dead"] == 1
        assert await d.jobs.redrive("q", "fixed", 10, every) == 1
        assert await d.received() == ("j", 4, 1)

    play(main())


def test_back_off_doubles_up_to_its_bound() -> None:
    """10 s after the first failure, then 15, which is the bound; then it is dead."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        waits = []
        for _ in range(3):
            began = asyncio.get_running_loop().time()
            (one,) = await d.receive(wait_s=100)
            waits.append(asyncio.get_running_loop().time() - began)
            job = await d.jobs.fail(J, one.lease.token, "no disk")
        assert waits == pytest.approx([0, 10, 15], abs=0.1)
        assert (job.state, job.error) == (JobState.DEAD, "no disk")

    play(main())


def test_a_delay_at_submission_and_at_release() -> None:
    """Neither is delivered before; the earlier one first."""

    async def main() -> None:
        d = await desk()
        await d.submit("late", delay_s=20)
        await d.submit("j")
        await d.received()
        await d.jobs.release(J, Token(1), 10)
        assert await d.receive() == []
        assert [(await d.received(wait_s=60))[0] for _ in range(2)] == ["j", "late"]
        assert asyncio.get_running_loop().time() == pytest.approx(1020, abs=0.1)

    play(main())


@pytest.mark.parametrize("step_s", [-86400.0, 86400.0])
def test_steps_of_the_wall_clock_are_not_followed(step_s: float) -> None:
    """Somebody sets the gateway's clock: leases and delays last as long as they were said to."""

    async def main() -> None:
        d = await desk()
        await d.submit("j", "failed")
        await d.receive(most=2)
        await d.jobs.fail(FencingKey("failed"), Token(1))
        d.clock.step_s = step_s
        await at(9)
        assert await d.receive() == []
        assert (await d.received(wait_s=60))[0] == "failed"
        assert asyncio.get_running_loop().time() == pytest.approx(1010, abs=0.1)
        assert (await d.received(wait_s=60))[0] == "j"
        assert asyncio.get_running_loop().time() == pytest.approx(1030, abs=0.1)

    play(main())


def test_many_that_are_due_at_once() -> None:
    """All are delivered, the earliest first."""

    async def main() -> None:
        d = await desk()
        for number in range(1200):
            await d.submit(f"j{number}", delay_s=5)
        keys: list[str] = []
        while len(keys) < 1200:
            keys += [one.job.key for one in await d.receive(wait_s=60, most=100)]
        assert len(set(keys)) == 1200

    play(main())


# --- who has run out


@pytest.mark.parametrize("call", ["extend", "renew"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_holder_who_ran_out_and_extends_is_not_replaced(call: str, restarts: bool) -> None:
    """The job runs again, and runs out again in its time; whether the job or its lease is kept."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await at(31)
        assert (await d.job()).state is JobState.WAITING
        if restarts:
            d = await d.restarted()
        await (d.jobs.extend if call == "extend" else d.leases.renew)(J, Token(1))
        assert (await d.job()).state is JobState.RUNNING
        assert await d.receive() == []
        assert await d.received(wait_s=60) == ("j", 2, 2)
        assert asyncio.get_running_loop().time() == pytest.approx(1061, abs=0.1)

    play(main())


def test_a_holder_who_ran_out_fails_and_releases() -> None:
    """As long as nobody has replaced him he may say what became of it; what was counted stays counted."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await at(31)
        job = await d.jobs.release(J, Token(1))
        assert (job.state, job.attempts) == (JobState.WAITING, 1)
        await d.received()
        await at(62)
        assert (await d.jobs.fail(J, Token(2), "late")).state is JobState.DELAYED
        assert await d.receive() == []
        assert await d.received(wait_s=60) == ("j", 3, 3)

    play(main())


def test_a_delivered_job_whose_lease_is_given_up_comes_back() -> None:
    """The same as a release of the job: in one transaction, at once, and no attempt counts; one that had run out waits
    already, and what was counted stays counted."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await d.leases.release(J, Token(1), request_id="r-1")
        assert ((await d.job()).state, (await d.job()).attempts) == (JobState.WAITING, 0)
        assert (d.jobs.counts["released"], d.jobs.running) == (1, 0)
        released = (await d.store.events("j", None, 1))[0]
        assert (released.kind, released.request_id) == (EventKind.RELEASED, "r-1")
        assert await d.received() == ("j", 2, 1)
        await at(31)
        await d.leases.release(J, Token(2))
        assert await d.received() == ("j", 3, 2)
        assert await d.receive() == []

    play(main())


def test_a_job_given_up_at_the_moment_at_which_its_token_is_sealed_comes_back() -> None:
    """Found by simulation (seed 1009554 of that time): the operator's seal reaches the disk while the worker is giving
    the job up, who is told that he holds it no more; nobody else was, and it stayed with nobody."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        release = d.store.jobs.release

        async def just_sealed(*asked: object, **options: object) -> object:
            d.store.jobs.release = release
            await d.store.seal(J, 1)
            return await release(*asked, **options)

        d.store.jobs.release = just_sealed
        with pytest.raises(NotDelivered):
            await d.jobs.release(J, Token(1))
        await asyncio.sleep(1)
        assert (await d.job()).state is JobState.WAITING
        assert (await d.received(wait_s=60))[1] == 2

    play(main())


def test_a_late_renewal_that_the_store_cannot_write_is_made_good_by_the_next() -> None:
    """It is not answered as if the job ran."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await at(31)
        assert (await d.job()).state is JobState.WAITING
        d.store.broken = True
        with pytest.raises(TryAgain):
            await d.leases.renew(J, Token(1))
        d.store.broken = False
        await d.leases.renew(J, Token(1))
        assert (await d.job()).state is JobState.RUNNING

    play(main())


def test_an_extension_that_comes_just_as_the_time_is_over() -> None:
    """Whoever of the two is first, the job does not both run and wait."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        loop = asyncio.get_running_loop()
        extensions: list[asyncio.Task[Any]] = []
        for moment_s in (1029.999, 1030, 1030.001, 1030.002):
            loop.call_at(moment_s, lambda: extensions.append(loop.create_task(d.jobs.extend(J, Token(1)))))
        await at(40)
        await asyncio.gather(*extensions)
        assert (await d.job()).state is JobState.RUNNING
        assert await d.receive() == []
        assert d.jobs.running == 1

    play(main())


# --- restarts


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_restart_loses_nothing(clean: bool) -> None:
    """Who works has the full time anew, and then the job comes back; what is delayed keeps its moment; what waits
    waits."""

    async def main() -> None:
        d = await desk()
        await d.submit("run", "fail", "wait")
        await d.receive(most=2)
        await d.jobs.fail(FencingKey("fail"), Token(1))
        await at(5)
        d = await d.restarted(clean=clean)
        assert (d.jobs.running, await d.received()) == (1, ("wait", 1, 1))
        assert await d.received(wait_s=300) == ("fail", 2, 2)
        assert await d.received(wait_s=300) == ("run", 2, 2)
        assert asyncio.get_running_loop().time() == pytest.approx(1035, abs=0.2)

    play(main())


def test_a_job_that_runs_by_a_lease_that_is_over() -> None:
    """As a crash between the two may leave it: the job is delivered again at once."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await d.store.seal("j", 1)
        d = await d.restarted()
        assert await d.received(wait_s=1) == ("j", 2, 2)

    play(main())


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


# --- hand-overs, and others in the way


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


def test_redrive_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All dead jobs of the queue and no others, however many; what somebody reopens meanwhile is no fault."""
    monkeypatch.setattr("gateway.service.jobs.READ_AT_ONCE", 3)

    async def main() -> None:
        d = await desk()
        for number in range(8):
            await d.submit(f"j{number}")
        for one in await d.receive(most=8):
            await d.jobs.fail(one.lease.key, one.lease.token, retry=False)
        outcomes = await asyncio.gather(d.jobs.redrive("q", "x", 100, every), d.jobs.reopen(FencingKey("j4"), "me"))
        assert outcomes[0] in (7, 8)
        assert len(await d.jobs.listed("q", JobState.WAITING, "", 99)) == 8
        with pytest.raises(NoJob):
            await d.jobs.reopen(FencingKey("none"), "x")

    play(main())
