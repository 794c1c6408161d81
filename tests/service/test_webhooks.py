"""Announcements: what is told to whom, how it is signed, and what a receiver's answers mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from gateway.service.courier import NotTaken
from gateway.service.webhooks import Answer, Webhook, judge, signed
from gateway.stores.values import Event, EventKind
from tests.service.announcement_desk import DOWN, SECRET, desk, virtually

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
