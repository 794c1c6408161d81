"""Health, readiness and metrics."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, Token
from gateway.stores.values import Fence
from gateway.telemetry import RequestRecord
from tests.server.control.rig import (
    CALLS,
    Listener,
    call,
    listener,
    make,
    samples,
    staged,
)

__all__ = ["listener", "make"]


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


async def test_a_head_is_a_get_without_its_document(listener: Listener) -> None:
    """RFC 9110, 9.3.2, for load balancers and the curious; what streams has none."""
    await listener.store.raise_floor("k", 1)
    for target in ("/healthz", "/readyz", "/metrics", "/v1/fences", "/v1/fences/k", "/v1/openapi.json"):
        answer = await listener.client.head(target)
        assert (answer.status, await answer.read()) == (200, b""), target
    answer = await listener.client.head("/v1/trace")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")
