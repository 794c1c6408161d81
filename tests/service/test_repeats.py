"""Calls that are repeated while they are being answered (gateway/service/repeats.py)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.service.repeats import Repeats


class Desk:
    """Answers when it is told to, and counts what it has begun."""

    def __init__(self) -> None:
        self.repeats: Repeats[str, int] = Repeats()
        self.begun: list[asyncio.Task[int]] = []
        self.go = asyncio.Event()
        self.fails = False

    async def _work(self) -> int:
        await self.go.wait()
        if self.fails:
            raise LookupError
        return len(self.begun)

    def _begin(self) -> asyncio.Task[int]:
        self.begun.append(asyncio.create_task(self._work()))
        return self.begun[-1]

    async def ask(self, call: str = "a", terms: object = "terms") -> int:
        return await self.repeats.answer(call, terms, self._begin, lambda: ValueError("reused"))


async def _asked(desk: Desk, count: int) -> list[asyncio.Task[int]]:
    callers = [asyncio.create_task(desk.ask()) for _ in range(count)]
    await asyncio.sleep(0)
    return callers


async def test_one_answer_for_all_who_ask_at_once() -> None:
    """Whoever asks when that has been given has his own; another call has another."""
    desk = Desk()
    callers = await _asked(desk, 2)
    desk.go.set()
    assert await asyncio.gather(*callers) == [1, 1]
    assert await desk.ask() == 2
    assert await desk.ask("b") == 3


async def test_an_error_is_told_to_all() -> None:
    """And kept for nobody else."""
    desk = Desk()
    desk.fails = True
    callers = await _asked(desk, 2)
    desk.go.set()
    assert [type(error) for error in await asyncio.gather(*callers, return_exceptions=True)] == [LookupError] * 2
    desk.fails = False
    assert await desk.ask() == 2


async def test_other_terms_are_refused() -> None:
    """As long as the first call is being answered."""
    desk = Desk()
    (caller,) = await _asked(desk, 1)
    with pytest.raises(ValueError, match="reused"):
        await desk.ask(terms="others")
    desk.go.set()
    assert await caller == 1
    assert await desk.ask(terms="others") == 2


async def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    """The last one does: then the work is ended, and who asks in that very moment begins anew."""
    desk = Desk()
    first, second = await _asked(desk, 2)
    first.cancel()
    await asyncio.sleep(0)
    assert not desk.begun[0].cancelling()
    second.cancel()
    await asyncio.sleep(0)
    assert desk.begun[0].cancelling()
    (third,) = await _asked(desk, 1)
    desk.go.set()
    assert await third == 2
    assert desk.begun[0].cancelled()
