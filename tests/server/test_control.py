"""The control listener: each call, who may make it, and how it fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from gateway.clock import SystemClock
from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, Rule, Ruleset, Token, TokenLimits, compile_rule
from gateway.server import control
from gateway.server.control import ApiToken, Control, Readiness
from gateway.service.fences import Fences
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate, Passage
from gateway.service.waits import Timing
from gateway.stores.base import Event, EventKind, Fence, StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.telemetry import RequestRecord, Telemetry

WORKER, OPERATOR, OTHER = "worker-secret", "operator-secret", "other-secret"
TOKENS = (
    ApiToken(OPERATOR, operator=True),
    ApiToken(WORKER, operator=False, keys=("job-*",)),
    ApiToken(OTHER, operator=True, keys=("other",)),
)
AWKWARD = "a/b %2F..//ü?#"
AWKWARD_RAW = "a%2Fb%20%252F..%2F%2F%C3%BC%3F%23"
HUGE = 2**63 - 1
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


class BreakableStore(MemoryStore):
    """A store that can be told to fail, as with a full disk."""

    broken = False

    def _require_running(self) -> None:
        super()._require_running()
        if self.broken:
            raise StoreUnavailable("disk full")


@dataclass
class Listener:
    """A control listener and what stands behind it."""

    client: TestClient[Any, Any]
    fences: Fences
    store: BreakableStore
    telemetry: Telemetry
    readiness: Readiness

    async def get(self, target: str, bearer: str | None = None) -> tuple[int, Any]:
        return await told(await self.client.get(URL(target, encoded=True), headers=headers(bearer)))

    async def post(self, target: str, body: object, bearer: str | None = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await told(await self.client.post(URL(target, encoded=True), data=data, headers=headers(bearer)))


def headers(bearer: str | None) -> dict[str, str]:
    return {} if bearer is None else {"Authorization": f"Bearer {bearer}"}


async def told(answer: ClientResponse) -> tuple[int, Any]:
    """Status and document; an error must be a problem (RFC 9457), all else JSON."""
    body = await answer.json(content_type=None)
    if answer.status < 400 or answer.url.path == "/readyz":
        assert answer.content_type == "application/json"
    else:
        assert answer.content_type == "application/problem+json"
        assert {"type", "title", "status", "detail", "reason"} <= body.keys()
        assert body["status"] == answer.status
        assert body["detail"]
    return answer.status, body


def staged(listener: Listener, live: LiveGate, token: Token) -> Passage:
    """A send of request-1 on b/o."""
    return Passage(listener.fences, live, ObjectEntry("b", "o"), token, assembles=False, request_id="request-1")


Make = Callable[..., Awaitable[Listener]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes listeners; with the API tokens given, else open."""
    clients: list[TestClient[Any, Any]] = []

    async def listener(
        tokens: tuple[ApiToken, ...] = (), rules: tuple[Rule, ...] = (), handover_wait_s: float = 0.05
    ) -> Listener:
        store, telemetry, readiness = BreakableStore(), Telemetry(SystemClock()), Readiness()
        await store.start("")
        readiness.reason = None
        fences = Fences(store, SystemClock(), Timing(handover_wait_s=handover_wait_s))
        client = TestClient(
            TestServer(
                Control(fences, telemetry, readiness, tokens, Ruleset(rules), Counter().__getitem__).application()
            )
        )
        await client.start_server()
        clients.append(client)
        return Listener(client, fences, store, telemetry, readiness)

    yield listener
    for client in clients:
        await client.close()


@pytest.fixture
async def listener(make: Make) -> Listener:
    """An open listener, as on loopback without configured API tokens."""
    return await make()


# --- fences


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


async def test_raise_and_seal_shut_tokens_out_and_say_why_in_the_history(listener: Listener) -> None:
    """Both answer the new state, shut tokens out, and are in the history with the operator's reason."""
    status, fence = await listener.post("/v1/fences/k/raise", {"token": 34, "reason": "A is gone"})
    assert (status, fence["floor"], fence["completed_floor"], fence["sealed"]) == (200, 34, 34, False)
    assert TIME.fullmatch(fence["raised_at"])
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 33, "reason": "back"})
    assert (status, problem["reason"]) == (412, "stale")
    status, fence = await listener.post("/v1/fences/k/seal", {"reason": "done"})
    assert (status, fence["floor"], fence["sealed"]) == (200, 34, True)
    status, problem = await listener.post("/v1/fences/k/check", {"token": 34})
    assert (status, problem["reason"]) == (412, "stale")
    events = (await listener.get("/v1/fences/k/events"))[1]["events"]
    assert [(e["kind"], e["token"], e["detail"]) for e in events] == [
        ("sealed", 34, "operator: done"),
        ("raised", 34, "operator: A is gone"),
    ]


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


@asynccontextmanager
async def in_doubt(listener: Listener, *tokens: int) -> AsyncIterator[list[Passage]]:
    """Sends of k whose answers are lost, each of its token; of the last one the answer is still awaited."""
    passages = []
    with ExitStack() as stack:
        for number in tokens:
            token = Token(number)
            live = await listener.fences.admit(FencingKey("k"), token, cause="test", wait_s=0)
            passages.append(stack.enter_context(staged(listener, live, token)))
            passages[-1].commit()
        for passage in passages[:-1]:
            passage.lost()
        yield passages


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
    events = (await listener.get("/v1/fences/k/events"))[1]["events"]
    found = [(e["token"], e["detail"], e["request_id"]) for e in events if e["kind"] == "settled-by-operator"]
    assert found == [(33, "b/o: store wiped", "request-1")]
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


async def test_a_settling_that_cannot_be_recorded_is_not_done(listener: Listener) -> None:
    """R5, recorded: without the database the doubt stays."""
    async with in_doubt(listener, 33, 33) as (_, awaited):
        awaited.refused()
        listener.store.broken = True
        assert (await listener.post("/v1/fences/k/settle", {"reason": "x"}))[0] == 503
        listener.store.broken = False
        assert len((await listener.get("/v1/fences/k"))[1]["unsettled"]) == 1


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


# --- keys and tokens on the wire


async def test_a_key_is_one_percent_encoded_segment(listener: Listener) -> None:
    """Slashes, percent signs, dots, question marks and non-ASCII are part of the key when encoded."""
    for call, body in (("check", {"token": 1}), ("raise", {"token": 2, "reason": "x"}), ("seal", {"reason": "x"})):
        status, answer = await listener.post(f"/v1/fences/{AWKWARD_RAW}/{call}", body)
        assert (status, answer["key"]) == (200, AWKWARD)
    assert (await listener.get(f"/v1/fences/{AWKWARD_RAW}"))[1]["floor"] == 2
    assert len((await listener.get(f"/v1/fences/{AWKWARD_RAW}/events"))[1]["events"]) == 3
    assert (await listener.get("/v1/fences"))[1]["fences"][0]["key"] == AWKWARD


async def test_the_key_of_an_object_may_be_looked_at(listener: Listener) -> None:
    """The namespace that no header can name is open here: an object's own key can be shown and raised."""
    status, answer = await listener.post("/v1/fences/object:b%2Fdir%2Fo/raise", {"token": 3, "reason": "x"})
    assert (status, answer["key"], answer["floor"]) == (200, "object:b/dir/o", 3)


@pytest.mark.parametrize("raw", ["%FF", "%00", "a%0Ab", "k" * 513])
async def test_a_bad_key(listener: Listener, raw: str) -> None:
    """What no key can be is 400 KeyInvalid."""
    status, problem = await listener.get(f"/v1/fences/{raw}")
    assert (status, problem["reason"]) == (400, "KeyInvalid")


@pytest.mark.parametrize(
    ("token", "shown"), [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (str(HUGE), str(HUGE)), (HUGE, str(HUGE))]
)
async def test_tokens_past_what_json_readers_have_exact_are_strings(
    listener: Listener, token: int | str, shown: int | str
) -> None:
    """Up to 2^53 a token is a number, above a string; both are accepted, and none loses a digit."""
    assert (await listener.post("/v1/fences/k/check", {"token": token}))[1] == {
        "key": "k",
        "token": shown,
        "floor": shown,
    }
    assert (await listener.get("/v1/fences/k"))[1]["floor"] == shown
    assert (await listener.get("/v1/fences/k/events"))[1]["events"][0]["token"] == shown


@pytest.mark.parametrize("token", [0, -1, 2**63, 1.0, 1e3, True, None, "", "01", "+1", " 1", "１", [1], {}])
async def test_a_bad_token(listener: Listener, token: object) -> None:
    """What is no token is 400 TokenInvalid and raises nothing."""
    status, problem = await listener.post("/v1/fences/k/check", {"token": token})
    assert (status, problem["reason"]) == (400, "TokenInvalid")
    assert (await listener.store.fence("k")).floor == 0


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("check", b""),
        ("check", b"token=34"),
        ("check", b"[34]"),
        ("check", {"token": 34, "reason": "x"}),
        ("raise", {"token": 34}),
        ("raise", {"token": 34, "reason": " "}),
        ("raise", {"token": 34, "reason": 7}),
        ("seal", {}),
        ("settle", {}),
        ("settle", {"reason": ""}),
    ],
)
async def test_a_bad_body(listener: Listener, call: str, body: object) -> None:
    """A body that says less, more or something else is 400 and changes nothing."""
    await listener.post("/v1/fences/k/check", {"token": 1})
    status, problem = await listener.post(f"/v1/fences/k/{call}", body)
    assert (status, problem["reason"]) == (400, "invalid")
    fence = await listener.store.fence("k")
    assert (fence.floor, fence.sealed_token) == (1, 0)


async def test_a_body_past_the_limit(listener: Listener) -> None:
    """A body is bounded: 413, as a problem like any other."""
    status, problem = await listener.post("/v1/fences/k/raise", {"token": 1, "reason": "x" * control.MAX_BODY_BYTES})
    assert (status, problem["reason"]) == (413, "request-entity-too-large")


async def test_what_is_not_there(listener: Listener) -> None:
    """Unknown paths and methods are problems, too."""
    assert (await listener.get("/v1/nothing"))[0] == 404
    assert (await listener.post("/v1/fences", {}))[0] == 405


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


# --- who may

CALLS: list[tuple[str, object, bool]] = [
    ("/v1/fences", None, False),
    ("/v1/fences/job-1", None, False),
    ("/v1/fences/job-1/events", None, False),
    ("/v1/fences/job-1/check", {"token": 1}, False),
    ("/v1/fences/job-1/raise", {"token": 1, "reason": "x"}, True),
    ("/v1/fences/job-1/settle", {"reason": "x"}, True),
    ("/v1/fences/job-1/seal", {"reason": "x"}, True),
]


async def call(listener: Listener, target: str, body: object, bearer: str | None) -> tuple[int, Any]:
    return await (listener.get(target, bearer) if body is None else listener.post(target, body, bearer))


@pytest.mark.parametrize(("target", "body", "operators"), CALLS)
async def test_every_call_asks_who_calls(make: Make, target: str, body: object, operators: bool) -> None:
    """With configured tokens, none and a wrong one are 401; a worker is 403 on an operator's calls; the rest pass."""
    listener = await make(TOKENS)
    await listener.store.raise_floor("job-1", 1)
    for bearer in (None, "", "wrong", OPERATOR[:-1], OPERATOR + "x"):
        status, problem = await call(listener, target, body, bearer)
        assert (status, problem["reason"]) == (401, "unauthenticated")
    status, answer = await call(listener, target, body, WORKER)
    assert status == (403 if operators else 200)
    assert not operators or answer["reason"] == "forbidden"
    assert (await call(listener, target, body, OPERATOR))[0] == 200


async def test_only_the_bearer_scheme_counts(make: Make) -> None:
    """The same secret under another scheme is no token; the scheme's name is read in any case (RFC 9110, 11.1)."""
    listener = await make(TOKENS)
    for scheme, status in (("Basic", 401), ("Token", 401), ("bearer", 200), ("BEARER", 200)):
        answer = await listener.client.get("/v1/fences", headers={"Authorization": f"{scheme} {OPERATOR}"})
        assert answer.status == status


@pytest.mark.parametrize(("target", "body", "operators"), CALLS[1:])
async def test_a_token_is_held_to_its_keys(make: Make, target: str, body: object, operators: bool) -> None:
    """A token limited to key patterns is 403 for every other key, an operator's too, and changes nothing."""
    listener = await make(TOKENS)
    await listener.store.raise_floor("job-1", 1)
    await listener.store.raise_floor("other", 1)
    status, problem = await call(listener, target, body, OTHER)
    assert (status, problem["reason"], problem["key"]) == (403, "forbidden", "job-1")
    status, _ = await call(listener, target.replace("job-1", "other"), body, WORKER)
    assert status == 403
    assert await listener.store.fence("other") == Fence(
        "other", 1, raised_at=(await listener.store.fence("other")).raised_at
    )


async def test_a_list_shows_only_the_keys_of_the_token(make: Make) -> None:
    """Others' keys are not listed; the cursor still goes through all."""
    listener = await make(TOKENS)
    for key in ("job-1", "job-2", "other"):
        await listener.store.raise_floor(key, 1)
    for bearer, keys in ((WORKER, ["job-1", "job-2"]), (OTHER, ["other"]), (OPERATOR, ["job-1", "job-2", "other"])):
        _, page = await listener.get("/v1/fences", bearer)
        assert [fence["key"] for fence in page["fences"]] == keys


async def test_health_is_open_and_metrics_are_not(make: Make) -> None:
    """Probes of a container platform need no token; metrics do."""
    listener = await make(TOKENS)
    assert (await listener.get("/healthz"))[0] == 200
    assert (await listener.get("/readyz"))[0] == 200
    assert (await listener.client.get("/metrics")).status == 401
    assert (await listener.client.get("/metrics", headers=headers(WORKER))).status == 200


# --- health and metrics


async def test_readiness_follows_the_gateway(listener: Listener) -> None:
    """Ready is 200; starting or draining is 503 with the reason; health is 200 all the while."""
    assert await listener.get("/readyz") == (200, {"status": "ready"})
    for reason in ("starting", "draining"):
        listener.readiness.reason = reason
        assert await listener.get("/readyz") == (503, {"status": "unavailable", "reason": reason})
        assert await listener.get("/healthz") == (200, {"status": "ok"})


async def test_readiness_follows_the_store(listener: Listener) -> None:
    """A store that can raise no floor makes the gateway unready, with the store's own reason, until it can again."""
    listener.store.broken = True
    assert await listener.get("/readyz") == (503, {"status": "unavailable", "reason": "store: disk full"})
    assert await samples(listener) | {"fencing_ready": 0.0} == await samples(listener)
    listener.store.broken = False
    assert (await listener.get("/readyz"))[0] == 200
    assert (await samples(listener))["fencing_ready"] == 1.0


@pytest.mark.parametrize(("target", "body", "operators"), CALLS)
async def test_a_failing_store_is_503(listener: Listener, target: str, body: object, operators: bool) -> None:
    """Every call that needs the store answers 503 StoreUnavailable with its reason, and no traceback."""
    await listener.store.raise_floor("job-1", 1)
    listener.store.broken = True
    status, problem = await call(listener, target, body, None)
    assert (status, problem["reason"]) == (503, "StoreUnavailable")
    assert "disk full" in problem["detail"]


async def test_a_fault_of_the_program_is_500_and_told_to_the_log_alone(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody foresaw is a problem without details; the log has them."""

    async def fails(*_: object) -> Fence:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(listener.store, "fence", fails)
    status, problem = await listener.get("/v1/fences/k")
    assert (status, problem["reason"]) == (500, "internal")
    assert "of all things" not in json.dumps(problem)


async def samples(listener: Listener, bearer: str | None = None) -> dict[str, float]:
    """The metrics by name and labels, as Prometheus's own parser reads them."""
    answer = await listener.client.get("/metrics", headers=headers(bearer))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(await answer.text())
    return {
        ",".join([sample.name, *map("=".join, sorted(sample.labels.items()))]): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_metrics_count_requests_refusals_and_sends(listener: Listener) -> None:
    """Requests by operation and status, refusals by reason, and unsettled sends are there, under names that last."""
    record = RequestRecord("r", operation="PutObject", status=412, bytes_in=7)
    record.decision, record.reason = "refused", Reason.STALE_TOKEN.value
    listener.telemetry.finished(record, "commits", 0.01)
    key, token = FencingKey("k"), Token(1)
    live = await listener.fences.admit(key, token, cause="test")
    with staged(listener, live, token) as passage:
        passage.commit()
        passage.lost()
        found = await samples(listener)
    assert found["fencing_requests_total,operation=PutObject,status=412"] == 1
    assert found["fencing_refusals_total,reason=StaleToken"] == 1
    assert found["fencing_bytes_total,direction=in"] == 7
    assert found["fencing_request_seconds_count,effect=commits"] == 1
    assert (found["fencing_sends_unsettled"], found["fencing_sends_in_doubt"]) == (1, 1)
    assert found["fencing_sends_settled_by_timeout"] == found["fencing_sends_settled_by_operator"] == 0
    assert found["fencing_handovers_waiting"] == found["fencing_handover_wait_seconds"] == 0
