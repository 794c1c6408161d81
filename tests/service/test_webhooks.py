"""Announcements in virtual time: what is told to whom, in which order, and what a receiver that fails costs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise

import pytest
import structlog
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from gateway.service import courier
from gateway.service.courier import FAILURES_UNTIL_DOWN, NotTaken, Pace
from gateway.service.webhooks import MAX_BEHIND_REFUSALS, Answer, Webhook, Webhooks, judge, signed
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind
from tests.virtual_time import VirtualClock, run

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DAY_S = 86400.0
DOWN = NotTaken("no connection")


def virtually(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in virtual time: days pass in no time, and the same way each time."""

    @wraps(test)
    def run_it(**given: object) -> None:
        run(test(**given))

    return run_it


@dataclass
class Receiver:
    """Takes posts; what is in `sick` says by key (or for all, under "*") what it does instead."""

    sick: dict[str, NotTaken | Answer | Exception] = field(default_factory=dict)
    takes_s: float = 0.01
    posts: list[tuple[float, dict[str, str], dict[str, object]]] = field(default_factory=list)
    """Every attempt: when, headers, body."""
    taken: list[dict[str, object]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    closed: bool = False

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        told = json.loads(body)
        self.posts.append((asyncio.get_running_loop().time(), dict(headers), told))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.under_way -= 1
        answer = self.sick.get("*") or self.sick.get(told["subject"]) or Answer(204)
        if isinstance(answer, Exception):
            raise answer
        if answer.status < 300:
            self.taken.append(told)
        return answer

    async def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[object]:
        return [told["id"] for told in self.taken]

    def of(self, key: str) -> list[object]:
        """The tokens that were taken of a key, in their order."""
        return [told["data"]["token"] for told in self.taken if told["subject"] == key]

    def attempts(self, key: str) -> list[float]:
        """When announcements of a key were posted."""
        return [at for at, _, told in self.posts if told["subject"] == key]


class Desk:
    """A store, its webhooks and their receivers, in virtual time."""

    def __init__(self, store: MemoryStore, **settings: object) -> None:
        self.clock = VirtualClock()
        self.store = store
        self.receiver, self.other = Receiver(), Receiver()
        self.webhook = Webhook("first", (SECRET,), **settings)
        self.webhooks = Webhooks(
            [(self.webhook, self.receiver), (Webhook("other", (SECRET,), ("none",)), self.other)],
            store,
            self.clock,
            Pace(),
        )
        (_, self.courier), _ = self.webhooks.all

    async def raises(self, key: str, *tokens: int) -> None:
        for token in tokens:
            await self.store.raise_floor(key, token, Event(key, EventKind.RAISED, token, token - 1, "check"))

    async def until(self, come_about: Callable[[], object], within_s: float = 3 * DAY_S) -> None:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while not come_about():
                await asyncio.sleep(0.05 + (asyncio.get_running_loop().time() - began) / 100)


@asynccontextmanager
async def desk(store: MemoryStore | None = None, **settings: object) -> AsyncIterator[Desk]:
    clock = VirtualClock()
    store = store or MemoryStore(clock=clock.wall)
    await store.start("rules")
    it = Desk(store, **settings)
    await it.webhooks.start()
    yield it
    await it.webhooks.stop()
    await store.stop(clean=True)


# --- what is told


@virtually
async def test_each_kind_of_event_has_its_topic() -> None:
    """Hand-overs by a write or a grant, completions, dead letters and refusals are told, and nothing else is."""
    async with desk() as it:
        for number, kind in enumerate(EventKind):
            it.store.record(Event(f"job-{number}", kind, 5, 5))
        await it.until(lambda: it.courier.waiting == 0)
        told = {list(EventKind)[int(str(one["subject"])[4:])]: one["type"] for one in it.receiver.taken}
        assert told == {
            EventKind.RAISED: "fencing.handed_over",
            EventKind.GRANTED: "fencing.handed_over",
            EventKind.COMPLETED: "fencing.completed",
            EventKind.DEAD_LETTERED: "fencing.dead_lettered",
            EventKind.REFUSED: "fencing.refused",
        }


@virtually
async def test_what_is_told() -> None:
    """A CloudEvent in JSON whose id, subject and data name job and token, and the floor as it is now."""
    async with desk() as it:
        await it.raises("job-1", 34)
        await it.until(lambda: it.receiver.taken)
        ((_, headers, told),) = it.receiver.posts
        assert headers["content-type"] == "application/cloudevents+json"
        assert (told["id"], told["subject"], told["source"]) == (
            "handed_over:job-1:34",
            "job-1",
            "urn:fencing-gateway:memory",
        )
        assert told["data"] == {
            "key": "job-1",
            "token": 34,
            "floor": 34,
            "detail": "check",
            "request_id": "",
            "count": 1,
        }
        assert headers["webhook-id"] == told["id"]


@virtually
async def test_who_wants_what() -> None:
    """Patterns on topic and key decide; what nobody wants waits for nobody."""
    async with desk(events=("fencing.comp*", "fencing.refused"), keys=("job-*",)) as it:
        for key in ("job-1", "other"):
            for kind in (EventKind.COMPLETED, EventKind.RAISED, EventKind.REFUSED):
                it.store.record(Event(key, kind, 5, 5))
        await it.until(lambda: it.courier.waiting == 0)
        assert [(one["type"], one["subject"]) for one in it.receiver.taken] == [
            ("fencing.completed", "job-1"),
            ("fencing.refused", "job-1"),
        ]
        assert it.other.posts == []
        assert await it.store.outbox.backlogs() == []


# --- signatures


def test_the_published_example() -> None:
    """The id, time, body and secret that the scheme's own libraries are tried with give the signature they expect."""
    headers = signed([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("size", [24, 32, 64])
def test_signatures_are_those_of_hmac(size: int) -> None:
    """By the words of the specification: HMAC-SHA256 of id, time and body with dots between, in base64."""
    key = random.Random(size).randbytes(size)
    headers = signed(["whsec_" + base64.b64encode(key).decode()], "refused:a:1:2", 1_700_000_000, '{"ü":1}'.encode())
    proof = hmac.new(key, 'refused:a:1:2.1700000000.{"ü":1}'.encode(), hashlib.sha256).digest()
    assert headers == {
        "webhook-id": "refused:a:1:2",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1," + base64.b64encode(proof).decode(),
    }


def test_while_secrets_change_either_verifies() -> None:
    """Each secret signs; a receiver that knows one of them believes, one that knows another does not."""
    import time

    others = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in range(3)]
    headers = signed(others[:2], "completed:a:1", int(time.time()), b"{}")
    assert [Verifier(one).verify(b"{}", headers) for one in others[:2]] == [{}, {}]
    with pytest.raises(WebhookVerificationError):
        Verifier(others[2]).verify(b"{}", headers)


def test_secrets_are_not_shown() -> None:
    """Not by the value that holds them."""
    assert "MfKQ9" not in repr(Webhook("first", (SECRET,)))


@virtually
async def test_each_attempt_has_its_own_time_and_the_same_id() -> None:
    """A receiver refuses what is older than five minutes: an attempt is signed when it is made."""
    async with desk() as it:
        it.receiver.sick["*"] = DOWN
        await it.raises("job", 1)
        await it.until(lambda: len(it.receiver.posts) == 6)
        assert {headers["webhook-id"] for _, headers, _ in it.receiver.posts} == {"handed_over:job:1"}
        times = [int(headers["webhook-timestamp"]) for _, headers, _ in it.receiver.posts]
        assert times == [int(1_800_000_000 + at) for at, _, _ in it.receiver.posts]
        assert len({str(told) for _, _, told in it.receiver.posts}) == 1


# --- what answers mean


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success(status: int) -> None:
    """Every 2xx has taken the announcement."""
    judge(Answer(status))


@pytest.mark.parametrize("status", [199, 300, 302, 307, 400, 404, 409, 413, 429, 500, 503])
def test_no_success(status: int) -> None:
    """Everything else has not, and what it was is told."""
    with pytest.raises(NotTaken, match=str(status)):
        judge(Answer(status))


@pytest.mark.parametrize(("status", "heeded"), [(429, 7.0), (503, 7.0), (500, 0.0), (404, 0.0)])
def test_the_wish_to_be_left_alone(status: int, heeded: float) -> None:
    """Retry-After counts where the receiver says that it has too much to do."""
    with pytest.raises(NotTaken) as raised:
        judge(Answer(status, 7.0))
    assert raised.value.pause_s == heeded


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


@virtually
async def test_keys_that_hang_leave_room_for_sound_ones() -> None:
    """A hundred keys run into the time-out over and over; a sound one does not wait for them."""
    async with desk() as it:
        it.receiver.takes_s = 0.01

        async def post(headers: Mapping[str, str], body: bytes) -> Answer:
            told = json.loads(body)
            if str(told["subject"]).startswith("bad"):
                await asyncio.sleep(15)
                raise NotTaken("it did not answer within 15 s")
            it.receiver.taken.append(told)
            return Answer(200)

        it.receiver.post = post
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

        async def post(headers: Mapping[str, str], body: bytes) -> Answer:
            told = json.loads(body)
            if str(told["subject"]).startswith("bad"):
                await asyncio.sleep(15)
                raise NotTaken("it did not answer within 15 s")
            it.receiver.taken.append(told)
            return Answer(200)

        it.receiver.post = post
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
        draws = iter([0.0, 1.0] * 100)
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
