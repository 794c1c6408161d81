"""A control listener with leases and jobs, on a free port over stores in memory, and how to ask it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from gateway.clock import SystemClock
from gateway.core.keys import FencingKey, Rule, Ruleset, Token, compile_rule
from gateway.s3.fencing import object_metadata
from gateway.server.control.access import ApiToken
from gateway.server.control.application import Control
from gateway.server.control.health import Readiness
from gateway.server.control.jobs import JobCalls, JobMetrics
from gateway.server.control.leases import LeaseCalls, LeaseMetrics
from gateway.service.completions import Completions
from gateway.service.fences import Fences
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases, LeaseTerms
from gateway.service.queues import QueueRules
from gateway.service.waits import Timing
from gateway.telemetry import Telemetry
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryUpstream
from tests.server.control.rig import BreakableStore, headers, told

JOB = "/v1/leases/job-1"
LEASE_ASKED = {"holder": "A", "ttl_s": 30}
JOBS, RECEIVE = "/v1/queues/q/jobs", "/v1/queues/q/receive"
JOBS_ASKED = {"holder": "A", "visibility_s": 30}
WHY = {"reason": "try again"}


@dataclass
class Desk:
    """A control listener with leases and jobs, and what stands behind it."""

    client: TestClient[Any, Any]
    fences: Fences
    leases: Leases
    jobs: Jobs
    store: BreakableStore
    telemetry: Telemetry
    upstream: MemoryUpstream

    async def call(
        self, method: str, target: str, body: object = None, bearer: str | None = None, **more: str
    ) -> tuple[int, Any]:
        """Status and document; None for an answer without one."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = headers(bearer) | {name.replace("_", "-"): value for name, value in more.items()}
        answer = await self.client.request(method, URL(target, encoded=True), data=data, headers=sent)
        if answer.status == 204:
            assert await answer.read() == b""
            return 204, None
        return await told(answer)

    async def post(self, target: str, body: object, bearer: str | None = None, **more: str) -> tuple[int, Any]:
        return await self.call("POST", target, body, bearer, **more)

    async def acquire(self, target: str = JOB, **asked: object) -> dict[str, Any]:
        status, lease = await self.post(target, LEASE_ASKED | asked)
        assert status == 201
        return dict(lease)

    async def submit(self, *keys: str, **more: object) -> None:
        for key in keys:
            assert (await self.post(JOBS, {"key": key, **more}))[0] == 201

    async def receive(self, **asked: object) -> list[dict[str, Any]]:
        status, answer = await self.post(RECEIVE, JOBS_ASKED | asked)
        assert status == 200
        return list(answer["jobs"])

    async def job(self, key: str) -> Any:
        status, job = await self.call("GET", f"/v1/jobs/{key}")
        assert status == 200
        return job

    def write(self, name: str, key: str, token: int) -> None:
        """An object in the store as a fenced write of (key, token) leaves it."""
        metadata = object_metadata(FencingKey(key), Token(token), "nonce")
        assert self.upstream.apply(UpstreamRequest("PUT", "b", quote(name), "", metadata), b"frame").status == 200


Make = Callable[..., Awaitable[Desk]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes desks; with the API tokens given, else open."""
    desks: list[Desk] = []

    async def desk(
        tokens: tuple[ApiToken, ...] = (),
        *,
        terms: LeaseTerms | None = None,
        rules: QueueRules | None = None,
        handover_wait_s: float = 20,
        output: str | None = None,
    ) -> Desk:
        store, telemetry, readiness, clock = BreakableStore(), Telemetry(SystemClock()), Readiness(), SystemClock()
        await store.start("")
        readiness.reason = None
        mapping = Ruleset([Rule(*compile_rule("foreign/{key}/**", "foreign-{key}"))])
        fences, upstream = Fences(store, clock, Timing(handover_wait_s=handover_wait_s)), MemoryUpstream("b")
        leases = Leases(fences, terms or LeaseTerms())
        jobs = Jobs(leases, store, clock, rules or QueueRules())
        completions = Completions(fences, leases, jobs, upstream, mapping)
        await leases.start()
        await jobs.start()
        telemetry.registry.register(LeaseMetrics(leases))
        telemetry.registry.register(JobMetrics(jobs, completions))
        limits = {"max_ttl_s": 3600.0, "max_wait_s": 60.0}
        handed_out: dict[str, Any] = {"credentials": lambda *_: None, "output": lambda key: output}
        calls = [
            *LeaseCalls(leases, **limits, **handed_out).calls(),
            *JobCalls(jobs, completions, **limits, **handed_out).calls(),
        ]
        uploads = Counter().__getitem__  # type: ignore[var-annotated]
        control = Control(fences, telemetry, readiness, tokens, mapping, uploads, calls, leases.lease_of)
        client = TestClient(TestServer(control.application()))
        await client.start_server()  # whose handlers are cancelled when their caller goes away, like the gateway's
        desks.append(Desk(client, fences, leases, jobs, store, telemetry, upstream))
        return desks[-1]

    yield desk
    for one in desks:
        await one.jobs.stop()
        await one.leases.stop()
        await one.client.close()


@pytest.fixture
async def desk(make: Make) -> Desk:
    return await make()
