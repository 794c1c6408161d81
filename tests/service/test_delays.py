"""Jobs that are delayed (gateway/service/delays.py): one timer, for whichever is due first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.job import JobState
from gateway.service.delays import Delays
from gateway.stores.memory import MemoryStore
from tests.service.job_desk import desk, play
from tests.virtual_time import VirtualClock


def test_who_is_due_earlier_is_looked_for_earlier() -> None:
    """In whatever order they come to be delayed; each is looked for once."""

    async def main() -> None:
        d = await desk()
        began, due, looks = asyncio.get_running_loop().time(), d.store.jobs.due, []

        async def counted(now: float, limit: int):
            looks.append(asyncio.get_running_loop().time() - began)
            return await due(now, limit)

        d.store.jobs.due = counted  # type: ignore[method-assign]
        for key, delay_s in (("late", 100), ("soon", 5), ("between", 50)):
            await d.submit(key, delay_s=delay_s)
        keys = [(await d.received(wait_s=200, visibility_s=600))[0] for _ in range(3)]
        assert keys == ["soon", "between", "late"]
        assert looks == pytest.approx([5, 50, 100], abs=0.1)

    play(main())


def test_after_a_stop_nothing_is_looked_for() -> None:
    """Neither what was to be, nor what comes to be delayed then."""

    async def main() -> None:
        store = MemoryStore(clock=VirtualClock().wall)
        await store.start("rules")

        async def due(*_: object) -> None:
            raise AssertionError("looked for")

        store.jobs.due = due  # type: ignore[assignment, method-assign]
        delays = Delays(store.jobs, VirtualClock(), lambda job: None, lambda: None)
        delays.look_at(delays.now() + 5)
        await delays.stop()
        delays.look_at(delays.now() + 1)
        await asyncio.sleep(10)

    play(main())


def test_a_delay_is_over_for_the_job_that_it_was_for() -> None:
    """The others stay delayed."""

    async def main() -> None:
        d = await desk()
        await d.submit("soon", delay_s=5)
        await d.submit("late", delay_s=100)
        await asyncio.sleep(10)
        assert ((await d.job("soon")).state, (await d.job("late")).state) == (JobState.WAITING, JobState.DELAYED)

    play(main())
