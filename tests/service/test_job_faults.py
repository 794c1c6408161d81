"""Jobs and a store that fails, or does what it is asked and then says that it could not (gateway/service/jobs.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.errors import TryAgain
from gateway.core.job import JobState
from gateway.core.keys import FencingKey, Token
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases
from gateway.service.queues import QueueRules
from gateway.service.returns import AGAIN_S
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Fence
from tests.service.between import answers_late, held
from tests.service.job_desk import BreakableStore, Desk, J, at, desk, every, play
from tests.service.rig import rig
from tests.virtual_time import VirtualClock


def test_a_store_that_fails_when_a_job_is_to_come_back() -> None:
    """It comes back as soon as the store can be written again."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await at(29)
        d.store.broken = True
        await at(35)
        d.store.broken = False
        assert await d.received(wait_s=60) == ("j", 2, 2)
        assert asyncio.get_running_loop().time() < 1035 + 2 * AGAIN_S

    play(main())


def test_a_store_that_fails_when_jobs_are_due() -> None:
    """They are looked for again."""

    async def main() -> None:
        d = await desk()
        await d.submit("j", delay_s=10)
        await at(9)
        d.store.broken = True
        await at(15)
        d.store.broken = False
        assert await d.received(wait_s=60) == ("j", 1, 1)
        assert asyncio.get_running_loop().time() < 1015 + 2 * AGAIN_S

    play(main())


class LateFaultStore(BreakableStore):
    """A store that does what it is asked, and then says that it could not."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.fails_after: set[str] = set()
        for name in ("submit", "deliver", "renew", "lapse", "release", "fail", "reopen", "due"):
            setattr(self.jobs, name, self._failing(name, getattr(self.jobs, name)))

    def _failing(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def failing(*given: Any, **named: Any) -> Any:
            done = await call(*given, **named)
            if name in self.fails_after:
                self.fails_after.discard(name)
                raise StoreUnavailable("the disk is away")
            return done

        return failing


async def failing_desk(*methods: str) -> Desk:
    """One whose store fails in these, once each, after it has done its part; workers know the line to be empty."""
    d = await desk(store=LateFaultStore(clock=VirtualClock().wall))
    assert await d.receive() == []
    d.store.fails_after.update(methods)  # type: ignore[attr-defined]
    return d


def test_a_submission_that_the_store_did_and_denied() -> None:
    """The job is delivered all the same, also to who has been waiting."""

    async def main() -> None:
        d = await failing_desk("submit")
        waiting = asyncio.ensure_future(d.receive(wait_s=60))
        await asyncio.sleep(1)
        with pytest.raises(StoreUnavailable):
            await d.submit("j")
        assert [one.job.key for one in await waiting] == ["j"]

    play(main())


def test_a_delivery_that_the_store_did_and_denied() -> None:
    """Found by simulation: nobody was told of the job, and it ran for ever."""

    async def main() -> None:
        d = await failing_desk("deliver")
        await d.submit("j")
        with pytest.raises((StoreUnavailable, TryAgain)):
            await d.received(visibility_s=10)
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


def test_a_delivery_denied_and_asked_for_again() -> None:
    """It is the same one, and comes back in its time."""

    async def main() -> None:
        d = await failing_desk("deliver")
        await d.submit("j")
        with pytest.raises((StoreUnavailable, TryAgain)):
            await d.received(idempotency_key="once")
        assert await d.received(idempotency_key="once") == ("j", 1, 1)
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


def test_a_delivery_denied_asked_for_again_and_not_confirmed() -> None:
    """Found by simulation: the repeated call had seen that the job runs, its lease could not be read, and nobody looked
    after that."""

    async def main() -> None:
        d = await failing_desk("deliver")
        read, back = d.store.fence, asyncio.Event()

        async def fence(key: str) -> Fence:
            if d.store.fails_after == set() and not back.is_set():  # type: ignore[attr-defined]
                raise StoreUnavailable("the disk is away")
            return await read(key)

        d.store.fence = fence  # type: ignore[method-assign]
        await d.submit("j")
        for _ in range(2):
            with pytest.raises((StoreUnavailable, TryAgain)):
                await d.received(idempotency_key="once", visibility_s=10)
        back.set()
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())


@pytest.mark.parametrize("method", ["release", "fail", "give up the lease"])
def test_giving_up_that_the_store_did_and_denied(method: str) -> None:
    """The job is delivered again, at the latest when its time would have been over."""

    async def main() -> None:
        d = await failing_desk("fail" if method == "fail" else "release")
        await d.submit("j")
        await d.received()
        calls: dict[str, Callable[[FencingKey, Token], Awaitable[object]]] = {
            "release": d.jobs.release,
            "fail": d.jobs.fail,
            "give up the lease": d.leases.release,
        }
        with pytest.raises((StoreUnavailable, TryAgain)):
            await calls[method](J, Token(1))
        assert (await d.received(wait_s=60))[1] == 2

    play(main())


def test_running_out_that_the_store_did_and_denied() -> None:
    """The job is delivered again, and so is one that was due; one that was extended late comes back in its time."""

    async def main() -> None:
        d = await failing_desk("lapse", "due", "renew")
        await d.submit("j")
        await d.submit("late", delay_s=5)
        assert (await d.received())[0] == "j"
        assert (await d.received(wait_s=20))[0] == "late"
        await at(31)
        with pytest.raises((StoreUnavailable, TryAgain)):
            await d.jobs.extend(J, Token(1))
        keys = [(await d.received(wait_s=60))[0] for _ in range(2)]
        assert sorted(keys) == ["j", "late"]

    play(main())


def test_a_reopening_that_the_store_did_and_denied() -> None:
    """The job is delivered again."""

    async def main() -> None:
        d = await failing_desk("reopen")
        await d.submit("j")
        await d.received()
        await d.jobs.fail(J, Token(1), retry=False)
        assert await d.receive() == []
        with pytest.raises(StoreUnavailable):
            await d.jobs.reopen(J, "again")
        assert await d.received() == ("j", 2, 1)

    play(main())


@pytest.mark.parametrize("pause_s", [0, 0.5])
def test_who_hangs_up_while_the_store_writes(pause_s: float) -> None:
    """What he has asked for is done, and known here."""

    async def main() -> None:
        d = await desk()
        assert await d.receive() == []
        answers_late(d.store.jobs, "submit", before_s=pause_s, after_s=1)
        call = asyncio.ensure_future(d.submit("j"))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await d.received(wait_s=60) == ("j", 1, 1)

    play(main())


def test_a_start_that_cannot_see_what_runs_fails() -> None:
    """It would otherwise leave a delivery with nobody."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await d.jobs.stop()
        await d.leases.stop()

        async def failing(*_: object) -> Fence:
            raise StoreUnavailable("the disk is away")

        leases = Leases((await rig(store=d.store, clock=d.clock)).fences)
        d.store.fence = failing  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await Jobs(leases, d.store, d.clock, QueueRules()).start()

    play(main())


def test_a_redrive_that_the_store_does_not_do_says_so() -> None:
    """And not that it has reopened nothing."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        await d.jobs.fail(J, Token(1), retry=False)

        async def failing(*_: object) -> Any:
            raise StoreUnavailable("the disk is away")

        d.store.jobs.reopen = failing  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await d.jobs.redrive("q", "again", 10, every)

    play(main())


@pytest.mark.parametrize("method", ["release", "fail", "extend", "complete"])
def test_calls_that_are_repeated_while_the_disk_hangs_are_no_more_than_their_callers(method: str) -> None:
    """Who goes away before his turn has asked for nothing: a worker that tries for an hour left a task for each try.
    What the first has begun is done when the disk goes on."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        await d.received()
        if method == "extend":
            await at(31)  # a renewal writes nothing but where the lease has run out
        calls: dict[str, tuple[str, Callable[[FencingKey, Token], Awaitable[object]]]] = {
            "release": ("release", d.jobs.release),
            "fail": ("fail", d.jobs.fail),
            "extend": ("renew", d.jobs.extend),
            "complete": ("complete", completions.complete),
        }
        decided, call = calls[method]
        disk = held(d.store.jobs, decided)
        for _ in range(100):
            caller = asyncio.ensure_future(call(J, Token(1)))
            await asyncio.sleep(0.05)
            caller.cancel()
        assert disk.reached.is_set()
        assert len(asyncio.all_tasks()) < 10
        disk.go_on.set()
        await asyncio.sleep(1)
        assert (await d.job()).state is {
            "release": JobState.WAITING,
            "fail": JobState.DELAYED,
            "extend": JobState.RUNNING,
            "complete": JobState.COMPLETED,
        }[method]

    play(main())


def test_what_a_failing_store_has_decided_is_found_out_once_for_each_job() -> None:
    """However often somebody asks meanwhile."""

    async def main() -> None:
        d = await desk()
        await d.submit("j")
        await d.received()
        d.store.broken = True
        for _ in range(100):
            with pytest.raises((StoreUnavailable, TryAgain)):
                await d.jobs.release(J, Token(1))
            await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) < 10
        d.store.broken = False
        assert await d.received(wait_s=60) == ("j", 2, 2)

    play(main())
