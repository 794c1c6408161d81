"""`GET /v1/trace`: what who follows is told, and that it holds nothing up."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
import structlog
from aiohttp import ClientResponse

from gateway import telemetry
from gateway.core.keys import FencingKey, Token
from gateway.server.control.access import ApiToken
from gateway.stores.values import Event, EventKind
from gateway.telemetry import MAX_LINES_WAITING, RequestRecord, configure_logging
from tests.server.control.rig import OPERATOR, TOKENS, WORKER, Listener, Make, headers, make, staged

__all__ = ["make"]


@pytest.fixture(autouse=True)
def log() -> Any:
    """The gateway's own way to the log."""
    configure_logging("warning", io.BytesIO())
    yield
    structlog.reset_defaults()


def request_line(listener: Listener, request_id: str, key: str, **fields: Any) -> None:
    record = RequestRecord(request_id, fence_key=key, operation="PutObject", status=412, **fields)
    listener.telemetry.finished(record, "commits", 0.01)


async def next_line(answer: ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while not (line := await answer.content.readline()).strip():
            assert line, "the trace has ended"
    told: dict[str, Any] = json.loads(line)
    return told


async def known(listener: Listener, query: str) -> list[dict[str, Any]]:
    """What is told at once."""
    answer = await listener.client.get(f"/v1/trace?for_s=0{query}")
    assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
    return [json.loads(line) for line in (await answer.text()).splitlines() if line]


async def test_the_last_requests_are_told_of_a_key_of_a_request_or_all(make: Make) -> None:
    """Whoever comes with a request id from an error finds its line, whatever the log's level."""
    listener = await make()
    for number, key in ((1, "j"), (2, "k"), (3, "j")):
        request_line(listener, f"R{number}", key, decision="refused", reason="StaleToken")
    assert [line["request_id"] for line in await known(listener, "")] == ["R1", "R2", "R3"]
    assert [line["request_id"] for line in await known(listener, "&key=j")] == ["R1", "R3"]
    (line,) = await known(listener, "&request_id=R2")
    assert (line["source"], line["event"], line["fence_key"], line["reason"]) == ("log", "request", "k", "StaleToken")
    assert await known(listener, "&request_id=R2&key=j") == []
    request_line(listener, "R5", "j", upstream_request_id="THE-STORES")
    (line,) = await known(listener, "&request_id=THE-STORES")  # as an error of the store says, which is passed on
    assert line["request_id"] == "R5"
    request_line(listener, "R4", "bytes", object="no UTF-8: \udcff")
    assert (await known(listener, "&key=bytes"))[0]["object"] == "no UTF-8: \udcff"


async def test_tokens_are_exact_for_every_reader(make: Make) -> None:
    """Strings above 2^53, as everywhere in the API, in the log's lines and in those of the history."""
    listener = await make()
    highest = 2**63 - 1
    request_line(listener, "R1", "j", token=2**53, floor=highest)
    (line,) = await known(listener, "&key=j")
    assert (line["token"], line["floor"]) == (2**53, str(highest))
    async with listener.client.get("/v1/trace?key=j") as answer:
        await next_line(answer)
        await listener.store.raise_floor("j", highest, Event("j", EventKind.RAISED, highest, 0, "by hand"))
        line = await next_line(answer)
        assert (line["source"], line["token"], line["floor"]) == ("history", str(highest), 0)


async def test_a_key_is_followed_live(make: Make) -> None:
    """Its requests, what becomes of its sends, and what only its history tells, as they come; nothing of others."""
    listener = await make()
    await listener.store.raise_floor("j", 1, Event("j", EventKind.RAISED, 1, 0, "long ago"))
    async with listener.client.get("/v1/trace?key=j") as answer:
        live = await listener.fences.admit(FencingKey("j"), Token(33), cause="PutObject b/o")
        told = await next_line(answer)
        assert (told["source"], told["kind"], told["token"], told["detail"]) == (
            "history",
            "raised",
            33,
            "PutObject b/o",
        )
        request_line(listener, "R1", "k")
        request_line(listener, "R2", "j")
        assert (await next_line(answer))["request_id"] == "R2"
        with staged(listener, live, Token(33)) as passage:
            passage.commit()
            passage.lost()
            told = await next_line(answer)
            assert (told["source"], told["event"], told["level"]) == ("log", "in-doubt", "warning")
            passage.nonce_seen()
        listener.readiness.reason = "draining"
        async with asyncio.timeout(5):
            assert (await answer.content.read()).strip() == b""


async def test_who_reads_too_slowly_holds_nothing_up(make: Make) -> None:
    """Beyond a bound lines are dropped, and how many is told."""
    listener = await make()
    async with listener.client.get("/v1/trace?key=j") as answer:
        for number in range(MAX_LINES_WAITING + 7):
            request_line(listener, f"R{number}", "j")
        for number in range(MAX_LINES_WAITING):
            assert (await next_line(answer))["request_id"] == f"R{number}"
        assert await next_line(answer) == {"source": "trace", "dropped": 7}
    async with asyncio.timeout(5):
        while telemetry._output.followers:
            request_line(listener, "R", "j")
            await asyncio.sleep(0.01)


async def test_a_trace_is_an_operators(make: Make) -> None:
    """It tells of all clients and keys; with tokens configured none and a worker's are turned away."""
    listener = await make(TOKENS)
    for bearer, status in ((None, 401), (WORKER, 403), (OPERATOR, 200)):
        answer = await listener.client.get("/v1/trace?for_s=0", headers=headers(bearer))
        assert answer.status == status


@pytest.mark.parametrize("keys", ["job-*", "[!o]*", "?ob-?"])
async def test_who_is_limited_to_some_keys_follows_one_of_them(make: Make, keys: str) -> None:
    """All at once would be the others' too, whatever the pattern looks like."""
    limited = await make((ApiToken("limited", operator=True, keys=(keys,)),))
    for query, status in (("", 403), ("&request_id=R1", 403), ("&key=other", 403), ("&key=job-1", 200)):
        answer = await limited.client.get(f"/v1/trace?for_s=0{query}", headers=headers("limited"))
        assert answer.status == status, query


@pytest.mark.parametrize("query", ["for_s=x", "for_s=-1", "for_s=86401", "key=%00", "key="])
async def test_a_bad_trace(make: Make, query: str) -> None:
    """What cannot be meant is told before anything is streamed."""
    assert (await (await make()).get(f"/v1/trace?{query}"))[0] == 400
