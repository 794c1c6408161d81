"""The incident, twice: a worker is frozen in the middle of its upload, another takes over, the first one wakes up.

Playing tells each step and answers what has come of it; whether that is what the story tells, `verdict.py` judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.cli.control_client import ControlClient
from gateway.cli.demonstration.gateway import QUEUE, DemoGateway
from gateway.cli.demonstration.processes import DemoFault, Endpoint, WorkerProcess, workers
from gateway.cli.demonstration.receiver import Receiver
from gateway.cli.demonstration.task import SIZE_BYTES, Task, content
from gateway.cli.demonstration.verdict import Answer, WithGateway, WithoutGateway
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials

JOB, OBJECT = "job-1", "job-1/out.mp4"
SHORT_S, LONG_S = 2.0, 60.0
"""How long a worker has for the job unless it is heard of: those who will fall silent, and the one who does the work
however slow the machine is."""
ANSWER_TIMEOUT_S = 10
POLL_S = 0.05
MIB = 1024 * 1024

WITH, WITHOUT = "With the gateway", "Without the gateway: the same, straight to the store"

Tell = Callable[[str, str], None]
"""Takes who did something, and what."""


async def play_with_gateway(
    gateway: DemoGateway, receiver: Receiver, begin: Callable[[str], None], tell: Tell
) -> WithGateway:
    """Play it before a gateway whose queue the job comes from. Raises `DemoFault` where it cannot go on, `Refused`,
    `Unreachable`, `UpstreamLost`, `UpstreamNotReached`."""
    s3 = gateway.s3
    task = Task(s3.url, s3.bucket, control_url=gateway.control_url, queue=QUEUE, visibility_s=SHORT_S)
    await _make_bucket(s3)
    with ControlClient(gateway.control_url, "", None) as control:
        async with workers("X", "A", "B") as (worker_x, worker_a, worker_b):
            begin(f"{WITH}: a worker crashes")
            await asyncio.to_thread(control.ask, "POST", f"/v1/queues/{QUEUE}/jobs", {"key": JOB})
            tell("queue", f"holds one job, {JOB}: render {OBJECT}")
            token_x, _ = await _take(worker_x, replace(task, pauses=True), tell)
            await _kill_halfway(worker_x, tell)
            left_by_x = await _told_whose(s3, tell)

            begin(f"{WITH}: the next one pauses")
            token_a, attempts_a = await _take(worker_a, replace(task, pauses=True, careless=True), tell)
            await _freeze_halfway(worker_a, tell)
            token_b, _ = await _take(worker_b, replace(task, visibility_s=LONG_S), tell)
            upload_b = await _uploaded(worker_b, tell)
            completion_b = await _completed(worker_b, "", tell)

            begin(f"{WITH}: it wakes up, too late")
            _wake(worker_a, tell)
            late_upload = await _uploaded(worker_a, tell)
            late_completion = await _completed(worker_a, ", all the same", tell)
            await worker_a.report("stopped")
            status_a = await worker_a.ended()
            tell("worker A", f"notices that its lease is lost, and stops itself: exit status {status_a}")

        begin(f"{WITH}: what is left")
        winner = await _told_whose(s3, tell)
        completed_by = await _done_by(control, tell)
        if completed_by:
            await receiver.first()
            await _nothing_waits(control)
        tell("receiver", f"has been told of {_counted(receiver.told)}")
    return WithGateway(
        tokens=(token_x, token_a, token_b),
        attempts_a=attempts_a,
        left_by_x=left_by_x,
        upload_b=upload_b,
        completion_b=completion_b,
        late_upload=late_upload,
        late_completion=late_completion,
        status_a=status_a,
        winner=winner,
        completed_by=completed_by,
        announced=tuple(receiver.told),
    )


async def play_without_gateway(store: Endpoint, begin: Callable[[str], None], tell: Tell) -> WithoutGateway:
    """Play it straight to a store. Raises as `play_with_gateway` does."""
    begin(WITHOUT)
    await _make_bucket(store)
    pair = store.credentials
    task = Task(store.url, store.bucket, False, OBJECT, pair.access_key, pair.secret_key)
    async with workers("A", "B") as (worker_a, worker_b):
        tell("worker A", f"holds a lease on {JOB} from a lock service, which is played here. It begins to upload")
        worker_a.begin(replace(task, pauses=True))
        await _freeze_halfway(worker_a, tell)
        tell("worker B", "holds the next one, since that lease has run out. It begins to upload")
        worker_b.begin(task)
        upload_b = await _uploaded(worker_b, tell)
        _wake(worker_a, tell)
        late_upload = await _uploaded(worker_a, tell)
    return WithoutGateway(upload_b, late_upload, await _told_whose(store, tell))


# --- what workers do, and what is done to them


async def _take(worker: WorkerProcess, task: Task, tell: Tell) -> tuple[int, int]:
    """The next job; its token and attempt."""
    worker.begin(task)
    told = await worker.report("job")
    token, attempts = told["token"], told["attempts"]
    how = (
        f"a lease of {task.visibility_s:g} s" if attempts == 1 else f"attempt {attempts}, since that lease has run out"
    )
    tell(f"worker {worker.name}", f"takes {JOB}, {how}: token {token}. It begins to upload")
    return token, attempts


async def _halfway(worker: WorkerProcess) -> str:
    """How much it has sent by then."""
    told = await worker.report("halfway")
    return f"{told['sent_bytes'] // MIB} of {SIZE_BYTES // MIB} MiB"


async def _kill_halfway(worker: WorkerProcess, tell: Tell) -> None:
    sent = await _halfway(worker)
    await worker.kill()
    tell(f"worker {worker.name}", f"is killed (SIGKILL) with {sent} sent. It renews its lease no more")


async def _freeze_halfway(worker: WorkerProcess, tell: Tell) -> None:
    sent = await _halfway(worker)
    await worker.freeze()
    tell(f"worker {worker.name}", f"is frozen (SIGSTOP) with {sent} sent. It renews its lease no more")


def _wake(worker: WorkerProcess, tell: Tell) -> None:
    worker.go_on()
    worker.wake()
    tell(f"worker {worker.name}", "wakes up (SIGCONT), knows of nothing, and sends the rest")


async def _uploaded(worker: WorkerProcess, tell: Tell) -> Answer:
    answer = Answer(**await worker.report("upload"))
    tell(f"worker {worker.name}", f"has sent all of it, and is answered {answer}")
    return answer


async def _completed(worker: WorkerProcess, how: str, tell: Tell) -> Answer:
    answer = Answer(**await worker.report("completion"))
    tell(f"worker {worker.name}", f"reports the job as done{how}, and is answered {answer}")
    return answer


# --- the job's record, and the receiver


async def _done_by(control: ControlClient, tell: Tell) -> int:
    """The token that completed the job; 0 if none did."""
    record = await asyncio.to_thread(control.ask, "GET", f"/v1/jobs/{JOB}")
    completion = record["completion"] or {"token": 0, "holder": "nobody"}
    token = int(completion["token"])
    tell("job", f"is {record['state']}: done with token {token}, by {completion['holder']}")
    return token


async def _nothing_waits(control: ControlClient) -> None:
    """Returns when every announcement that there is has been taken."""
    while True:
        webhooks = await asyncio.to_thread(control.webhooks)
        if not any(webhook["waiting"] for webhook in webhooks):
            return
        await asyncio.sleep(POLL_S)


def _counted(told: list[str]) -> str:
    return f"{len(told)} completion{'' if len(told) == 1 else 's'}, though two were reported: {', '.join(told)}"


# --- the object


@asynccontextmanager
async def _client(endpoint: Endpoint) -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(
        endpoint.url,
        region="us-east-1",
        credentials=StaticCredentials(endpoint.credentials),
        addressing="path",
        settle_timeout_s=30,
    )
    try:
        yield client
    finally:
        await client.close()


async def _make_bucket(endpoint: Endpoint) -> None:
    async with _client(endpoint) as client:
        answer = await client.send(UpstreamRequest("PUT", endpoint.bucket, "", "", ()), b"", ANSWER_TIMEOUT_S)
        answer.close()
        if answer.status != 200:
            raise DemoFault(f"the bucket {endpoint.bucket} could not be made: {answer.status}")


async def _told_whose(endpoint: Endpoint, tell: Tell) -> str | None:
    """The same as `_whose`, told."""
    name = await _whose(endpoint)
    if name is None:
        tell("object", "is not there: half an upload shows nothing")
    else:
        tell("object", f"is what worker {name} rendered, byte for byte")
    return name


async def _whose(endpoint: Endpoint) -> str | None:
    """The worker whose bytes the object holds; None if there is no object."""
    async with _client(endpoint) as client:
        answer = await client.read(UpstreamRequest("GET", endpoint.bucket, OBJECT, "", ()))
        body = await answer.read(2 * SIZE_BYTES)
    if answer.status == 404:
        return None
    for name in ("X", "A", "B"):
        if body == content(name):
            return name
    raise DemoFault(f"the object is no worker's: {answer.status}, {len(body)} bytes")
