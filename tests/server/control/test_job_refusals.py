"""Calls on jobs that are refused: who may not, and what is asked wrongly (docs/jobs.md)."""

from __future__ import annotations

import pytest

from gateway.core.job import MAX_PAYLOAD_BYTES, RetryPolicy
from gateway.service.queues import QueueRule, QueueRules
from tests.server.control.desk import JOBS, JOBS_ASKED, RECEIVE, WHY, Desk, Make, desk, make
from tests.server.control.rig import OPERATOR, OTHER, TOKENS, WORKER

__all__ = ["desk", "make"]


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
    (JOBS, b'{"key": "a", "payload": ' + b"[" * 1000 + b"]" * 1000 + b"}", 400, "nested too deep"),
    (JOBS, b'{"key": "a", "payload": 1e400}', 400, "`payload` holds a number beyond 1.7e308"),
    (JOBS, b'{"key": "a", "payload": ' + b"9" * 400 + b"}", 400, "`payload` holds a number beyond"),
    ("/v1/jobs/a/complete", b'{"token": 1, "result": [-1e400]}', 400, "`result` holds a number beyond"),
    ("/v1/jobs/a/complete", b'{"token": 1e400}', 400, "`token` holds a number beyond"),
    (JOBS, b'{"key": "a", "payload": [{"b": 1, "b": 2}]}', 400, "'b' twice"),
    ("/v1/jobs/a/complete", b'{"token": 1, "outputs": [{"bucket": "b", "key": "k", "key": "l"}]}', 400, "'key' twice"),
    (JOBS, b"[1e400]", 400, "object"),
    (JOBS, b'{"key": "a", "payload": [1e400}', 400, "object"),
    (JOBS, b'{"key": "\\ud800", "payload": 1e400}', 400, "`payload` holds a number beyond"),
    (JOBS, b"[]", 400, "object"),
    ("/v1/queues/" + "q" * 129 + "/jobs", {"key": "a"}, 400, "128 bytes"),
    ("/v1/queues/a%0Ab/jobs", {"key": "a"}, 400, "queue"),
    (RECEIVE, {"holder": ""}, 400, "`holder`"),
    (RECEIVE, {"holder": "a\n"}, 400, "`holder`: must be text without control characters"),
    *(
        (
            "/v1/jobs/a/complete",
            {"token": 1, "outputs": [{"bucket": bucket, "key": key}]},
            400,
            f"`outputs.0.{member}`: must be {words}",
        )
        for bucket, key, member, words in (
            ("-b", "k", "bucket", "the name of a bucket"),
            ("b" * 256, "k", "bucket", "the name of a bucket"),
            ("b", "a\0", "key", "the key of an object"),
        )
    ),
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
