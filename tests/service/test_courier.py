"""What waits for a receiver, in virtual time: in which order it goes, and what one that fails costs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from itertools import cycle, pairwise

import pytest
import structlog

from gateway.service.courier import NotTaken, Pace
from gateway.service.webhooks import Answer
from gateway.stores.base import StoreUnavailable
from tests.service.announcement_desk import DAY_S, DOWN, Receiver, desk, virtually

# --- order, and what holds up what


@virtually
async def test_in_order_for_each_key_whatever_fails() -> None:
    """Posts under way at once, failures at random: of each key the receiver gets all, each after the one before."""
    chance = random.Random(5)
    async with desk() as it:

        async def moody(headers: Mapping[str, str], body: bytes) -> Answer:
            await asyncio.sleep(chance.random())
            if chance.random() < 0.4:
                raise NotTaken("mood")
            it.receiver.taken.append(json.loads(body))
            return Answer(200)

        it.receiver.post = moody
        for token in range(1, 21):
            for key in "abcdefghij":
                await it.raises(key, token)
            await asyncio.sleep(chance.random())
        await it.until(lambda: it.courier.waiting == 0)
        for key in "abcdefghij":
            assert it.receiver.of(key) == list(range(1, 21)), key
        assert len(it.receiver.taken) == 200
        assert it.courier.failed > 50


@virtually
async def test_a_key_that_is_choked_on_holds_up_no_other() -> None:
    """The receiver never takes `bad`: that waits, everything else arrives at once, however much of `bad` there is."""
    async with desk() as it:
        it.receiver.sick["bad"] = Answer(500)
        await it.raises("bad", *range(1, 400))
        await it.raises("good", 1)
        began = asyncio.get_running_loop().time()
        await it.until(lambda: it.receiver.of("good"))
        assert asyncio.get_running_loop().time() - began < 1
        for _ in range(20):
            await asyncio.sleep(600)
            now, token = asyncio.get_running_loop().time(), len(it.receiver.of("good")) + 1
            await it.raises("good", token)
            await it.until(lambda token=token: token in it.receiver.of("good"))
            assert asyncio.get_running_loop().time() - now <= 2 * Pace().down_s
        assert it.receiver.of("bad") == []
        assert it.courier.held_up == 1
        del it.receiver.sick["bad"]
        await it.until(lambda: it.courier.waiting == 0)
        assert it.receiver.of("bad") == list(range(1, 400))


def hang(receiver: Receiver) -> None:
    """It takes what is sound at once, and runs into the time-out with every key that begins with `bad`."""

    async def post(headers: Mapping[str, str], body: bytes) -> Answer:
        told = json.loads(body)
        if str(told["subject"]).startswith("bad"):
            await asyncio.sleep(15)
            raise NotTaken("it did not answer within 15 s")
        receiver.taken.append(told)
        return Answer(200)

    receiver.post = post


@virtually
async def test_keys_that_hang_leave_room_for_sound_ones() -> None:
    """A hundred keys run into the time-out over and over; a sound one does not wait for them."""
    async with desk() as it:
        hang(it.receiver)
        for number in range(100):
            await it.raises(f"bad-{number}", 1)
        await asyncio.sleep(3600)
        for token in range(1, 30):
            now = asyncio.get_running_loop().time()
            await it.raises("good", token)
            await it.until(lambda token=token: token in it.receiver.of("good"))
            assert asyncio.get_running_loop().time() - now < 2 * (Pace().down_s + 15) + 2
        assert it.courier.taken == 29


@virtually
async def test_retries_leave_half_of_the_places() -> None:
    """Sixteen keys hang for the whole time-out each time; what is sound goes at once all the same."""
    async with desk() as it:
        hang(it.receiver)
        for number in range(16):
            await it.raises(f"bad-{number}", 1)
        for token in range(1, 900):
            await it.raises("good", token)
            await asyncio.sleep(1)
            assert token < 150 or token in it.receiver.of("good")
        assert it.courier.failed > 16


@virtually
async def test_new_ones_do_not_keep_old_ones_from_their_turn() -> None:
    """A receiver that is down is asked with the old too, however many new ones come."""
    async with desk() as it:
        it.receiver.sick["*"] = DOWN
        await it.raises("old", 1)
        await asyncio.sleep(1800)
        tried = len(it.receiver.attempts("old"))
        for number in range(1800):
            await it.raises(f"new-{number}", 1)
            await asyncio.sleep(1)
        assert len(it.receiver.attempts("old")) > tried


@virtually
async def test_posts_at_a_time_are_bounded() -> None:
    """However many keys have something to tell."""
    async with desk() as it:
        it.receiver.takes_s = 1.0
        for number in range(50):
            await it.raises(f"job-{number}", 1)
        await it.until(lambda: it.courier.waiting == 0)
        assert it.receiver.most_under_way == Pace().at_a_time


# --- how it comes again


@virtually
async def test_pauses_grow_and_are_drawn() -> None:
    """After each failure the pause doubles up to its bound, and is drawn between its half and the whole."""
    async with desk() as it:
        it.receiver.sick["*"] = Answer(500)
        draws = cycle([0.0, 1.0])
        it.clock.chance = lambda: next(draws)
        await it.raises("job", 1)
        await it.until(lambda: len(it.receiver.posts) == 7)
        at = it.receiver.attempts("job")
        pauses = [b - a - it.receiver.takes_s for a, b in pairwise(at)]
        assert pauses == pytest.approx([0.5, 2, 2, 8, 8, 32], abs=0.01)
        await asyncio.sleep(2 * DAY_S)
        at = it.receiver.attempts("job")
        assert max(b - a for a, b in pairwise(at)) <= Pace().most_s + 1


@virtually
async def test_a_day_down_loses_nothing_and_costs_little() -> None:
    """A thousand jobs, a receiver that is gone for a day: one post at a time with pauses; once it is back all arrives
    within a minute, in order."""
    async with desk() as it:
        it.receiver.sick["*"] = DOWN
        for number in range(500):
            await it.raises(f"job-{number}", 1, 2)
        await asyncio.sleep(3600)
        assert it.courier.down
        settled = len(it.receiver.posts)
        it.receiver.most_under_way = 0
        await asyncio.sleep(DAY_S)
        assert it.receiver.most_under_way == 1
        assert len(it.receiver.posts) - settled <= 2 * DAY_S / Pace().down_s + 1
        assert len(it.receiver.posts) - settled >= DAY_S / Pace().down_s - 1
        it.receiver.sick.clear()
        back = asyncio.get_running_loop().time()
        await it.until(lambda: it.courier.waiting == 0)
        assert asyncio.get_running_loop().time() - back < 60
        assert not it.courier.down
        for number in range(500):
            assert it.receiver.of(f"job-{number}") == [1, 2]


@virtually
async def test_while_down_new_ones_are_tried_too() -> None:
    """Old and new take turns: a receiver that has given up the old keys is not taken for dead."""
    async with desk() as it:
        it.receiver.sick["*"] = DOWN
        for number in range(200):
            await it.raises(f"old-{number}", 1)
        await asyncio.sleep(3600)
        it.receiver.sick = {f"old-{number}": Answer(500) for number in range(200)}
        await it.raises("new", 1)
        await it.until(lambda: it.receiver.of("new"), within_s=2 * Pace().down_s + 2)
        assert it.courier.last_taken_at > 0


@virtually
async def test_a_receiver_that_wants_to_be_left_alone_is() -> None:
    """Retry-After of a 429 holds for all keys; beyond an hour it is not believed."""
    async with desk() as it:
        it.receiver.sick["*"] = Answer(429, 100.0)
        await it.raises("a", 1)
        await it.until(lambda: it.receiver.posts)
        await asyncio.sleep(1)
        await it.raises("b", 1)
        await asyncio.sleep(90)
        assert len(it.receiver.posts) == 1
        it.receiver.sick["*"] = Answer(503, 1e9)
        await it.until(lambda: len(it.receiver.posts) > 1)
        it.receiver.sick.clear()
        await it.until(lambda: it.courier.waiting == 0, within_s=Pace().wish_s + 60)


@virtually
async def test_gone_is_asked_again_after_an_hour() -> None:
    """410: posts end, nothing is lost, the standing says so; the operator who mends it need not tell the gateway."""
    async with desk() as it:
        it.receiver.sick["*"] = Answer(410)
        await it.raises("job", 1)
        await it.until(lambda: it.courier.gone)
        await it.raises("other", 1)
        await asyncio.sleep(Pace().wish_s - 60)
        assert len(it.receiver.posts) == 1
        it.receiver.sick.clear()
        await it.until(lambda: it.courier.waiting == 0, within_s=120)
        assert not it.courier.gone
        assert sorted(map(str, it.receiver.ids)) == ["handed_over:job:1", "handed_over:other:1"]


@virtually
async def test_a_fault_of_our_own_is_no_end() -> None:
    """What nobody thought of is logged, and the post made again."""
    async with desk() as it:
        it.receiver.sick["*"] = RuntimeError("unheard of")
        with structlog.testing.capture_logs() as log:
            await it.raises("job", 1)
            await it.until(lambda: it.courier.failed == 2)
        assert {"internal-error", "webhook-fails"} == {line["event"] for line in log}
        it.receiver.sick.clear()
        await it.until(lambda: it.receiver.of("job") == [1])


@virtually
async def test_without_the_store_it_waits() -> None:
    """A store that fails for a while loses nothing."""
    async with desk() as it:
        waiting, failures = it.store.outbox.waiting, iter([True, True])

        async def failing(*asked: object) -> list[object]:
            if next(failures, False):
                raise StoreUnavailable("disk full")
            return await waiting(*asked)

        it.store.outbox.waiting = failing
        await it.raises("job", 1)
        await it.until(lambda: it.receiver.of("job") == [1])
        assert it.courier.last_error == "disk full"
