"""Jobs completed over the control API: by whom, how often, and with which outputs (docs/jobs.md)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.keys import FencingKey, Token
from gateway.upstream.base import UpstreamRequest
from tests.server.control.desk import WHY, Desk, Make, desk, make
from tests.server.control.rig import staged

__all__ = ["desk", "make"]


async def test_completed_once(desk: Desk) -> None:
    """The same token again is answered the same, whatever else it says; every other 409 with the token that did it;
    and the job is neither leased nor delivered again."""
    await desk.submit("job-1")
    await desk.receive()
    first = await desk.post("/v1/jobs/job-1/complete", {"token": 1, "result": "first"})
    assert first == await desk.post("/v1/jobs/job-1/complete", {"token": 1, "result": "second"})
    for token in (2, 77):
        status, problem = await desk.post("/v1/jobs/job-1/complete", {"token": token})
        assert (status, problem["reason"], problem["token"]) == (409, "completed", 1)
    status, problem = await desk.post("/v1/leases/job-1", {"holder": "B", "ttl_s": 30})
    assert (status, problem["reason"]) == (409, "completed")
    for call in ("extend", "release", "fail"):
        status, problem = await desk.post(f"/v1/jobs/job-1/{call}", {"token": 1})
        assert (status, problem["reason"]) == (409, "lost")


async def test_two_workers_complete_at_once(desk: Desk) -> None:
    """One is recorded; the one who was replaced is told that he is stale, or who has done it."""
    await desk.submit("job-1")
    await desk.receive(visibility_s=0.1)
    await desk.receive(holder="B", wait_s=30)
    outcomes = await asyncio.gather(
        *(desk.post("/v1/jobs/job-1/complete", {"token": token, "result": token}) for token in (1, 2, 1, 2))
    )
    assert {(status, answer.get("reason")) for status, answer in outcomes[::2]} <= {(412, "stale"), (409, "completed")}
    assert [(status, answer["completion"]["token"]) for status, answer in outcomes[1::2]] == [(200, 2), (200, 2)]


async def test_a_key_without_a_queue_is_completed(desk: Desk) -> None:
    """By a plain lease, or by a token from elsewhere, which raises the floor like any call."""
    _, lease = await desk.post("/v1/leases/leased", {"holder": "me", "ttl_s": 30})
    for key, token, holder in (("leased", lease["token"], "me"), ("foreign", 33, "")):
        status, job = await desk.post(f"/v1/jobs/{key}/complete", {"token": token, "result": [1]})
        assert (status, job["queue"], job["completion"]["holder"]) == (200, None, holder)
        assert (job["token"], job["completion"]["token"], job["completion"]["result"]) == (token, token, [1])
        assert (await desk.job(key))["state"] == "completed"
    status, problem = await desk.post("/v1/jobs/foreign/complete", {"token": 32})
    assert (status, problem["reason"], problem["token"]) == (409, "completed", 33)
    assert await desk.post("/v1/jobs/leased/reopen", WHY) == (200, {"job": None})
    assert (await desk.call("GET", "/v1/jobs/leased"))[0] == 404
    assert (await desk.post("/v1/leases/leased", {"holder": "me", "ttl_s": 30}))[1]["token"] == 2


async def test_tokens_that_complete_nothing(desk: Desk) -> None:
    """Below the floor, sealed, or never issued."""
    await desk.submit("job-1")
    await desk.receive()
    status, problem = await desk.post("/v1/jobs/job-1/complete", {"token": 2})
    assert (status, problem["reason"], problem["floor"]) == (400, "TokenNotIssued", 1)
    await desk.post("/v1/jobs/job-1/release", {"token": 1})
    status, problem = await desk.post("/v1/jobs/job-1/complete", {"token": 1})
    assert (status, problem["reason"], problem["floor"]) == (412, "stale", 1)


async def test_outputs_are_looked_at(desk: Desk) -> None:
    """All are there, by this key and token: recorded with the completion."""
    await desk.submit("job-1")
    await desk.receive()
    desk.write("renders/1/ä", "job-1", 1)
    outputs = [{"bucket": "b", "key": "renders/1/ä"}]
    status, job = await desk.post("/v1/jobs/job-1/complete", {"token": 1, "outputs": outputs})
    assert (status, job["completion"]["outputs"]) == (200, outputs)


@pytest.mark.parametrize(
    ("writer", "why"),
    [
        (None, "no such object"),
        (("other", 1), "under the key 'other'"),
        (("job-1", 3), "by token 3"),
        ((None, 0), "not been written under a fencing key, as where a rule's mode is observe or off"),
    ],
)
async def test_an_output_that_is_not_as_it_is_said_to_be(
    desk: Desk, writer: tuple[str | None, int] | None, why: str
) -> None:
    """409 names it and says why; nothing is recorded, and the token may still write and complete."""
    await desk.submit("job-1")
    await desk.receive()
    desk.write("good", "job-1", 1)
    if writer is not None and writer[0] is not None:
        desk.write("bad", writer[0], writer[1])
    elif writer is not None:
        desk.upstream.apply(UpstreamRequest("PUT", "b", "bad", "", ()), b"frame")
    body = {"token": 1, "outputs": [{"bucket": "b", "key": name} for name in ("good", "bad")]}
    status, problem = await desk.post("/v1/jobs/job-1/complete", body)
    assert (status, problem["reason"], problem["output"]) == (409, "output-not-verified", "b/bad")
    assert why in problem["detail"]
    assert (await desk.job("job-1"))["state"] == "running"
    desk.write("bad", "job-1", 1)
    assert (await desk.post("/v1/jobs/job-1/complete", body))[0] == 200


async def test_a_completion_waits_for_what_has_been_sent(make: Make) -> None:
    """Until then 503; meanwhile nothing more of the token passes, and afterwards it does, as nothing was recorded."""
    desk = await make(handover_wait_s=0.05)
    await desk.submit("job-1")
    await desk.receive()
    live = await desk.fences.admit(FencingKey("job-1"), Token(1), cause="test")
    passage = staged(desk, live, Token(1))  # type: ignore[arg-type]
    passage.commit()
    status, problem = await desk.post("/v1/jobs/job-1/complete", {"token": 1})
    assert (status, problem["reason"]) == (503, "HandoverPending")
    assert (await desk.job("job-1"))["state"] == "running"
    later = staged(desk, live, Token(1))  # type: ignore[arg-type]
    later.commit()
    for one in (passage, later):
        one.applied()
    assert (await desk.post("/v1/jobs/job-1/complete", {"token": 1}))[0] == 200
