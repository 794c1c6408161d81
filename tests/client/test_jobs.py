"""Jobs of a queue against a real gateway: what the end of their context means."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable

import pytest

from gateway.client import GatewayClient, Job, JobCompleted, LeaseLost, Refused, SyncGatewayClient, SyncJob, Unreachable
from tests.chaos.proxy import Harm
from tests.client.rig import BOUND_S, Served

VISIBILITY_S = 0.6
AFTERWARDS_S = 0.3


@pytest.fixture
def queue() -> str:
    return f"renders {secrets.token_hex(4)}"


async def taken(client: GatewayClient, queue: str) -> Job:
    (job,) = await client.receive(queue, visibility_s=VISIBILITY_S, wait_s=BOUND_S)
    return job


def taken_by_thread(client: SyncGatewayClient, queue: str) -> SyncJob:
    (job,) = client.receive(queue, visibility_s=VISIBILITY_S, wait_s=BOUND_S)
    return job


async def test_a_job_is_completed_by_the_end_of_its_context(gateway: Served, key: str, queue: str) -> None:
    """Delivered with its payload, kept past its time, completed; the next delivery of anything is another's."""
    async with GatewayClient(gateway.url) as client:
        submitted = await client.submit(queue, key, {"frames": [1, 240]})
        assert (submitted.state, submitted.queue) == ("waiting", queue)
        assert (await client.submit(queue, key, "another payload")).payload == {"frames": [1, 240]}
        job = await taken(client, queue)
        assert (job.key, job.payload, job.attempts) == (key, {"frames": [1, 240]}, 1)
        async with job:
            time.sleep(2 * VISIBILITY_S)  # the loop's own thread, on purpose
            job.check()
        record = await client.job(key)
        assert (record.state, record.token) == ("completed", job.token)
        assert await client.receive(queue, wait_s=0) == []


async def test_a_result_is_given_within(gateway: Served, key: str, queue: str) -> None:
    """Completed once, with its result, in spite of a lost answer; the context adds nothing."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        gateway.harms += [(b"/receive", Harm.SWALLOW), (b"/complete", Harm.SWALLOW)]
        async with await taken(client, queue) as job:
            await job.complete(["a", 1])
        assert gateway.harms == []
        record = await client.job(key)
        assert record.completion is not None
        assert (record.completion.result, record.attempts) == (["a", 1], 1)


async def test_a_submission_is_repeated_under_one_idempotency_key(
    gateway: Served, key: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, so it is sent again, as the same one; the next call is another."""
    drawn: list[bytes] = []

    def harm(head: bytes) -> Harm:
        drawn.extend(re.findall(rb"(?i)\r\nidempotency-key: (\S+)", head))
        return gateway.harm(head)

    monkeypatch.setattr(gateway.proxy, "harm", harm)
    gateway.harms.append((b"/jobs", Harm.SWALLOW))
    async with GatewayClient(gateway.url) as client:
        assert (await client.submit(queue, key)).state == "waiting"
        await client.submit(queue, key)
    first, again, other = drawn
    assert first == again != other


async def test_numbers_of_any_length(gateway: Served, key: str, queue: str) -> None:
    """A whole number comes back digit by digit; what JSON has no word for is refused before it is sent, and what no
    double can be by the gateway."""
    long = [10**30, -(2**63) - 1, 2**64]
    async with GatewayClient(gateway.url) as client:
        for unsaid, refusal in ((math.nan, ValueError), ({1, 2}, TypeError), (10**400, Refused)):
            with pytest.raises(refusal):
                await client.submit(queue, key, unsaid)
        assert (await client.submit(queue, key, long)).payload == long
        async with await taken(client, queue) as job:
            assert job.payload == long
            await job.complete({"ids": long})
        record = await client.job(key)
        assert record.completion is not None
        assert record.completion.result == {"ids": long}


async def test_what_the_body_raises_is_a_failed_attempt(gateway: Served, key: str, queue: str) -> None:
    """The error comes out, is kept with the job, and the job waits for its next attempt."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)
        with pytest.raises(ZeroDivisionError):
            async with job:
                _ = 1 // 0
        record = await client.job(key)
        assert (record.state, record.attempts) == ("delayed", 1)
        assert "ZeroDivisionError: " in record.error


async def test_who_gives_up_in_time_has_failed(gateway: Served, key: str, queue: str) -> None:
    """A worker that ends before its lease does, since it cannot be renewed or another lease is lost, has had its
    attempt: given back without one, the job would be tried for ever."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)
        with pytest.raises(LeaseLost):
            async with job:
                raise LeaseLost("another one")
        record = await client.job(key)
        assert (record.state, record.attempts, record.error) == ("delayed", 1, "LeaseLost: another one")


def test_a_thread_that_gives_up_in_time_has_failed(gateway: Served, key: str, queue: str) -> None:
    """As a task has."""
    with SyncGatewayClient(gateway.url) as client:
        client.submit(queue, key)
        job = taken_by_thread(client, queue)
        with pytest.raises(LeaseLost), job:
            raise job.run_out()
        record = client.job(key)
        assert (record.state, record.attempts) == ("delayed", 1)


async def test_waiting_for_ever(gateway: Served, key: str, queue: str) -> None:
    """A wait has no longest time: what the gateway cuts is asked again."""
    async with GatewayClient(gateway.url) as client:
        waiting = asyncio.ensure_future(client.receive(queue, visibility_s=VISIBILITY_S, wait_s=math.inf))
        await client.submit(queue, key)
        (job,) = await waiting
        async with job, client.lease(key + " too", wait_s=math.inf):
            pass
        assert (await client.job(key)).state == "completed"


async def test_a_failure_whose_words_are_no_utf_8(gateway: Served, key: str, queue: str) -> None:
    """As of a file with an odd name: the attempt counts all the same, so that such a job does not come back for
    ever."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)
        with pytest.raises(FileNotFoundError):
            async with job:
                raise FileNotFoundError(2, "No such file", os.fsdecode(b"\xff.exr"))
        record = await client.job(key)
        assert (record.state, record.attempts) == ("delayed", 1)
        assert ".exr" in record.error


async def test_a_refused_completion_that_is_caught(gateway: Served, key: str, queue: str) -> None:
    """The end of the context does not complete the job without what was refused: it is a failed attempt, and raised
    again."""

    async def work(job: Job) -> None:
        async with job:
            with contextlib.suppress(Refused):
                await job.complete("done", outputs=["studio/missing.mp4"])

    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)
        with pytest.raises(Refused, match="no such object"):
            await work(job)
        record = await client.job(key)
        assert (record.state, record.completion) == ("delayed", None)
        assert "missing.mp4" in record.error


async def test_after_a_refused_completion(gateway: Served, key: str, queue: str) -> None:
    """A worker who then ends the job in another way, or completes it after all, hears no more of what was refused."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        async with await taken(client, queue) as job:
            with contextlib.suppress(Refused):
                await job.complete(outputs=["studio/missing.mp4"])
            await job.fail("nothing was rendered", delay_s=0)
        assert (await client.job(key)).error == "nothing was rendered"
        async with await taken(client, queue) as job:
            with contextlib.suppress(Refused):
                await job.complete(outputs=["studio/missing.mp4"])
            await job.complete("without it")
        done = (await client.job(key)).completion
        assert done is not None
        assert done.result == "without it"


async def test_an_end_that_was_cut_short(gateway: Served, key: str, queue: str) -> None:
    """A completion that its caller has given up is not replaced by one without its result, and a failure not by a
    completion."""

    async def work(job: Job, end: Callable[[Job], Awaitable[None]]) -> None:
        async with job:
            gateway.reachable = False
            with contextlib.suppress(TimeoutError, Unreachable):
                await asyncio.wait_for(end(job), 0.01)
            gateway.reachable = True

    async with GatewayClient(gateway.url) as client:
        for number, end in enumerate((lambda job: job.complete("done"), lambda job: job.fail("no such scene"))):
            await client.submit(queue, f"{key} {number}")
            job = await taken(client, queue)
            with pytest.raises(Unreachable):
                await work(job, end)
            record = await client.job(job.key)
            assert (record.state, record.completion) == ("delayed", None)


async def test_a_failure_may_be_final(gateway: Served, key: str, queue: str) -> None:
    """Told not to retry, the queue keeps it for people; told when, it tries again then."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        async with await taken(client, queue) as job:
            await job.fail("out of memory", delay_s=0)
        async with await taken(client, queue) as job:
            assert job.attempts == 2
            await job.fail("no such scene", retry=False)
        record = await client.job(key)
        assert (record.state, record.error) == ("dead", "no such scene")


async def test_a_failure_that_does_not_get_through_is_told_again(gateway: Served, key: str, queue: str) -> None:
    """Cut off, as by a restart, it is recorded all the same, with what it says of other attempts."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        async with await taken(client, queue) as job:
            gateway.harms.append((b"/fail", Harm.CUT_BEFORE))
            await job.fail("no such scene", retry=False)
        assert ((await client.job(key)).state, gateway.harms) == ("dead", [])


async def test_a_failure_is_told_also_after_the_deadline(gateway: Served, key: str, queue: str) -> None:
    """The gateway is away for longer than the job's time: what is said of it is recorded all the same."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        async with await taken(client, queue) as job:
            gateway.reachable = False
            failing = asyncio.create_task(job.fail("no such scene", retry=False))
            await asyncio.sleep(job.left_s + AFTERWARDS_S)
            gateway.reachable = True
            await failing
        record = await client.job(key)
        assert (record.state, record.error) == ("dead", "no such scene")


async def test_a_cancelled_worker_gives_its_job_back(gateway: Served, key: str, queue: str) -> None:
    """Cancelled from outside, nothing has been wrong with the job: it is delivered again at once, and no attempt
    counts."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)
        entered = asyncio.Event()

        async def work() -> None:
            async with job:
                entered.set()
                await asyncio.sleep(BOUND_S)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await taken(client, queue) as again:
            assert (again.attempts, again.token) == (1, job.token + 1)


async def test_a_job_that_was_entered_too_late(gateway: Served, key: str, queue: str) -> None:
    """Delivered to another meanwhile, it cannot be entered; what the other does stands."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        late = await taken(client, queue)
        async with await taken(client, queue) as job:
            with pytest.raises(LeaseLost):
                await late.__aenter__()
        assert (await client.job(key)).token == job.token


async def test_a_lost_job_is_told_as_a_lost_lease(gateway: Served, key: str, queue: str) -> None:
    """Taken over, the body is cancelled; nothing is recorded of it."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        job = await taken(client, queue)

        async def work() -> None:
            async with job:
                await asyncio.to_thread(gateway.take_over, key)
                await asyncio.sleep(BOUND_S)

        with pytest.raises(LeaseLost):
            await work()
        assert (await client.job(key)).completion is None


async def test_two_who_both_believe_they_did_it(gateway: Served, key: str, queue: str) -> None:
    """The first completion stands; the second is told whose it is."""
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        async with await taken(client, queue) as job:
            other = asyncio.create_task(client.lease(key, wait_s=BOUND_S).__aenter__())
            await job.complete("first")
        with pytest.raises(JobCompleted) as completed:
            await other
        assert completed.value.token == job.token


async def test_a_delivery_that_nobody_waits_for_any_more(gateway: Served, key: str, queue: str) -> None:
    """Cancelled when the gateway has delivered a job and its answer is still on its way: it is given back, also where
    the client is closed at once, and no attempt is counted."""
    gateway.harms.append((b"/receive", Harm.SILENCE))
    async with GatewayClient(gateway.url) as client:
        await client.submit(queue, key)
        receiving = asyncio.create_task(client.receive(queue, visibility_s=BOUND_S))
        while (await client.job(key)).state != "running":
            await asyncio.sleep(0.01)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
    async with GatewayClient(gateway.url) as client:
        record = await client.job(key)
        assert (record.state, record.attempts) == ("waiting", 0)


def test_jobs_without_asyncio(gateway: Served, key: str, queue: str) -> None:
    """The same for a thread: failed, given back when it is interrupted, completed by its end."""
    with SyncGatewayClient(gateway.url) as client:
        client.submit(queue, key, "payload")
        with taken_by_thread(client, queue) as job:
            assert job.payload == "payload"
            job.fail("not yet", delay_s=0)
        with pytest.raises(KeyboardInterrupt), taken_by_thread(client, queue):
            raise KeyboardInterrupt
        with taken_by_thread(client, queue) as job:
            assert job.attempts == 2
        assert client.job(key).state == "completed"


def test_a_refused_completion_that_a_thread_has_caught(gateway: Served, key: str, queue: str) -> None:
    """As in a task: not completed by the end of the context, but failed, and raised."""
    with SyncGatewayClient(gateway.url) as client:
        client.submit(queue, key)
        job = taken_by_thread(client, queue)

        def work() -> None:
            with job, contextlib.suppress(Refused):
                job.complete(outputs=["studio/missing.mp4"])

        with pytest.raises(Refused, match="no such object"):
            work()
        record = client.job(key)
        assert (record.state, record.completion) == ("delayed", None)
