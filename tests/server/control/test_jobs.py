"""Jobs and queues over the control API: what is asked, and every answer (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote

import pytest

from gateway.core.job import MAX_PAYLOAD_BYTES, RetryPolicy
from gateway.core.keys import FencingKey, Token
from gateway.service.queues import QueueRule, QueueRules
from gateway.upstream.base import UpstreamRequest
from tests.server.control.desk import JOBS, JOBS_ASKED, RECEIVE, Desk, Make, desk, make
from tests.server.control.rig import (
    AWKWARD,
    AWKWARD_RAW,
    OPERATOR,
    OTHER,
    TIME,
    TOKENS,
    WORKER,
    samples,
    staged,
)

__all__ = ["desk", "make"]

WHY = {"reason": "try again"}


# --- the way of a job


async def test_a_job_from_submission_to_completion(desk: Desk) -> None:
    """Submitted, delivered under a fresh token, extended, completed; each answer as docs/jobs.md shows it."""
    status, job = await desk.post(JOBS, {"key": "job-1", "payload": {"frame": 7}, "priority": 3})
    assert (status, job["queue"], job["state"], job["payload"]) == (201, "q", "waiting", {"frame": 7})
    assert TIME.fullmatch(job["submitted_at"])
    (delivery,) = await desk.receive()
    assert delivery == {
        "key": "job-1",
        "token": 1,
        "holder": "A",
        "ttl_s": 30,
        "expires_in_s": delivery["expires_in_s"],
        "queue": "q",
        "payload": {"frame": 7},
        "attempts": 1,
        "priority": 3,
    }
    assert 29 < delivery["expires_in_s"] <= 30
    known = await desk.job("job-1")
    assert (known["state"], known["attempts"], known["token"], known["holder"]) == ("running", 1, 1, "A")
    status, lease = await desk.post("/v1/jobs/job-1/extend", {"token": 1, "visibility_s": 60})
    assert (status, lease["token"]) == (200, 1)
    assert 59 < lease["expires_in_s"] <= 60
    status, done = await desk.post("/v1/jobs/job-1/complete", {"token": "1", "result": {"frames": 24}})
    assert (status, done["state"]) == (200, "completed")
    completion = done["completion"]
    assert TIME.fullmatch(completion.pop("at"))
    assert completion == {"token": 1, "holder": "A", "result": {"frames": 24}, "outputs": []}
    assert (await desk.call("GET", "/v1/fences/job-1"))[1]["sealed"]
    assert await desk.receive() == []


async def test_a_key_names_one_job(desk: Desk) -> None:
    """The same key again is 200 and unchanged, in every state; of another queue, or where none was wanted, 409."""
    await desk.submit("job-1", payload=1)
    for _ in range(2):
        status, job = await desk.post(JOBS, {"key": "job-1", "payload": 2, "priority": 9})
        assert (status, job["payload"], job["priority"]) == (200, 1, 0)
        await desk.receive()
        await desk.post("/v1/jobs/job-1/complete", {"token": 1})
    assert job["state"] == "completed"
    status, problem = await desk.post("/v1/queues/other/jobs", {"key": "job-1"})
    assert (status, problem["reason"], problem["key"]) == (409, "exists", "job-1")
    status, problem = await desk.post(JOBS, {"key": "job-1", "deduplicate": False})
    assert (status, problem["reason"]) == (409, "exists")


async def test_a_repeated_submission_is_answered_the_same(desk: Desk) -> None:
    """With its idempotency key it is 201 again, whatever has become of the job and also where a job that exists is
    refused; of another key it is what a second submission is; with another job it is an error."""
    asked = {"key": "a", "payload": [1], "priority": 2, "deduplicate": False}
    first = await desk.post(JOBS, asked, Idempotency_Key="once")
    assert first[0] == 201
    assert await desk.post(JOBS, asked, Idempotency_Key="once") == first
    await desk.receive()
    status, job = await desk.post(JOBS, asked, Idempotency_Key="once")
    assert (status, job["state"]) == (201, "running")
    for key, deduplicate, expected in (("other", True, 200), ("other", False, 409)):
        assert (await desk.post(JOBS, asked | {"deduplicate": deduplicate}, Idempotency_Key=key))[0] == expected
    for changed in ({"payload": [2]}, {"priority": 3}):
        status, problem = await desk.post(JOBS, asked | changed, Idempotency_Key="once")
        assert (status, problem["reason"]) == (422, "idempotency-key-reused")
    assert (await desk.post("/v1/queues/other/jobs", asked, Idempotency_Key="once"))[0] == 409
    assert (await desk.post(JOBS, asked | {"key": "b"}, Idempotency_Key="once"))[0] == 201


async def test_line(desk: Desk) -> None:
    """The highest priority first, then who came first; several at a time if asked for; each queue for itself."""
    await desk.submit("a", "b")
    await desk.submit("c", priority=1)
    await desk.post("/v1/queues/other/jobs", {"key": "z", "priority": 9})
    assert [job["key"] for job in await desk.receive(max=2)] == ["c", "a"]
    assert [job["key"] for job in await desk.receive(max=2)] == ["b"]
    assert await desk.receive(max=2) == []


async def test_awkward_keys(desk: Desk) -> None:
    """A key may hold nearly everything, and so may the name of a queue."""
    queue = quote("re/nders ü", safe="")
    assert (await desk.post(f"/v1/queues/{queue}/jobs", {"key": AWKWARD}))[0] == 201
    _, received = await desk.post(f"/v1/queues/{queue}/receive", JOBS_ASKED)
    assert [job["key"] for job in received["jobs"]] == [AWKWARD]
    assert (await desk.post(f"/v1/jobs/{AWKWARD_RAW}/complete", {"token": 1}))[0] == 200
    assert (await desk.job(AWKWARD_RAW))["queue"] == "re/nders ü"


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


async def test_release_and_fail(desk: Desk) -> None:
    """Given back, the job is there at once and no attempt counts; failed, it waits, and says what was wrong."""
    await desk.submit("job-1")
    await desk.receive()
    status, job = await desk.post("/v1/jobs/job-1/release", {"token": 1})
    assert (status, job["state"], job["attempts"]) == (200, "waiting", 0)
    await desk.receive()
    status, job = await desk.post("/v1/jobs/job-1/fail", {"token": 2, "error": "no disk"})
    assert (status, job["state"], job["attempts"], job["error"]) == (200, "delayed", 1, "no disk")
    assert TIME.fullmatch(job["available_at"])
    assert await desk.receive() == []
    for how in ("release", "fail"):
        status, problem = await desk.post(f"/v1/jobs/job-1/{how}", {"token": 2})
        assert (status, problem["reason"], problem["floor"]) == (409, "lost", 2)


async def test_dead_and_redriven(make: Make) -> None:
    """After the last attempt a job is dead, until an operator has it tried again, one by one or all."""
    desk = await make(rules=QueueRules((QueueRule("q", RetryPolicy(max_attempts=1)),)))
    await desk.submit("a", "b")
    for job in await desk.receive(max=2):
        _, failed = await desk.post(f"/v1/jobs/{job['key']}/fail", {"token": 1})
        assert failed["state"] == "dead"
    _, dead = await desk.call("GET", "/v1/jobs?queue=q&state=dead&limit=1")
    assert ([job["key"] for job in dead["jobs"]], dead["next"]) == (["a"], "a")
    _, dead = await desk.call("GET", "/v1/jobs?queue=q&state=dead&after=a")
    assert ([job["key"] for job in dead["jobs"]], dead["next"]) == (["b"], None)
    assert await desk.post("/v1/queues/q/redrive", WHY | {"limit": 1}) == (200, {"reopened": 1})
    status, answer = await desk.post("/v1/jobs/b/reopen", WHY)
    assert (status, answer["job"]["state"], answer["job"]["attempts"]) == (200, "waiting", 0)
    status, problem = await desk.post("/v1/jobs/b/reopen", WHY)
    assert (status, problem["reason"]) == (409, "not-ended")
    assert [(job["key"], job["token"]) for job in await desk.receive(max=2)] == [("a", 2), ("b", 2)]


async def test_a_dead_worker_is_replaced(desk: Desk) -> None:
    """The job comes back with a higher token; what the first one does then is lost, or stale."""
    await desk.submit("job-1")
    await desk.receive(visibility_s=0.1)
    (again,) = await desk.receive(holder="B", wait_s=30)
    assert (again["token"], again["attempts"]) == (2, 2)
    for call in ("extend", "release", "fail"):
        status, problem = await desk.post(f"/v1/jobs/job-1/{call}", {"token": 1})
        assert (status, problem["reason"], problem["floor"]) == (409, "lost", 2)
    status, problem = await desk.post("/v1/jobs/job-1/complete", {"token": 1})
    assert (status, problem["reason"], problem["floor"]) == (412, "stale", 2)


async def test_who_ran_out_and_was_not_replaced_goes_on(desk: Desk) -> None:
    """He extends and completes with his token, and nobody else is given the job meanwhile."""
    await desk.submit("job-1")
    await desk.receive(visibility_s=0.1)
    while (await desk.job("job-1"))["state"] != "waiting":
        await asyncio.sleep(0.01)
    assert (await desk.post("/v1/jobs/job-1/extend", {"token": 1, "visibility_s": 30}))[0] == 200
    assert ((await desk.job("job-1"))["state"], await desk.receive()) == ("running", [])
    assert (await desk.post("/v1/jobs/job-1/complete", {"token": 1}))[0] == 200


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


async def test_a_lease_on_a_job_that_waits(desk: Desk) -> None:
    """Leased without its queue it is delivered to nobody, until the lease ends; a worker may complete it by lease."""
    await desk.submit("a", "b")
    _, lease = await desk.post("/v1/leases/a", {"holder": "me", "ttl_s": 0.2})
    assert [job["key"] for job in await desk.receive()] == ["b"]
    for call in ("release", "fail"):
        status, problem = await desk.post(f"/v1/jobs/a/{call}", {"token": lease["token"]})
        assert (status, problem["reason"]) == (409, "not-delivered")
    (job,) = await desk.receive(wait_s=30)
    assert (job["key"], job["token"]) == ("a", 2)


async def test_a_job_stands_aside_no_longer_than_the_lease(desk: Desk) -> None:
    """Given up before its time, or taken by an operator, the lease that was in the way is so no more: the job is
    delivered at once."""
    await desk.submit("a", "b")
    for key in ("a", "b"):
        await desk.post(f"/v1/leases/{key}", {"holder": "me", "ttl_s": 3600})
    assert await desk.receive() == []
    waiting = asyncio.ensure_future(desk.receive(wait_s=30))
    assert (await desk.client.delete("/v1/leases/a?token=1")).status == 204
    async with asyncio.timeout(10):
        assert [job["key"] for job in await waiting] == ["a"]
        waiting = asyncio.ensure_future(desk.receive(wait_s=30))
        assert (await desk.post("/v1/fences/b/seal", WHY))[0] == 200
        assert [job["key"] for job in await waiting] == ["b"]


async def test_a_delivery_given_up_as_a_lease(desk: Desk) -> None:
    """It is given back like by `release`."""
    await desk.submit("a")
    await desk.receive()
    answer = await desk.client.delete("/v1/leases/a?token=1")
    assert answer.status == 204
    assert [(job["token"], job["attempts"]) for job in await desk.receive(wait_s=30)] == [(2, 1)]


async def test_an_operator_takes_a_job_from_its_worker(desk: Desk) -> None:
    """Sealed, or raised above: the job comes back."""
    await desk.submit("a")
    await desk.receive()
    assert (await desk.post("/v1/fences/a/seal", WHY))[0] == 200
    (job,) = await desk.receive(wait_s=30)
    assert job["token"] == 2
    assert (await desk.post("/v1/fences/a/raise", WHY | {"token": 9}))[0] == 200
    (job,) = await desk.receive(wait_s=30)
    assert job["token"] == 10


# --- completion


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
        assert (job["completion"]["token"], job["completion"]["result"]) == (token, [1])
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
        ((None, 0), "not been written under a fencing key"),
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


# --- who may, and what is asked wrongly


async def test_roles_and_keys(make: Make) -> None:
    """A worker may not reopen or redrive; one limited to some keys submits and is given those alone."""
    desk = await make(TOKENS)
    for target in ("/v1/jobs/job-1/reopen", "/v1/queues/q/redrive"):
        status, problem = await desk.post(target, WHY, WORKER)
        assert (status, problem["reason"]) == (403, "forbidden")
    assert (await desk.post(JOBS, {"key": "mine"}, WORKER))[0] == 403
    for key in ("mine", "job-1"):
        assert (await desk.post(JOBS, {"key": key}, OPERATOR))[0] == 201
    _, received = await desk.post(RECEIVE, JOBS_ASKED | {"max": 9}, WORKER)
    assert [job["key"] for job in received["jobs"]] == ["job-1"]
    _, listed = await desk.call("GET", "/v1/jobs", bearer=WORKER)
    assert [job["key"] for job in listed["jobs"]] == ["job-1"]
    assert (await desk.post("/v1/jobs/mine/complete", {"token": 1}, WORKER))[0] == 403
    assert (await desk.call("GET", "/v1/queues"))[0] == 401


async def test_an_operator_limited_to_some_keys(make: Make) -> None:
    """He has the dead jobs of a queue done again that he may use, and no others."""
    desk = await make(TOKENS, rules=QueueRules((QueueRule("q", RetryPolicy(max_attempts=1)),)))
    for key in ("job-1", "other"):
        assert (await desk.post(JOBS, {"key": key}, OPERATOR))[0] == 201
        await desk.post(RECEIVE, JOBS_ASKED, OPERATOR)
        assert (await desk.post(f"/v1/jobs/{key}/fail", {"token": 1}, OPERATOR))[0] == 200
    assert await desk.post("/v1/queues/q/redrive", WHY, OTHER) == (200, {"reopened": 1})
    _, dead = await desk.call("GET", "/v1/jobs?state=dead", bearer=OPERATOR)
    assert [job["key"] for job in dead["jobs"]] == ["job-1"]


async def test_unknown_queues(make: Make) -> None:
    """Where the settings name queues there are no others; where they name none, every queue exists."""
    desk = await make(rules=QueueRules((QueueRule("renders-*"),)))
    for target, body in ((JOBS, {"key": "a"}), (RECEIVE, JOBS_ASKED), ("/v1/queues/q/redrive", WHY)):
        status, problem = await desk.post(target, body)
        assert (status, problem["reason"]) == (404, "unknown-queue")
        assert "renders-*" in problem["detail"]
    assert (await desk.post("/v1/queues/renders-4k/jobs", {"key": "a"}))[0] == 201
    desk = await make()
    assert await desk.post(RECEIVE, JOBS_ASKED) == (200, {"jobs": []})


async def test_unknown_jobs(desk: Desk) -> None:
    """404 to look at and to reopen; a token of it has never been issued."""
    for method, target, body in (("GET", "/v1/jobs/none", None), ("POST", "/v1/jobs/none/reopen", WHY)):
        status, problem = await desk.call(method, target, body)
        assert (status, problem["reason"], problem["key"]) == (404, "not-found", "none")
    for call in ("extend", "release", "fail"):
        status, problem = await desk.post(f"/v1/jobs/none/{call}", {"token": 1})
        assert (status, problem["reason"]) == (400, "TokenNotIssued")


BAD: list[tuple[str, object, int, str]] = [
    (JOBS, {}, 400, "`key`"),
    (JOBS, {"key": ""}, 400, "key"),
    (JOBS, {"key": "a", "priority": 1001}, 400, "`priority`"),
    (JOBS, {"key": "a", "priority": "1"}, 400, "`priority`"),
    (JOBS, {"key": "a", "delay_s": -1}, 400, "`delay_s`"),
    (JOBS, {"key": "a", "colour": 1}, 400, "'colour'"),
    (JOBS, {"key": "a", "payload": "x" * MAX_PAYLOAD_BYTES}, 413, "`payload`"),
    (JOBS, b'{"key": "a", "payload": ' + b"[" * 255 + b"]" * 255 + b"}", 400, "`payload`"),
    (JOBS, b"[]", 400, "object"),
    ("/v1/queues/" + "q" * 129 + "/jobs", {"key": "a"}, 400, "128 bytes"),
    ("/v1/queues/a%0Ab/jobs", {"key": "a"}, 400, "queue"),
    (RECEIVE, {"holder": ""}, 400, "`holder`"),
    (RECEIVE, JOBS_ASKED | {"visibility_s": 0}, 400, "`visibility_s`"),
    (RECEIVE, JOBS_ASKED | {"visibility_s": 3601}, 400, "`visibility_s`"),
    (RECEIVE, JOBS_ASKED | {"wait_s": -1}, 400, "`wait_s`"),
    (RECEIVE, JOBS_ASKED | {"max": 101}, 400, "`max`"),
    ("/v1/jobs/a/extend", {"token": 0}, 400, "token"),
    ("/v1/jobs/a/extend", {"token": 1, "visibility_s": 3601}, 400, "`visibility_s`"),
    ("/v1/jobs/a/fail", {"token": 1, "error": "x" * 4097}, 400, "`error`"),
    ("/v1/jobs/a/complete", {"token": 1, "result": "x" * MAX_PAYLOAD_BYTES}, 413, "`result`"),
    ("/v1/jobs/a/complete", {"token": 1, "outputs": [{"bucket": "b"}]}, 400, "outputs"),
    ("/v1/jobs/a/complete", {"token": 1, "outputs": [{"bucket": "b", "key": "k"}] * 101}, 400, "`outputs`"),
    ("/v1/jobs/a/reopen", {}, 400, "`reason`"),
    ("/v1/queues/q/redrive", WHY | {"limit": 0}, 400, "`limit`"),
]


@pytest.mark.parametrize(("target", "body", "status", "names"), BAD)
async def test_bad_input(desk: Desk, target: str, body: object, status: int, names: str) -> None:
    """Each is refused with what is wrong in it, and changes nothing."""
    answered, problem = await desk.post(target, body)
    assert answered == status
    assert names in problem["detail"]
    assert (await desk.call("GET", "/v1/jobs"))[1]["jobs"] == []


async def test_a_state_that_there_is_not(desk: Desk) -> None:
    """A list of jobs in an unknown state is 400."""
    status, problem = await desk.call("GET", "/v1/jobs?state=lost")
    assert (status, problem["reason"]) == (400, "invalid")


async def test_a_store_that_fails(desk: Desk) -> None:
    """503, nothing is lost, and it goes on when the store does."""
    await desk.submit("a")
    desk.store.broken = True
    for target, body in ((JOBS, {"key": "b"}), (RECEIVE, JOBS_ASKED), ("/v1/jobs/a/complete", {"token": 1})):
        status, problem = await desk.post(target, body)
        assert (status, problem["reason"]) == (503, "StoreUnavailable")
    desk.store.broken = False
    assert [job["key"] for job in await desk.receive()] == ["a"]


async def test_queues_and_metrics(make: Make) -> None:
    """How many jobs are in which state; what runs, who waits, and what has happened; a job's output is handed out."""
    desk = await make(output="renders/out")
    await desk.submit("a", "b", "c")
    (job,) = await desk.receive()
    assert job["output"] == "renders/out"
    await desk.post("/v1/jobs/a/complete", {"token": 1})
    await desk.receive()
    assert await desk.call("GET", "/v1/queues") == (
        200,
        {"queues": [{"queue": "q", "jobs": {"completed": 1, "running": 1, "waiting": 1}}]},
    )
    told_of = await samples(desk)  # type: ignore[arg-type]
    assert told_of["fencing_jobs_running"] == 1
    assert told_of["fencing_workers_waiting"] == 0
    assert told_of["fencing_jobs_total,event=submitted"] == 3
    assert told_of["fencing_jobs_total,event=delivered"] == 2
    assert told_of["fencing_jobs_total,event=completed"] == 1
