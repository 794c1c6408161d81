"""The line of a queue and the workers at it (gateway/service/queues.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.core.job import RetryPolicy
from gateway.service import queues
from gateway.service.job_errors import UnknownQueue
from gateway.service.queues import READ_AT_ONCE, Queue, QueueRule, QueueRules, Queues
from gateway.stores.base import StoreUnavailable
from gateway.stores.job_base import Place
from tests.virtual_time import run


class Line:
    """What the store knows to wait, and a queue over it."""

    def __init__(self, count: int = 0, read_s: float = 0.0) -> None:
        self.places = [place(number) for number in range(count)]
        self.reads: list[int] = []
        self.read_s = read_s
        self.broken = False
        self.queue = Queue(self.read)

    async def read(self, limit: int) -> list[Place]:
        self.reads.append(limit)
        found = sorted(self.places)[:limit]
        if self.read_s:
            await asyncio.sleep(self.read_s)
        if self.broken:
            raise StoreUnavailable("disk full")
        return found

    async def take(self, timeout_s: float = 0.0, **more: Any) -> str | None:
        taken = await self.queue.take(timeout_s, **more)
        return None if taken is None else taken.key

    async def delivered(self, **more: Any) -> str | None:
        """Taken, and decided to run."""
        key = await self.take(**more)
        if key is not None:
            self.places = [place for place in self.places if place.key != key]
            self.queue.decided(key)
        return key

    def come(self, number: int, precedence: int = 0) -> None:
        """A job has been submitted."""
        self.places.append(place(number, precedence))
        self.queue.add(place(number, precedence))


def place(number: int, precedence: int = 0) -> Place:
    return Place(precedence, number, f"job-{number}")


def play(main: Coroutine[Any, Any, None]) -> None:
    run(main)


def test_the_whole_line_in_its_order() -> None:
    """However long it is, it is read in parts, each once, and nobody is left out or given twice."""

    async def main() -> None:
        count = 3 * READ_AT_ONCE + 7
        line = Line(count)
        assert [await line.delivered() for _ in range(count)] == [f"job-{n}" for n in range(count)]
        assert await line.take() is None
        assert len(line.reads) == 4

    play(main())


def test_who_comes_is_known_without_a_look() -> None:
    """Once the line is known to be empty, a job that is submitted goes to a worker without a read."""

    async def main() -> None:
        line = Line()
        assert await line.take() is None
        waiting = asyncio.ensure_future(line.take(30))
        await asyncio.sleep(1)
        line.come(1)
        assert await waiting == "job-1"
        assert len(line.reads) == 1

    play(main())


def test_the_worker_who_waits_longest_is_first() -> None:
    """Two jobs for three workers: the last one waits on."""

    async def main() -> None:
        line = Line()
        workers = [asyncio.ensure_future(line.take(10)) for _ in range(3)]
        await asyncio.sleep(1)
        line.come(1)
        line.come(2)
        assert await asyncio.gather(*workers) == ["job-1", "job-2", None]

    play(main())


def test_a_higher_priority_overtakes_what_is_known() -> None:
    """Also one that comes while the first part of a long line is known."""

    async def main() -> None:
        line = Line(2 * READ_AT_ONCE)
        assert await line.delivered() == "job-0"
        line.come(9999, precedence=-1)
        line.come(9998, precedence=1)
        assert await line.delivered() == "job-9999"
        assert await line.delivered() == "job-1"

    play(main())


def test_what_comes_while_the_line_is_read_is_not_lost() -> None:
    """A read tells of the moment when it began."""

    async def main() -> None:
        line = Line(read_s=5)
        waiting = asyncio.ensure_future(line.take(30))
        await asyncio.sleep(1)
        line.come(1)
        assert await waiting == "job-1"
        assert await line.take() is None

    play(main())


def test_what_goes_while_the_line_is_read_is_not_given_again() -> None:
    """A job that was delivered meanwhile may still be in what has been read."""

    async def main() -> None:
        line = Line(READ_AT_ONCE + 1)
        for _ in range(READ_AT_ONCE - 1):
            await line.delivered()
        line.read_s = 5
        last = await line.take()
        assert last is not None
        following = asyncio.ensure_future(line.take(30))
        await asyncio.sleep(1)
        line.queue.decided(last)
        assert await following == f"job-{READ_AT_ONCE}"
        assert await line.take() is None

    play(main())


def test_put_back() -> None:
    """A job that could not be delivered after all stands at its place again."""

    async def main() -> None:
        line = Line(2)
        first = await line.queue.take(0)
        assert first is not None
        assert await line.delivered() == "job-1"
        line.queue.add(first)
        assert await line.take() is None, "told again of what is taken"
        line.queue.put_back(first)
        line.queue.put_back(first)
        assert [await line.delivered(), await line.take()] == ["job-0", None]

    play(main())


def test_a_worker_who_may_not_have_every_key() -> None:
    """It is given the first that it may have, however far behind; the others stay in line for others."""

    async def main() -> None:
        line = Line(3 * READ_AT_ONCE)

        def late(key: str) -> bool:
            return key == f"job-{3 * READ_AT_ONCE - 1}"

        assert await line.delivered(may_have=late) == f"job-{3 * READ_AT_ONCE - 1}"
        assert await line.take(may_have=late) is None
        assert await line.delivered() == "job-0"
        waiting = asyncio.ensure_future(line.take(30, may_have=lambda key: key == "job-5000"))
        await asyncio.sleep(1)
        line.come(4999)
        line.come(5000)
        assert await waiting == "job-5000"

    play(main())


def test_a_long_line_is_searched_once() -> None:
    """Who may have nothing of it is asked of what comes alone, and not of all that waits again and again."""

    async def main() -> None:
        line, asked = Line(READ_AT_ONCE // 2), []

        def may_have(key: str) -> bool:
            asked.append(key)
            return key == "job-999"

        waiting = asyncio.ensure_future(line.take(30, may_have=may_have))
        await asyncio.sleep(1)
        asked.clear()
        line.come(500)
        assert await line.delivered() == "job-0"
        line.come(999)
        assert await waiting == "job-999"
        assert asked == ["job-500", "job-999"]

    play(main())


def test_the_search_for_a_key_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is searched so far and no farther."""
    monkeypatch.setattr(queues, "MOST_READ", 2 * READ_AT_ONCE)

    async def main() -> None:
        line = Line(5 * READ_AT_ONCE)
        assert await line.take(may_have=lambda key: False) is None
        assert line.reads == [READ_AT_ONCE, 2 * READ_AT_ONCE]

    play(main())


def test_a_long_line_is_not_kept() -> None:
    """What comes is remembered up to a bound, and read again after it."""

    async def main() -> None:
        line, count = Line(), 5 * READ_AT_ONCE
        assert await line.take() is None
        for number in range(count):
            line.come(number)
        assert len(line.queue._first) <= 2 * READ_AT_ONCE
        assert [await line.delivered() for _ in range(count)] == [f"job-{n}" for n in range(count)]

    play(main())


def test_several_at_once() -> None:
    """As many as are known, in order, for who has one already; none before a worker who waits."""

    async def main() -> None:
        line = Line(4)
        assert await line.take() == "job-0"
        assert [one.key for one in line.queue.take_more(2, lambda key: key != "job-1")] == ["job-2", "job-3"]
        waiting = asyncio.ensure_future(line.take(30, may_have=lambda key: key == "job-9"))
        await asyncio.sleep(0)
        assert line.queue.take_more(2) == []
        line.come(9)
        assert await waiting == "job-9"

    play(main())


def test_a_store_that_fails_is_told_to_those_who_wait() -> None:
    """And the next one looks again."""

    async def main() -> None:
        line = Line(1)
        line.broken = True
        outcomes = await asyncio.gather(*(line.take(30) for _ in range(2)), line.take(), return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        line.broken = False
        assert await line.take() == "job-0"

    play(main())


def test_a_read_that_ends_in_another_way_is_told_too() -> None:
    """Whatever goes wrong, nobody is left waiting for it, and the next one looks again."""

    async def main() -> None:
        line = Line(1, read_s=1)
        waiting = [asyncio.ensure_future(line.take(timeout_s)) for timeout_s in (30, 0)]
        await asyncio.sleep(0.5)
        assert line.queue._reading is not None
        line.queue._reading.cancel()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert await line.take() == "job-0"

    play(main())


def test_a_line_that_is_doubted_is_read_again() -> None:
    """Also while it is being read; who waits is given what there is."""

    async def main() -> None:
        line = Line(read_s=1)
        assert await line.take() is None
        waiting = asyncio.ensure_future(line.take(30))
        await asyncio.sleep(0.5)
        line.places.append(place(7))
        line.queue.doubt()
        await asyncio.sleep(0.5)
        line.queue.doubt()
        assert await waiting == "job-7"
        assert len(line.reads) == 3

    play(main())


def test_a_worker_who_goes_away_as_it_is_given_a_job() -> None:
    """The job goes to the next."""

    async def main() -> None:
        line = Line()
        waiting = asyncio.ensure_future(line.take(30))
        await asyncio.sleep(1)
        line.come(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await line.take() == "job-1"

    play(main())


def test_dismissed() -> None:
    """At a stop those who wait and those who come are given nothing."""

    async def main() -> None:
        line = Line(1)
        many = Queues(lambda name, limit: line.read(limit))
        with many.at("q") as queue:
            waiting = asyncio.ensure_future(queue.take(30, lambda key: False))
            await asyncio.sleep(1)
            assert many.workers == 1
            many.dismiss()
            assert await waiting is None
            assert await queue.take(30) is None
        with many.at("r") as queue:
            assert await queue.take(30) is None

    play(main())


def test_idle_queues_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that somebody has asked for once fill no memory; a queue at which somebody waits stays."""
    monkeypatch.setattr(queues, "MOST_IDLE", 4)

    async def main() -> None:
        line = Line()
        many = Queues(lambda name, limit: line.read(limit))
        with many.at("kept") as kept:
            waiting = asyncio.ensure_future(kept.take(3000))
            for number in range(100):
                with many.at(f"q{number}") as queue:
                    assert await queue.take(0) is None
            assert len(many._queues) <= 6
            many.add("kept", place(1))
            many.add("unknown", place(2))
            assert await waiting == place(1)

    play(main())


def test_rules() -> None:
    """The first that matches holds; where there are any, other queues are refused; where there are none, none is."""
    rules = QueueRules(
        (QueueRule("a*", RetryPolicy(1)), QueueRule("ab", RetryPolicy(2)), QueueRule("c", RetryPolicy(3)))
    )
    assert [rules.of(name).policy.max_attempts for name in ("a", "ab", "c")] == [1, 1, 3]
    with pytest.raises(UnknownQueue, match=r"a\*, ab, c"):
        rules.of("b")
    assert rules.policy("b") == RetryPolicy()
    assert QueueRules().of("anything") == QueueRule()
