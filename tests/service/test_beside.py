"""What runs beside the requests (gateway/service/beside.py)."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.core.keys import FencingKey
from gateway.service.beside import Beside
from gateway.service.job_errors import NoJob
from gateway.stores.base import StoreUnavailable

J = FencingKey("j")


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("raised", "told"), [(ValueError("a fault"), True), (StoreUnavailable("disk full"), False), (NoJob(J), False)]
)
async def test_what_is_brought_to_its_end_outlives_its_caller(raised: Exception, told: bool, at_once: bool) -> None:
    """He goes away, before the work is done or at that very moment: the work goes on. An answer is nobody's concern
    then, and a fault of the program the log's."""
    beside, go_on, done = Beside(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()
        raise raised

    with structlog.testing.capture_logs() as log:
        caller = asyncio.create_task(beside.to_its_end(work()))
        await asyncio.sleep(0)
        if at_once:
            go_on.set()
            await done.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        await beside.ended()
        await asyncio.sleep(0)
    assert done.is_set()
    assert beside.idle
    assert [(line["event"], line["exc_info"]) for line in log] == [("internal-error", raised)] * told


async def test_who_waits_is_told_what_it_answers_or_raises() -> None:
    """As if he had done it himself."""
    beside = Beside()

    async def work(answer: int) -> int:
        return 1 // answer

    with structlog.testing.capture_logs() as log:
        assert await beside.to_its_end(work(1)) == 1
        with pytest.raises(ZeroDivisionError):
            await beside.to_its_end(work(0))
    assert log == []


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
