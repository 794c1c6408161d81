"""Jobs and queues over the control API: what is asked, and every answer (docs/jobs.md)."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from gateway.core.job import RetryPolicy
from gateway.service.queues import QueueRule, QueueRules
from tests.server.control.desk import JOBS, JOBS_ASKED, RECEIVE, WHY, Desk, Make, desk, make
from tests.server.control.rig import AWKWARD, AWKWARD_RAW, TIME, samples

__all__ = ["desk", "make"]


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


async def test_numbers_stay_as_they_were_written(desk: Desk) -> None:
    """No number of a payload or a result becomes another one, which in a float it would: they come out digit by digit,
    wherever they are told. Only what stands between them is left out."""
    written = (
        b'{"id":123456789012345678901234567890,"least":-9223372036854775809,"max":18446744073709551616,'
        b'"pi":3.14159265358979323846,"tiny":1e-400,"one":[1.0,1E2,-0]}'
    )
    spaced = written.replace(b":", b" : ").replace(b",", b",\n\t")

    async def told(method: str, target: str, body: bytes | None = None) -> bytes:
        answer = await desk.client.request(method, target, data=body)
        assert answer.status < 300
        return await answer.read()

    at_once = await told("POST", JOBS, b'{"key": "job-1", "payload": ' + spaced + b"}")
    listed, alone = await told("GET", "/v1/jobs"), await told("GET", "/v1/jobs/job-1")
    delivered = await told("POST", RECEIVE, b'{"holder": "A"}')
    for answer in (at_once, listed, alone, delivered):
        assert b'"payload":' + written in answer
    done = await told("POST", "/v1/jobs/job-1/complete", b'{"token": 1, "result": ' + spaced + b"}")
    for answer in (done, await told("GET", "/v1/jobs/job-1")):
        assert b'"result":' + written in answer


async def test_awkward_keys(desk: Desk) -> None:
    """A key may hold nearly everything, and so may the name of a queue."""
    queue = quote("re/nders {ü}", safe="")
    assert (await desk.post(f"/v1/queues/{queue}/jobs", {"key": AWKWARD}))[0] == 201
    _, received = await desk.post(f"/v1/queues/{queue}/receive", JOBS_ASKED)
    assert [job["key"] for job in received["jobs"]] == [AWKWARD]
    assert (await desk.post(f"/v1/jobs/{AWKWARD_RAW}/complete", {"token": 1}))[0] == 200
    assert (await desk.job(AWKWARD_RAW))["queue"] == "re/nders {ü}"


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
