"""Jobs whose store answers late, so that something else comes in between (gateway/service/jobs.py). All of these have
been found by the explorer (tests/model): a job that stayed with nobody, or was taken from who had it."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.core.errors import TryAgain
from gateway.core.job import JobState
from gateway.core.keys import Token
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.job_base import JobChange
from gateway.stores.values import Event, EventKind
from tests.service.between import answers_late, fails
from tests.service.job_desk import Desk, J, at, desk, play
from tests.service.rig import Fault


async def run_out() -> Desk:
    """Its job has been delivered with token 1, and waits again."""
    d = await desk()
    await d.submit("j")
    assert await d.received() == ("j", 1, 1)
    await at(31)
    assert (await d.job()).state is JobState.WAITING
    return d


def test_a_job_that_is_extended_too_slowly_comes_back() -> None:
    """Its time was over again before the store had told that it runs: nobody looked after it."""

    async def main() -> None:
        d = await run_out()
        answers_late(d.store.jobs, "renew", after_s=40)
        await d.jobs.extend(J, Token(1))
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


def test_a_job_that_is_extended_while_it_comes_back_goes_on() -> None:
    """The store was about to take it from its holder, who has been heard of since: it runs, and is nobody else's."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        assert await d.received() == ("j", 1, 1)
        answers_late(d.store.jobs, "lapse", before_s=5)
        await at(32)
        await d.jobs.extend(J, Token(1))
        await at(40)
        assert ((await d.job()).state, d.jobs.running) == (JobState.RUNNING, 1)
        assert await d.receive() == []

    play(main())


def test_a_job_that_is_sealed_while_it_is_extended_comes_back() -> None:
    """The same where an operator takes it from its worker meanwhile."""

    async def main() -> None:
        d = await run_out()
        answers_late(d.store.jobs, "renew", after_s=5)
        extended = asyncio.ensure_future(d.jobs.extend(J, Token(1)))
        await at(33)
        await d.fences.seal(J, Token(1), Event("j", EventKind.SEALED, 1, 1))
        await extended
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


def test_a_release_that_is_told_after_the_next_delivery_leaves_that_alone() -> None:
    """It had run out before, so it could be delivered at once; that delivery was forgotten, and stayed with nobody."""

    async def main() -> None:
        d = await run_out()
        answers_late(d.store.jobs, "release", after_s=5)
        released = asyncio.ensure_future(d.jobs.release(J, Token(1)))
        await at(32)
        assert await d.received() == ("j", 2, 2)
        await released
        assert await d.received(wait_s=60) == ("j", 3, 3)

    play(main())


def test_an_undelivered_job_whose_delay_was_decided_and_denied_is_due() -> None:
    """Nobody had been told of the delivery, and the job stands aside: nobody looked when it was due."""

    async def main() -> None:
        d = await desk(timing=Timing(handover_wait_s=1))
        d.rig.upstream.faults.append(Fault.LOST_DROPPED)
        with pytest.raises(TryAgain):
            await d.rig.put(5, b"frame")
        await d.submit("j")
        answers_late(d.store.jobs, "undeliver", denied=True)
        with pytest.raises(TryAgain):
            await d.receive()
        await at(3)
        assert (await d.job()).state is JobState.DELAYED
        await at(40)
        assert await d.received(wait_s=60) == ("j", 7, 1)

    play(main())


def test_a_repeated_call_does_not_bring_back_an_earlier_delivery() -> None:
    """What it had read was over by the time it was told: the delivery since then was not looked after."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        assert await d.received(idempotency_key="once") == ("j", 1, 1)
        answers_late(d.store.jobs, "delivered_by", after_s=35)
        again = asyncio.ensure_future(d.receive(idempotency_key="once"))
        assert await d.received(wait_s=60) == ("j", 2, 2)
        assert await again == []
        assert await d.received(wait_s=60) == ("j", 3, 3)

    play(main())


@pytest.mark.parametrize("read", ["delivered_by", "fence"])
def test_what_is_given_up_while_it_is_asked_for_again_runs_no_more(read: str) -> None:
    """The repeated call had read that it was held, and counted it among the running for ever."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received(idempotency_key="once")
        answers_late(d.store if read == "fence" else d.store.jobs, read, after_s=5)
        again = asyncio.ensure_future(d.receive(idempotency_key="once"))
        await at(1)
        await d.jobs.release(J, Token(1), delay_s=100)
        await again
        assert (d.jobs.running, (await d.job()).state) == (0, JobState.DELAYED)
        assert await d.received(wait_s=200) == ("j", 2, 1)

    play(main())


@pytest.mark.parametrize("late", [{"before_s": 2}, {"after_s": 2}])
def test_who_hangs_up_and_asks_again_while_the_store_delivers(late: dict[str, float]) -> None:
    """He is told of that very job when the store has delivered it, and of no other."""

    async def main() -> None:
        d = await desk()
        await d.submit("j", "k")
        answers_late(d.store.jobs, "deliver", **late)
        call = asyncio.ensure_future(d.receive(idempotency_key="once"))
        await at(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await d.received(idempotency_key="once") == ("j", 1, 1)
        assert await d.received() == ("k", 1, 1)

    play(main())


@pytest.mark.parametrize("once", [None, "once"])
def test_a_fault_in_a_delivery_whose_caller_has_gone_is_logged(once: str | None) -> None:
    """He is told of it no more, and others are delivered the job."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        fails(d.store.jobs, "deliver", RuntimeError("a fault"), after_s=5)
        with structlog.testing.capture_logs() as log:
            call = asyncio.ensure_future(d.receive(idempotency_key=once))
            await at(1)
            call.cancel()
            await at(10)
        assert [line["event"] for line in log] == ["internal-error"]
        assert await d.received() == ("j", 1, 1)

    play(main())


def test_a_job_that_comes_back_while_a_delivery_is_refused_is_delivered() -> None:
    """The delivery had found it running, and told so after it had come back: it was in line no more."""

    async def main() -> None:
        d = await run_out()
        await d.jobs.extend(J, Token(1))
        answers_late(d.store.jobs, "lapse", before_s=2)
        answers_late(d.store.jobs, "deliver", after_s=5)
        await at(62)
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


def test_a_delivery_that_is_being_told_is_not_taken_back() -> None:
    """Since the store had failed before, it was found out what had become of the job: delivered, and no lease known."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        deliver = d.store.jobs.deliver

        async def away(*_: object) -> JobChange:
            raise StoreUnavailable("the disk is away")

        d.store.jobs.deliver = away  # type: ignore[assignment, method-assign]
        answers_late(d.store.jobs, "job", before_s=2)
        with pytest.raises(TryAgain):
            await d.receive()
        d.store.jobs.deliver = deliver  # type: ignore[method-assign]
        answers_late(d.store.jobs, "deliver", after_s=5)
        assert await d.received() == ("j", 1, 1)
        assert (await d.job()).state is JobState.RUNNING

    play(main())
