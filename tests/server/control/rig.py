"""A control listener on a free port over a store in memory, and how to ask it."""

from __future__ import annotations

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
from gateway.core.keys import FencingKey, Rule, Ruleset, Token
from gateway.server.control.access import ApiToken
from gateway.server.control.application import Control
from gateway.server.control.health import Readiness
from gateway.service.fences import Fences
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate, Passage
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.telemetry import Telemetry
from tests.server.control.contract import conforms

WORKER, OPERATOR, OTHER = "worker-secret", "operator-secret", "other-secret"
TOKENS = (
    ApiToken(OPERATOR, operator=True),
    ApiToken(WORKER, operator=False, keys=("job-*",)),
    ApiToken(OTHER, operator=True, keys=("other",)),
)
AWKWARD = "a/b %2F..//ü?#{}"
AWKWARD_RAW = "a%2Fb%20%252F..%2F%2F%C3%BC%3F%23%7B%7D"
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
    """Status and document; an error must be a problem (RFC 9457), all else JSON, and both as the gateway's own document
    promises."""
    body = await answer.json(content_type=None)
    conforms(answer.method, answer.url.raw_path, answer.status, answer.content_type, body)
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
