"""Jobs in time: delivered, run out, tried again, dead (gateway/service/jobs.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import TryAgain
from gateway.core.job import JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.job_errors import NoJob, NotDelivered
from gateway.service.lease_errors import Lost
from gateway.stores.values import EventKind
from tests.service.between import preceded
from tests.service.job_desk import J, at, desk, every, play

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
        dead = await d.job()
        assert (dead.state, dead.error) == (JobState.DEAD, "its worker was not heard of in time")
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
        preceded(d.store.jobs, "release", lambda: d.store.seal(J, 1))
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


# --- by an operator


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
