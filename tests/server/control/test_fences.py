"""The calls about fences: what each does, tells and refuses."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.keys import FencingKey, Rule, Token, TokenLimits, compile_rule
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind
from gateway.telemetry import Telemetry
from tests.server.control.rig import (
    TIME,
    Listener,
    Make,
    in_doubt,
    listener,
    make,
    samples,
    staged,
    told,
)

__all__ = ["listener", "make"]


async def test_a_key_that_nobody_has_used(listener: Listener) -> None:
    """An unknown key is answered with zeros, and is not made by being asked for."""
    assert await listener.get("/v1/fences/k") == (
        200,
        {
            "key": "k",
            "floor": 0,
            "completed_floor": 0,
            "sealed": False,
            "shadow_floor": 0,
            "raised_at": None,
            "holder": None,
            "lease": None,
            "open_uploads": 0,
            "unsettled": [],
            "handover": None,
            "earlier_run_settles_in_s": None,
        },
    )
    assert await listener.get("/v1/fences") == (200, {"fences": [], "next": None})


async def test_check_records_the_token(listener: Listener) -> None:
    """`check` with a higher token is a hand-over: the floor is durable when it answers, and lower ones are stale."""
    assert await listener.post("/v1/fences/k/check", {"token": 34}) == (200, {"key": "k", "token": 34, "floor": 34})
    assert (await listener.store.fence("k")).floor == 34
    assert await listener.post("/v1/fences/k/check", {"token": "34"}) == (200, {"key": "k", "token": 34, "floor": 34})
    status, problem = await listener.post("/v1/fences/k/check", {"token": 33})
    assert (status, problem["reason"], problem["key"], problem["floor"]) == (412, "stale", "k", 34)


async def test_raise_and_seal_shut_tokens_out_and_say_why_in_the_history(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answer the new state, shut tokens out, and are in history and log with the operator's reason; a raise that
    raises nothing says so to an operator, and is in neither."""
    logged: list[tuple[str, int]] = []
    monkeypatch.setattr(Telemetry, "event", lambda _, name, **said: logged.append((name, said["token"])))
    status, fence = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "A is gone"})
    assert (status, fence["floor"], fence["completed_floor"], fence["sealed"]) == (200, 34, 34, False)
    assert TIME.fullmatch(fence["raised_at"])
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 33, "reason": "back"})
    assert (status, problem["reason"], problem["floor"]) == (412, "stale", 34)
    assert problem["detail"] == "The floor of 'k' is 34 already, and never falls: nothing was raised."
    status, fence = await listener.post("/v1/fences/k/seal", {"reason": "done"})
    assert (status, fence["floor"], fence["sealed"]) == (200, 34, True)
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "back"})
    assert (status, problem["reason"], problem["floor"]) == (412, "stale", 34)
    assert problem["detail"] == "Token 34 of 'k' is sealed: nothing was raised. A higher one may hold it."
    status, problem = await listener.post("/v1/fences/k/check", {"token": 34})
    assert (status, problem["reason"]) == (412, "stale")
    events = (await listener.get("/v1/fences/k/events"))[1]["events"]
    assert [(e["kind"], e["token"], e["detail"]) for e in events] == [
        ("sealed", 34, "operator: done"),
        ("raised", 34, "operator: A is gone"),
    ]
    assert logged == [("operator-raises", 34), ("operator-seals", 34)]


async def test_the_log_tells_of_no_raise_that_the_store_has_not_made(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that failed, nor of a floor that stood there; but of one whose hand-over is still waited for."""
    logged: list[tuple[str, int]] = []
    monkeypatch.setattr(Telemetry, "event", lambda _, name, **said: logged.append((name, said["token"])))
    live = await listener.fences.admit(FencingKey("k"), Token(33), cause="test")
    listener.store.broken = True
    assert (await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"}))[0] == 503
    listener.store.broken = False
    assert (await listener.post("/v1/fences/k/raise", {"token": 33, "reason": "x"}))[0] == 200
    assert logged == []
    with staged(listener, live, Token(33)) as passage:
        passage.commit()
        passage.lost()
        for _ in range(2):
            status, problem = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"})
            assert (status, problem["reason"]) == (503, "HandoverPending")
    assert logged == [("operator-raises", 34)]


async def test_seal_needs_a_floor(listener: Listener) -> None:
    """Where no token has been seen there is none to seal: 404, and nothing is recorded."""
    status, problem = await listener.post("/v1/fences/k/seal", {"reason": "x"})
    assert (status, problem["reason"], problem["key"]) == (404, "not-found", "k")
    assert await listener.get("/v1/fences/k/events") == (200, {"events": [], "next": None})


async def test_a_raise_waits_for_what_is_unsettled(listener: Listener) -> None:
    """A send in doubt is shown with its deadline; a raise over it is 503 HandoverPending with Retry-After, the floor
    risen all the same; once the send is settled it is 200."""
    key, token = FencingKey("k"), Token(33)
    live = await listener.fences.admit(key, token, cause="test")
    with staged(listener, live, token) as passage:
        passage.commit()
        (send,) = (await listener.get("/v1/fences/k"))[1]["unsettled"]
        assert (send["phase"], send["settles_in_s"]) == ("committing", None)
        assert 85 < send["latest_in_s"] <= 90
        passage.lost()
        (send,) = (await listener.get("/v1/fences/k"))[1]["unsettled"]
        assert 25 < send.pop("settles_in_s") == send.pop("latest_in_s") <= 30
        assert send == {"token": 33, "phase": "in-doubt", "bucket": "b", "object": "o", "request_id": "request-1"}
        answer = await listener.client.post("/v1/fences/k/raise", json={"token": 34, "reason": "x"})
        status, problem = await told(answer)
        assert (status, problem["reason"], problem["floor"]) == (503, "HandoverPending", 34)
        assert int(answer.headers["Retry-After"]) >= 1
        passage.nonce_seen()
    status, fence = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"})
    assert (status, fence["completed_floor"]) == (200, 34)


# --- hand-overs that wait, and what an operator does about them


async def test_a_hand_over_that_waits_is_shown(make: Make) -> None:
    """Which token, since when, for which sends, until when at the latest, for how many requests; and in metrics."""
    listener = await make(handover_wait_s=30)
    async with in_doubt(listener, 33, 33) as (_, awaited):
        waiter = asyncio.create_task(listener.fences.admit(FencingKey("k"), Token(34), cause="test"))
        while not (shown := (await listener.get("/v1/fences/k"))[1]["handover"]):
            await asyncio.sleep(0)
        assert (shown["token"], shown["requests"]) == (34, 1)
        assert TIME.fullmatch(shown["since"])
        assert TIME.fullmatch(shown["latest"])
        assert sorted((s["token"], s["phase"]) for s in shown["sends"]) == [(33, "committing"), (33, "in-doubt")]
        assert 85 < shown["latest_in_s"] <= 90
        found = await samples(listener)
        assert found["fencing_handovers_waiting"] == 1
        assert found["fencing_handover_wait_seconds"] > 0
        awaited.applied()
        assert (await listener.get("/v1/fences/k"))[1]["handover"]["latest_in_s"] <= 30
        assert (await listener.post("/v1/fences/k/settle", {"reason": "store restarted"}))[1]["handover"] is None
        listener.fences.unpin(await waiter)
    assert (await samples(listener))["fencing_handovers_waiting"] == 0


async def test_settle_lets_the_hand_over_through_and_is_recorded(listener: Listener) -> None:
    """R5: on the operator's word what is in doubt is settled, each with the reason in the history; asked again there is
    nothing to settle, and nothing more is recorded."""
    async with in_doubt(listener, 33, 33) as (_, awaited):
        awaited.refused()
        assert (await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"}))[0] == 503
        status, answer = await listener.post("/v1/fences/k/settle", {"reason": "store wiped"})
        assert (status, answer["unsettled"], answer["handover"]) == (200, [], None)
        assert [(s["token"], s["object"], s["request_id"]) for s in answer["settled"]] == [(33, "o", "request-1")]
        status, answer = await listener.post("/v1/fences/k/settle", {"reason": "again"})
        assert (status, answer["settled"]) == (200, [])
        status, fence = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"})
        assert (status, fence["completed_floor"]) == (200, 34)
    assert await settlings(listener) == [(33, "b/o: store wiped", "request-1")]
    assert (await samples(listener))["fencing_sends_settled_by_operator"] == 1


async def test_settle_leaves_alone_what_still_awaits_its_answer(listener: Listener) -> None:
    """R5: its connection is open and may deliver yet: 409, and the hand-over goes on waiting for it."""
    async with in_doubt(listener, 33) as (awaited,):
        status, problem = await listener.post("/v1/fences/k/settle", {"reason": "x"})
        assert (status, problem["reason"], problem["key"]) == (409, "committing", "k")
        assert awaited.committed
        assert (await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"}))[0] == 503
        awaited.applied()


async def test_settle_can_be_held_to_one_token(listener: Listener) -> None:
    """What another token has in doubt stays so."""
    async with in_doubt(listener, 33, 33) as (_, awaited):
        awaited.lost()
        assert (await listener.post("/v1/fences/k/settle", {"reason": "x", "token": 32}))[1]["settled"] == []
        assert len((await listener.post("/v1/fences/k/settle", {"reason": "x", "token": 33}))[1]["settled"]) == 2


async def settlings(listener: Listener) -> list[tuple[int, str, str]]:
    """Token, detail and request of each in the history of k."""
    events = (await listener.get("/v1/fences/k/events"))[1]["events"]
    return [(e["token"], e["detail"], e["request_id"]) for e in events if e["kind"] == "settled-by-operator"]


async def test_a_settling_that_cannot_be_recorded_is_not_done(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5, recorded: without the database the doubt stays, and no history tells later of what was not done."""

    async def fails() -> None:
        raise StoreUnavailable("disk full")

    async with in_doubt(listener, 33, 33) as (_, awaited):
        awaited.refused()
        with monkeypatch.context() as full:
            full.setattr(listener.store, "check", fails)
            assert (await listener.post("/v1/fences/k/settle", {"reason": "x"}))[0] == 503
        assert len((await listener.get("/v1/fences/k"))[1]["unsettled"]) == 1
        assert await settlings(listener) == []


async def test_what_settles_meanwhile_is_not_the_operators(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a nonce turns up while the operator's word is on its way to the disk, the history tells of no other."""
    async with in_doubt(listener, 33, 33) as (doubtful, awaited):
        awaited.refused()

        async def slow() -> None:
            doubtful.nonce_seen()

        monkeypatch.setattr(listener.store, "check", slow)
        status, answer = await listener.post("/v1/fences/k/settle", {"reason": "x"})
        assert (status, answer["settled"], answer["unsettled"]) == (200, [], [])
        assert await settlings(listener) == []


async def test_seal_waits_for_nothing_and_seals_the_token_that_was_meant(listener: Listener) -> None:
    """R3: sealed at once, though 33 may still land; a named token that no longer holds the floor is 412, one that does
    not hold it yet 409, and neither seals another's."""
    async with in_doubt(listener, 33, 33) as (_, awaited):
        awaited.refused()
        assert (await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "x"}))[0] == 503
        status, problem = await listener.post("/v1/fences/k/seal", {"reason": "x", "token": 33})
        assert (status, problem["reason"], problem["floor"]) == (412, "stale", 34)
        status, problem = await listener.post("/v1/fences/k/seal", {"reason": "x", "token": 35})
        assert (status, problem["reason"], problem["floor"]) == (409, "not-held", 34)
        assert (await listener.store.fence("k")).sealed_token == 0
        for _ in range(2):
            status, answer = await listener.post("/v1/fences/k/seal", {"reason": "runaway", "token": 34})
            assert (status, answer["sealed"], len(answer["unsettled"])) == (200, True, 1)
        assert (await listener.post("/v1/fences/k/check", {"token": 34}))[0] == 412
    sealed = [e for e in (await listener.get("/v1/fences/k/events"))[1]["events"] if e["kind"] == "sealed"]
    assert [(e["token"], e["detail"]) for e in sealed] == [(34, "operator: runaway")]


async def test_check_is_held_to_the_limits_of_its_keys_rules_and_raise_is_not(make: Make) -> None:
    """R10: a token too high is 400 TokenJump and raises nothing; an operator's `raise` is the way past, recorded; from
    there `check` goes on."""
    rule = Rule(*compile_rule("renders/{job}/**", "{job}"), limits=TokenLimits(first_token=10, jump=5))
    listener = await make(rules=(rule,))
    status, problem = await listener.post("/v1/fences/k/check", {"token": 11})
    assert (status, problem["reason"], problem["key"], problem["floor"]) == (400, "TokenJump", "k", 0)
    assert (await listener.store.fence("k")).floor == 0
    assert (await listener.post("/v1/fences/k/check", {"token": 10}))[0] == 200
    assert (await listener.post("/v1/fences/k/check", {"token": 16}))[1]["reason"] == "TokenJump"
    assert (await listener.post("/v1/fences/k/raise", {"token": 900, "reason": "new lease service"}))[0] == 200
    assert (await listener.post("/v1/fences/k/check", {"token": 905}))[0] == 200
    events = (await listener.get("/v1/fences/k/events"))[1]["events"]
    assert [e["detail"] for e in events] == ["check", "operator: new lease service", "check"]


# --- lists


async def test_fences_page_in_order(listener: Listener) -> None:
    """Each page goes on where the last one ended; the last names no next; a prefix narrows."""
    keys = ["a/1", "a/2", "a/3", "b"]
    for key in reversed(keys):
        await listener.store.raise_floor(key, 1)
    pages = []
    after = ""
    while True:
        _, page = await listener.get(f"/v1/fences?limit=2{after}")
        pages.append([fence["key"] for fence in page["fences"]])
        if page["next"] is None:
            break
        after = f"&after={page['next'].replace('/', '%2F')}"
    assert pages == [["a/1", "a/2"], ["a/3", "b"], []]
    _, page = await listener.get("/v1/fences?prefix=a%2F&after=a%2F1")
    assert [fence["key"] for fence in page["fences"]] == ["a/2", "a/3"]


async def test_events_page_newest_first(listener: Listener) -> None:
    """The history goes back page by page, none left out, none twice; each event has its time."""
    for token in range(1, 6):
        await listener.store.raise_floor("k", token, Event("k", EventKind.RAISED, token, token - 1, "test", "request"))
    seen: list[int] = []
    before = ""
    while True:
        _, page = await listener.get(f"/v1/fences/k/events?limit=2{before}")
        seen += [event["token"] for event in page["events"]]
        assert all(TIME.fullmatch(event["at"]) for event in page["events"])
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert seen == [5, 4, 3, 2, 1]
    (event,) = (await listener.get("/v1/fences/k/events?limit=1"))[1]["events"]
    event.pop("at")
    assert event == {
        "kind": "raised",
        "token": 5,
        "floor": 4,
        "detail": "test",
        "request_id": "request",
        "count": 1,
    }


@pytest.mark.parametrize(
    "target",
    [
        "/v1/fences?limit=0",
        "/v1/fences?limit=1001",
        "/v1/fences?limit=x",
        "/v1/fences?limit=",
        "/v1/fences/k/events?limit=0",
        "/v1/fences/k/events?before=x",
        "/v1/fences/k/events?before=-1",
    ],
)
async def test_a_bad_page(listener: Listener, target: str) -> None:
    """A limit or cursor that cannot be meant is 400."""
    status, problem = await listener.get(target)
    assert (status, problem["reason"]) == (400, "invalid")
