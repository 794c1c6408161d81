"""What waits for a receiver is bounded and outlives its gateway: what is given up, and what the next run takes up."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.service import courier
from gateway.service.courier import FAILURES_UNTIL_DOWN
from gateway.service.webhooks import MAX_BEHIND_REFUSALS, Answer, Webhooks
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind
from tests.service.announcement_desk import DAY_S, DOWN, desk, virtually
from tests.virtual_time import VirtualClock

# --- bounds, never silent


@virtually
async def test_what_is_too_old_is_given_up_after_a_last_attempt() -> None:
    """It is counted and logged, and the next of its key follows; what the receiver takes is given, however old."""
    async with desk(keep_s=3600) as it:
        it.receiver.sick["bad"] = Answer(400)
        with structlog.testing.capture_logs() as log:
            await it.raises("bad", 1, 2)
            await asyncio.sleep(2 * 3600)
            await it.raises("bad", 3)
            await it.until(lambda: it.courier.dropped["expired"] == 2)
        assert [line["reason"] for line in log if line["event"] == "webhook-dropped"] == ["expired"]
        assert it.courier.waiting == 1
        del it.receiver.sick["bad"]
        await it.until(lambda: it.courier.waiting == 0)
        assert it.receiver.of("bad") == [3]


@virtually
async def test_of_too_many_the_oldest_are_given_up() -> None:
    """Memory and disk are bounded; the newest are kept, counted and logged is what is not."""
    async with desk(max_waiting=100) as it:
        it.receiver.sick["*"] = DOWN
        with structlog.testing.capture_logs() as log:
            for token in range(1, 301):
                await it.raises(f"job-{token % 3}", token)
                await asyncio.sleep(0.05)
        (backlog,) = await it.store.outbox.backlogs()
        assert backlog.count == it.courier.waiting <= 100
        assert it.courier.dropped["oldest"] == 300 - backlog.count
        assert "webhook-dropped" in {line["event"] for line in log}
        it.receiver.sick.clear()
        await it.until(lambda: it.courier.waiting == 0)
        assert sorted(str(one["data"]["token"]) for one in it.receiver.taken) == sorted(
            str(token) for token in range(301 - backlog.count, 301)
        )
        for key in range(3):
            assert it.receiver.of(f"job-{key}") == sorted(it.receiver.of(f"job-{key}"))
        assert await it.store.outbox.backlogs() == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few keys at hand, read in small pages."""
    monkeypatch.setattr(courier, "MAX_HEADS", 10)
    monkeypatch.setattr(courier, "PAGE", 4)


@virtually
async def test_keys_at_hand_are_bounded(small: None) -> None:
    """Memory does not grow with what waits. Beyond the bound keys wait for one of those at hand; none is forgotten."""
    async with desk() as it:
        it.receiver.sick = {f"bad-{number}": Answer(500) for number in range(9)}
        for token in (1, 2, 3):
            for number in range(9):
                await it.raises(f"bad-{number}", token)
            for number in range(40):
                await it.raises(f"job-{number}", token)
        await it.until(lambda: it.courier.waiting == 27)
        assert it.courier.held_up == 9
        it.receiver.sick["job-0"] = DOWN
        await it.raises("job-0", 4)
        await asyncio.sleep(60)
        assert len(it.receiver.attempts("job-0")) > 3
        await it.raises("late", 1)
        await asyncio.sleep(600)
        assert it.receiver.of("late") == []
        it.receiver.sick.clear()
        await it.until(lambda: it.courier.waiting == 0)
        for number in range(9):
            assert it.receiver.of(f"bad-{number}") == [1, 2, 3]
        for number in range(1, 40):
            assert it.receiver.of(f"job-{number}") == [1, 2, 3]
        assert (it.receiver.of("job-0"), it.receiver.of("late")) == ([1, 2, 3, 4], [1])


@virtually
async def test_refusals_push_nothing_out() -> None:
    """A stale worker that tries for ever: so many refusals wait, the rest is counted; a completion is still told."""
    async with desk() as it:
        it.receiver.sick["*"] = DOWN
        with structlog.testing.capture_logs() as log:
            for number in range(3 * MAX_BEHIND_REFUSALS):
                it.store.record(Event("job", EventKind.REFUSED, 1, 2, f"attempt {number}"))
            it.store.record(Event("job-2", EventKind.COMPLETED, 7, 7))
        assert it.courier.waiting == MAX_BEHIND_REFUSALS + 2
        assert it.courier.dropped["refusals"] == 2 * MAX_BEHIND_REFUSALS - 1
        assert [line["reason"] for line in log if line["event"] == "webhook-dropped"] == ["refusals"]
        it.receiver.sick.clear()
        await it.until(lambda: it.receiver.of("job-2") == [7])


@virtually
async def test_the_log_is_told_once_when_a_receiver_goes_down_and_once_when_it_is_back() -> None:
    """Not of every attempt; and never of a secret."""
    async with desk() as it:
        with structlog.testing.capture_logs() as log:
            it.receiver.sick["*"] = DOWN
            await it.raises("job", 1)
            await it.until(lambda: it.courier.failed == FAILURES_UNTIL_DOWN + 3)
            it.receiver.sick.clear()
            await it.until(lambda: it.courier.waiting == 0)
        told = [line["event"] for line in log]
        assert [told.count(name) for name in ("webhook-down", "webhook-up")] == [1, 1]
        assert "MfKQ9" not in str(log)


# --- from run to run


@virtually
async def test_what_waits_is_taken_up_by_the_next_run() -> None:
    """A stop leaves it, and closes the way to the receiver; the next run posts it under the same ids, in order."""
    store = MemoryStore(clock=VirtualClock().wall)
    async with desk(store) as it:
        it.receiver.sick["*"] = DOWN
        await it.raises("job", 1, 2, 3)
        await it.until(lambda: it.receiver.posts)
        first = it
    assert first.receiver.closed
    async with desk(store) as it:
        assert it.courier.waiting == 3
        await it.until(lambda: it.courier.waiting == 0)
        assert it.receiver.ids == [f"handed_over:job:{token}" for token in (1, 2, 3)]
        assert it.receiver.ids[0] == first.receiver.posts[0][1]["webhook-id"]


@virtually
async def test_a_stop_lets_what_is_under_way_finish_for_a_moment() -> None:
    """So that an orderly stop announces nothing twice; what hangs is cut, and posted again."""
    store = MemoryStore(clock=VirtualClock().wall)
    async with desk(store) as it:
        it.receiver.takes_s = 0.5
        await it.raises("quick", 1)
        await it.until(lambda: it.receiver.under_way)
    assert it.receiver.of("quick") == [1]
    async with desk(store) as it:
        it.receiver.takes_s = 1000
        await it.raises("slow", 1)
        await it.until(lambda: it.receiver.under_way)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 10
    async with desk(store) as it:
        await it.until(lambda: it.courier.waiting == 0)
        assert it.receiver.ids == ["handed_over:slow:1"]


@virtually
async def test_what_waits_for_a_webhook_that_is_no_more() -> None:
    """It is kept a week, in case the webhook was left out by mistake, then given up; both are logged."""
    store = MemoryStore(clock=VirtualClock().wall)
    async with desk(store) as it:
        it.receiver.sick["*"] = DOWN
        await it.raises("job", 1)
    clock = VirtualClock()
    for days, left in ((1, 1), (7, 0)):
        await asyncio.sleep(days * DAY_S)
        await store.start("rules")
        webhooks = Webhooks([], store, clock)
        with structlog.testing.capture_logs() as log:
            await webhooks.start()
        assert [(line["webhook"], line["waiting"]) for line in log] == [("first", left)]
        await webhooks.stop()
        await store.stop(clean=True)
