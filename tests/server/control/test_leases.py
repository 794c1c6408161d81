"""Leases over the control API: what is asked, and every answer (docs/leases.md)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from gateway.core.keys import FencingKey, Token
from gateway.core.lease import Caps
from gateway.server.control.leases import LeaseCalls
from gateway.service.leases import LeaseTerms
from gateway.stores.rules import completed
from tests.server.control.desk import JOB, LEASE_ASKED, Desk, Make, desk, make
from tests.server.control.rig import (
    AWKWARD,
    AWKWARD_RAW,
    HUGE,
    TIME,
    TOKENS,
    WORKER,
    BreakableStore,
    staged,
)

__all__ = ["desk", "make"]


async def test_a_lease_from_grant_to_release(desk: Desk) -> None:
    """201, renewed as often as liked, 204; the floor stays, and the next token is higher."""
    status, lease = await desk.call("POST", JOB, LEASE_ASKED)
    assert (status, lease) == (
        201,
        {"key": "job-1", "token": 1, "holder": "A", "ttl_s": 30, "expires_in_s": lease["expires_in_s"]},
    )
    assert 29 < lease["expires_in_s"] <= 30
    for token in (1, "1"):
        status, renewed = await desk.call("POST", f"{JOB}/renew", {"token": token})
        assert (status, renewed["token"], renewed["holder"]) == (200, 1, "A")
        assert 29 < renewed["expires_in_s"] <= 30
    for _ in range(2):
        assert await desk.call("DELETE", f"{JOB}?token=1") == (204, None)
    _, fence = await desk.call("GET", "/v1/fences/job-1")
    assert (fence["floor"], fence["sealed"], fence["holder"], fence["lease"]) == (1, True, None, None)
    assert (await desk.acquire(holder="B"))["token"] == 2


async def test_a_held_key_is_409_with_holder_and_remaining_time(desk: Desk) -> None:
    """Also to the holder himself, asking anew."""
    await desk.acquire()
    for holder in "BA":
        status, problem = await desk.call("POST", JOB, LEASE_ASKED | {"holder": holder})
        assert (status, problem["reason"], problem["key"], problem["holder"]) == (409, "held", "job-1", "A")
        assert 29 < problem["expires_in_s"] <= 30
        assert problem["free_in_s"] == problem["expires_in_s"] == round(problem["expires_in_s"], 3)
        assert problem["title"] == "Conflict"


async def test_a_lost_lease_is_409_with_the_floor(desk: Desk) -> None:
    """Overtaken or sealed, to renew and to release; what was never granted is 400."""
    await desk.acquire()
    live = await desk.fences.admit(FencingKey("job-1"), Token(HUGE), cause="operator", issued=True)
    desk.fences.unpin(live)
    for method, target, body in (("POST", f"{JOB}/renew", {"token": 1}), ("DELETE", f"{JOB}?token=1", None)):
        status, problem = await desk.call(method, target, body)
        assert (status, problem["reason"], problem["floor"]) == (409, "lost", str(HUGE))
    for method, target, body in (("POST", f"{JOB}/renew", {"token": 2}), ("DELETE", f"{JOB}?token=2", None)):
        status, problem = await desk.call(method, target, body)
        assert (status, problem["reason"]) == (400, "TokenNotIssued")
        assert problem["detail"] == "No lease of 'job-1' has been granted with token 2; the highest was 1."
    status, problem = await desk.call("POST", "/v1/leases/never/renew", {"token": 2})
    assert problem["detail"] == "No lease of 'never' has been granted with token 2; none has been granted at all."
    status, problem = await desk.call("POST", JOB, LEASE_ASKED)
    assert (status, problem["reason"]) == (409, "exhausted")


async def test_check_takes_no_token_that_no_lease_has_issued(desk: Desk) -> None:
    """R10: the key's tokens are the leases', and an operator's `raise` is the way past."""
    await desk.acquire()
    status, problem = await desk.call("POST", "/v1/fences/job-1/check", {"token": 2})
    assert (status, problem["reason"], problem["floor"]) == (400, "TokenNotIssued", 1)
    assert (await desk.call("POST", "/v1/fences/job-1/check", {"token": 1}))[0] == 200
    assert (await desk.call("POST", "/v1/fences/job-1/raise", {"token": 7, "reason": "x"}))[0] == 200
    assert (await desk.acquire(holder="B"))["token"] == 8


async def test_a_repeated_idempotency_key_is_answered_the_same(desk: Desk) -> None:
    """The same grant; with another body 422; lost meanwhile 409."""
    for _ in range(2):
        status, lease = await desk.call("POST", JOB, LEASE_ASKED, Idempotency_Key="once")
        assert (status, lease["token"]) == (201, 1)
    status, problem = await desk.call("POST", JOB, LEASE_ASKED | {"holder": "B"}, Idempotency_Key="once")
    assert (status, problem["reason"]) == (422, "idempotency-key-reused")
    await desk.call("DELETE", f"{JOB}?token=1")
    status, problem = await desk.call("POST", JOB, LEASE_ASKED, Idempotency_Key="once")
    assert (status, problem["reason"], problem["token"], problem["floor"]) == (409, "lost", 1, 1)


async def test_a_pending_hand_over_is_503_and_the_same_grant_later(make: Make) -> None:
    """Asked again with the same key it is granted when lower sends have settled, with the token that it has had."""
    desk = await make(handover_wait_s=0.05)
    live = await desk.fences.admit(FencingKey("job-1"), Token(5), cause="test")
    passage = staged(desk, live, Token(5))  # type: ignore[arg-type]
    passage.commit()
    status, problem = await desk.call("POST", JOB, LEASE_ASKED, Idempotency_Key="once")
    assert (status, problem["reason"]) == (503, "HandoverPending")
    _, fence = await desk.call("GET", "/v1/fences/job-1")
    assert (fence["lease"]["token"], fence["lease"]["pending"]) == (6, True)
    _, listed = await desk.call("GET", "/v1/leases")
    assert listed["leases"][0]["pending"]
    passage.applied()
    status, lease = await desk.call("POST", JOB, LEASE_ASKED, Idempotency_Key="once")
    assert (status, lease["token"]) == (201, 6)


async def test_who_waits_in_line_is_granted_the_key_on_release(desk: Desk) -> None:
    """A long poll; the answer comes with the release, not after a time-out."""
    await desk.acquire()
    waiting = asyncio.create_task(desk.call("POST", JOB, LEASE_ASKED | {"holder": "B", "wait_s": 50}))
    while not desk.leases.waiting:
        await asyncio.sleep(0.001)
    await desk.call("DELETE", f"{JOB}?token=1")
    status, lease = await waiting
    assert (status, lease["token"], lease["holder"]) == (201, 2, "B")


async def test_who_hangs_up_in_line_is_granted_nothing(desk: Desk) -> None:
    """The key goes to the next, and the tokens know nothing of who has gone."""
    await desk.acquire()
    gone = asyncio.create_task(desk.call("POST", JOB, LEASE_ASKED | {"holder": "B", "wait_s": 50}))
    while not desk.leases.waiting:
        await asyncio.sleep(0.001)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    while desk.leases.waiting:
        await asyncio.sleep(0.001)
    await desk.call("DELETE", f"{JOB}?token=1")
    assert (await desk.acquire(holder="C"))["token"] == 2


@pytest.mark.parametrize(("key", "raw"), [(AWKWARD, AWKWARD_RAW), ("object:b/a b.exr", "object%3Ab%2Fa%20b.exr")])
async def test_any_key_may_be_leased(desk: Desk, key: str, raw: str) -> None:
    """Percent-encoded; an object without a rule by its own name, so that the token alone fences it."""
    assert (await desk.acquire(f"/v1/leases/{raw}"))["key"] == key
    assert (await desk.call("POST", f"/v1/leases/{raw}/renew", {"token": 1}))[0] == 200
    assert (await desk.call("DELETE", f"/v1/leases/{quote(key, safe='')}?token=1"))[0] == 204


@pytest.mark.parametrize(
    ("method", "target", "body", "said"),
    [
        ("POST", JOB, {"ttl_s": 30}, "holder"),
        ("POST", JOB, {"holder": "A"}, "ttl_s"),
        ("POST", JOB, LEASE_ASKED | {"holder": ""}, "holder"),
        ("POST", JOB, LEASE_ASKED | {"holder": "a\nb"}, "holder"),
        ("POST", JOB, LEASE_ASKED | {"holder": "a" * 257}, "holder"),
        ("POST", JOB, LEASE_ASKED | {"holder": 7}, "holder"),
        ("POST", JOB, LEASE_ASKED | {"ttl_s": 0}, "ttl_s"),
        ("POST", JOB, LEASE_ASKED | {"ttl_s": -1}, "ttl_s"),
        ("POST", JOB, LEASE_ASKED | {"ttl_s": 3601}, "max_ttl_s"),
        ("POST", JOB, LEASE_ASKED | {"ttl_s": "30"}, "ttl_s"),
        ("POST", JOB, LEASE_ASKED | {"wait_s": -1}, "wait_s"),
        ("POST", JOB, LEASE_ASKED | {"wait_s": None}, "wait_s"),
        ("POST", JOB, LEASE_ASKED | {"ttl": 30}, "ttl"),
        ("POST", JOB, b'{"holder": "A", "ttl_s": 1e999}', "ttl_s"),
        ("POST", JOB, b"[]", "JSON object"),
        ("POST", JOB, b"", "JSON object"),
        ("POST", f"{JOB}/renew", {}, "token"),
        ("POST", f"{JOB}/renew", {"token": 0}, "token"),
        ("DELETE", JOB, None, "token"),
        ("DELETE", f"{JOB}?token=1&token=2", None, "twice"),
        ("DELETE", f"{JOB}?token=x", None, "token"),
        ("GET", "/v1/leases?limit=0", None, "limit"),
    ],
)
async def test_what_cannot_be_meant_is_400(desk: Desk, method: str, target: str, body: object, said: str) -> None:
    """With a detail that names what is wrong, and no effect."""
    status, problem = await desk.call(method, target, body)
    assert status == 400
    assert said in problem["detail"]
    assert (await desk.store.fence("job-1")).floor == 0


async def test_a_wait_beyond_the_longest_is_cut(make: Make) -> None:
    """Not refused: who still wants to wait asks again."""
    desk = await make()
    calls = LeaseCalls(desk.leases, max_ttl_s=9, max_wait_s=0, credentials=lambda *_: None, output=lambda key: None)
    await desk.acquire()
    with pytest.raises(Exception, match="holds it"):
        await calls.acquire(_Ask(), FencingKey("job-1"), _Asked())  # type: ignore[arg-type]


class _Ask:
    caller = None
    headers: dict[str, str] = {}  # noqa: RUF012


class _Asked:
    holder, ttl_s, wait_s = "B", 5.0, 9999.0


async def test_caps_and_completion_have_answers_of_their_own(make: Make) -> None:
    """`limit` is not lost: the lease goes on to its end. A completed job is not leased again."""
    desk = await make(terms=LeaseTerms(Caps(max_renewals=0)))
    await desk.acquire()
    status, problem = await desk.call("POST", f"{JOB}/renew", {"token": 1})
    assert (status, problem["reason"], problem["token"]) == (409, "limit", 1)
    assert 29 < problem["expires_in_s"] <= 30
    await desk.acquire("/v1/leases/done")
    await desk.leases.end(FencingKey("done"), Token(1), lambda: _complete(desk.store))
    status, problem = await desk.call("POST", "/v1/leases/done", LEASE_ASKED)
    assert (status, problem["reason"], problem["token"]) == (409, "completed", 1)


async def _complete(store: BreakableStore) -> Any:
    return store._decide("done", 1, lambda fence: completed(fence, 1))


async def test_leases_are_listed_for_who_may_see_them(make: Make) -> None:
    """By key, in pages; each caller sees those of his patterns."""
    desk = await make(TOKENS)
    for key in ("job-1", "job-2", "other"):
        await desk.leases.acquire(FencingKey(key), "A", 30)
    status, page = await desk.call("GET", "/v1/leases?limit=1&prefix=job-", bearer=WORKER)
    assert (status, page["next"]) == (200, "job-1")
    (lease,) = page["leases"]
    assert TIME.fullmatch(lease.pop("granted_at"))
    assert 29 < lease.pop("expires_in_s") <= 30
    assert lease == {"key": "job-1", "token": 1, "holder": "A", "ttl_s": 30, "pending": False}
    _, page = await desk.call("GET", "/v1/leases?after=job-1", bearer=WORKER)
    assert ([one["key"] for one in page["leases"]], page["next"]) == (["job-2"], None)


async def test_leases_are_workers_calls_within_their_keys(make: Make) -> None:
    """401 without a token, 403 for another's key, and nothing happens."""
    desk = await make(TOKENS)
    for method, target, body in (
        ("POST", "/v1/leases/other", LEASE_ASKED),
        ("POST", "/v1/leases/other/renew", {"token": 1}),
        ("DELETE", "/v1/leases/other?token=1", None),
    ):
        assert (await desk.call(method, target, body))[0] == 401
        assert (await desk.call(method, target, body, WORKER))[0] == 403
    assert (await desk.call("POST", JOB, LEASE_ASKED, WORKER))[0] == 201
    assert (await desk.store.fence("other")).floor == 0


async def test_the_output_comes_with_the_lease(make: Make) -> None:
    """Where the rules give the job a place."""
    desk = await make(output="renders/1/final.mp4")
    assert (await desk.acquire())["output"] == "renders/1/final.mp4"


async def test_a_full_disk_and_a_stop_are_503(desk: Desk) -> None:
    """With Retry-After; nothing is granted."""
    desk.store.broken = True
    status, problem = await desk.call("POST", JOB, LEASE_ASKED)
    assert (status, problem["reason"]) == (503, "StoreUnavailable")
    desk.store.broken = False
    desk.leases.drain()
    status, problem = await desk.call("POST", JOB, LEASE_ASKED)
    assert (status, problem["reason"]) == (503, "Draining")


async def test_what_becomes_of_leases_is_counted(desk: Desk) -> None:
    """In the metrics, by event; those that are held, by number."""
    await desk.acquire()
    await desk.call("POST", JOB, LEASE_ASKED)
    await desk.call("POST", f"{JOB}/renew", {"token": 1})
    await desk.acquire("/v1/leases/job-2")
    await desk.call("DELETE", "/v1/leases/job-2?token=1")
    sample = desk.telemetry.registry.get_sample_value
    told = {
        event: sample("fencing_leases_total", {"event": event}) for event in ("granted", "renewed", "released", "held")
    }
    assert told == {"granted": 2, "renewed": 1, "released": 1, "held": 1}
    assert (sample("fencing_leases_held"), sample("fencing_leases_waiting")) == (1, 0)


async def test_a_fence_shows_its_lease(desk: Desk) -> None:
    """Holder and remaining time; the history names the grant and the release with their request."""
    await desk.call("POST", JOB, LEASE_ASKED, X_Request_Id="r-1")
    _, fence = await desk.call("GET", "/v1/fences/job-1")
    lease = fence["lease"]
    assert 29 < lease.pop("expires_in_s") <= 30
    assert (fence["holder"], lease) == ("A", {"token": 1, "holder": "A", "ttl_s": 30, "pending": False})
    await desk.call("DELETE", f"{JOB}?token=1", X_Request_Id="r-2")
    _, page = await desk.call("GET", "/v1/fences/job-1/events")
    assert [(e["kind"], e["token"], e["detail"], e["request_id"]) for e in page["events"]] == [
        ("released", 1, "A", "r-2"),
        ("granted", 1, "A for 30 s", "r-1"),
    ]
