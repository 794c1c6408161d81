"""Jobs handed out over the control API: who waits for one, asks again, or hangs up (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.core.keys import FencingKey, Token
from tests.server.control.desk import JOBS_ASKED, RECEIVE, Desk, Make, desk, make
from tests.server.control.rig import staged

__all__ = ["desk", "make"]


async def test_who_waits_is_given_the_job_at_once(desk: Desk) -> None:
    """A long poll is answered when there is something, and with nothing when its time is over."""
    waiting = asyncio.create_task(desk.receive(wait_s=30))
    while not desk.jobs.waiting:
        await asyncio.sleep(0)
    await desk.submit("job-1")
    assert [job["key"] for job in await waiting] == ["job-1"]
    assert await desk.receive(wait_s=0.01) == []


async def test_who_hangs_up_is_given_nothing(desk: Desk) -> None:
    """The job goes to a worker who is there."""
    waiting = asyncio.create_task(desk.receive(wait_s=30))
    while not desk.jobs.waiting:
        await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    while desk.jobs.waiting:
        await asyncio.sleep(0.001)
    await desk.submit("job-1")
    assert [(job["key"], job["attempts"]) for job in await desk.receive()] == [("job-1", 1)]


async def test_a_repeated_receive_is_answered_the_same(desk: Desk) -> None:
    """Also while the first is still waiting; with another body 422; once the jobs are lost, others are given."""
    await desk.submit("a", "b", "c")
    first = await desk.post(RECEIVE, JOBS_ASKED | {"max": 2}, Idempotency_Key="once")
    again = await desk.post(RECEIVE, JOBS_ASKED | {"max": 2}, Idempotency_Key="once")
    for status, answer in (first, again):
        assert (status, [(job["key"], job["token"]) for job in answer["jobs"]]) == (200, [("a", 1), ("b", 1)])
    status, problem = await desk.post(RECEIVE, JOBS_ASKED | {"holder": "B"}, Idempotency_Key="once")
    assert (status, problem["reason"]) == (422, "idempotency-key-reused")
    for key in "ab":
        await desk.post(f"/v1/jobs/{key}/complete", {"token": 1})
    _, answer = await desk.post(RECEIVE, JOBS_ASKED | {"max": 2}, Idempotency_Key="once")
    assert [job["key"] for job in answer["jobs"]] == ["c"]


async def test_two_who_wait_under_one_idempotency_key(desk: Desk) -> None:
    """A worker that asked again, not knowing whether its first call still waits, is given one set of jobs."""
    calls = [
        asyncio.create_task(desk.post(RECEIVE, JOBS_ASKED | {"wait_s": 30}, Idempotency_Key="once")) for _ in range(2)
    ]
    while not desk.jobs.waiting:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    await desk.submit("a", "b")
    answers = [answer for _, answer in await asyncio.gather(*calls)]
    assert [[job["key"] for job in answer["jobs"]] for answer in answers] == [["a"], ["a"]]


async def test_a_delivery_waits_for_what_lower_tokens_have_sent(make: Make) -> None:
    """503, and the same delivery later; asked for by nobody, it counts no attempt, and the job is delivered again."""
    desk = await make(handover_wait_s=0.05)
    live = await desk.fences.admit(FencingKey("job-1"), Token(5), cause="test")
    passage = staged(desk, live, Token(5))  # type: ignore[arg-type]
    passage.commit()
    await desk.submit("job-1")
    status, problem = await desk.post(RECEIVE, JOBS_ASKED, Idempotency_Key="once")
    assert (status, problem["reason"]) == (503, "HandoverPending")
    passage.applied()
    _, answer = await desk.post(RECEIVE, JOBS_ASKED, Idempotency_Key="once")
    assert [(job["key"], job["token"], job["attempts"]) for job in answer["jobs"]] == [("job-1", 6, 1)]


async def test_a_delivery_that_nobody_can_ask_for_again(make: Make) -> None:
    """It is given up at once: the job stands aside a while, and no attempt counts."""
    desk = await make(handover_wait_s=0.05)
    live = await desk.fences.admit(FencingKey("job-1"), Token(5), cause="test")
    passage = staged(desk, live, Token(5))  # type: ignore[arg-type]
    passage.commit()
    await desk.submit("job-1")
    status, problem = await desk.post(RECEIVE, JOBS_ASKED)
    assert (status, problem["reason"]) == (503, "HandoverPending")
    while (job := await desk.job("job-1"))["state"] != "delayed":
        await asyncio.sleep(0.01)
    assert (job["attempts"], job["token"]) == (0, 6)
    passage.applied()


async def test_receive_answers_what_is_ready(make: Make) -> None:
    """One job whose hand-over is pending holds up none of the others."""
    desk = await make()
    live = await desk.fences.admit(FencingKey("a"), Token(5), cause="test")
    passage = staged(desk, live, Token(5))  # type: ignore[arg-type]
    passage.commit()
    await desk.submit("a", "b")
    _, answer = await desk.post(RECEIVE, JOBS_ASKED | {"max": 2}, Idempotency_Key="once")
    assert [job["key"] for job in answer["jobs"]] == ["b"]
    passage.applied()
    _, answer = await desk.post(RECEIVE, JOBS_ASKED | {"max": 2}, Idempotency_Key="once")
    assert [job["key"] for job in answer["jobs"]] == ["a", "b"]


async def test_idempotency_keys_of_two_queues(desk: Desk) -> None:
    """The same words, parted elsewhere, are another call: each queue answers its own jobs."""
    await desk.submit("a")
    assert (await desk.post("/v1/queues/q%2Fx/jobs", {"key": "b"}))[0] == 201
    _, first = await desk.post(RECEIVE, {"holder": "A"}, Idempotency_Key="x/1")
    _, second = await desk.post("/v1/queues/q%2Fx/receive", {"holder": "A"}, Idempotency_Key="1")
    assert [job["key"] for answer in (first, second) for job in answer["jobs"]] == ["a", "b"]
