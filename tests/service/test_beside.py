"""What runs beside the requests (gateway/service/beside.py)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.service.beside import Beside


async def test_what_is_brought_to_its_end_outlives_its_caller() -> None:
    """He goes away: the work goes on, and what it then raises is nobody's concern."""
    beside, go_on, done = Beside(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()
        raise ValueError("nobody is told")

    caller = asyncio.create_task(beside.to_its_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not beside.idle
    go_on.set()
    await beside.ended()
    assert done.is_set()
    assert beside.idle


async def test_who_waits_is_told_what_it_answers_or_raises() -> None:
    """As if he had done it himself."""
    beside = Beside()

    async def work(answer: int) -> int:
        return 1 // answer

    assert await beside.to_its_end(work(1)) == 1
    with pytest.raises(ZeroDivisionError):
        await beside.to_its_end(work(0))


async def test_a_stop_cuts_off_what_runs() -> None:
    """And comes back when all of it has ended, what it does last included."""
    beside, ended = Beside(), []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    beside.run(work("a"))
    beside.run(work("b"))
    await asyncio.sleep(0)
    await beside.stop()
    assert sorted(ended) == ["a", "b"]
    assert beside.idle
