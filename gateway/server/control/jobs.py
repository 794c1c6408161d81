"""The part of the control API that deals with jobs and their queues (docs/jobs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.job import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, JobState, Output
from gateway.core.keys import FencingKey
from gateway.server.control.access import may_use, may_use_all
from gateway.server.control.asked import IDEMPOTENCY_KEY, REQUEST_ID
from gateway.server.control.calls import Answered, Ask, Call, Role
from gateway.server.control.documents import KeyGiven
from gateway.server.control.job_documents import (
    MAX_BODY_BYTES,
    Complete,
    DeliveryShown,
    Extend,
    Fail,
    JobKnown,
    JobPage,
    JobsAsked,
    JobShown,
    JobSubmitted,
    QueueGiven,
    QueueList,
    QueueShown,
    Receive,
    Received,
    Redrive,
    Redriven,
    Release,
    Reopen,
    Reopened,
)
from gateway.server.control.leases import Credentials, LeaseShown, handed_out, require_at_most
from gateway.server.control.leases import Output as OutputOf
from gateway.server.control.pages import page_of
from gateway.server.control.problems import Problem
from gateway.service.completions import Completions
from gateway.service.deliveries import Delivery, Wish
from gateway.service.jobs import JOB_EVENTS, Jobs
from gateway.service.leases import Lease


class JobMetrics(Collector):
    """What Prometheus is told."""

    def __init__(self, jobs: Jobs, completions: Completions) -> None:
        self._jobs = jobs
        self._completions = completions

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("fencing_jobs_running", "Jobs that are delivered now.", self._jobs.running)
        yield GaugeMetricFamily("fencing_workers_waiting", "Calls that wait for a job.", self._jobs.waiting)
        events = CounterMetricFamily("fencing_jobs", "What became of jobs.", labels=["event"])
        events.add_metric(["delivered"], self._jobs.deliveries.delivered)
        events.add_metric(["completed"], self._completions.completed)
        for event in JOB_EVENTS:
            events.add_metric([event], self._jobs.counts[event])
        yield events


class JobCalls:
    """Its handlers."""

    def __init__(
        self,
        jobs: Jobs,
        completions: Completions,
        *,
        max_ttl_s: float,
        max_wait_s: float,
        credentials: Credentials,
        output: OutputOf,
    ) -> None:
        """`credentials` and `output` give what is handed out with a delivery; None: there is none."""
        self._jobs = jobs
        self._completions = completions
        self._max_ttl_s = max_ttl_s
        self._max_wait_s = max_wait_s
        self._credentials = credentials
        self._output = output

    def calls(self) -> list[Call]:
        """What each is."""
        of_queue, of_job = "/v1/queues/{queue}", "/v1/jobs/{key}"
        lost, pending = ("TokenNotIssued", "lost"), ("HandoverPending",)
        return [
            Call("GET", "/v1/queues", self.list_queues),
            Call(
                "POST",
                f"{of_queue}/jobs",
                self.submit_job,
                statuses=(201, 200),
                refuses=("unknown-queue", "exists", "idempotency-key-reused"),
                headers=(IDEMPOTENCY_KEY,),
                max_body_bytes=MAX_BODY_BYTES,
            ),
            Call(
                "POST",
                f"{of_queue}/receive",
                self.receive_jobs,
                refuses=("unknown-queue", "idempotency-key-reused", "Draining", "Overloaded", *pending),
                headers=(IDEMPOTENCY_KEY, REQUEST_ID),
                leads_to=dict.fromkeys(("extend_job", "release_job", "fail_job", "complete_job"), "/jobs/0"),
            ),
            Call("POST", f"{of_queue}/redrive", self.redrive_jobs, Role.OPERATOR, refuses=("unknown-queue",)),
            Call("GET", "/v1/jobs", self.list_jobs),
            Call("GET", of_job, self.show_job, refuses=("not-found",)),
            Call(
                "POST", f"{of_job}/extend", self.extend_job, refuses=(*lost, "limit", *pending), headers=(REQUEST_ID,)
            ),
            Call("POST", f"{of_job}/release", self.release_job, refuses=(*lost, "not-delivered")),
            Call("POST", f"{of_job}/fail", self.fail_job, refuses=(*lost, "not-delivered")),
            Call(
                "POST",
                f"{of_job}/complete",
                self.complete_job,
                refuses=(
                    "TokenNotIssued",
                    "TokenJump",
                    "completed",
                    "output-not-verified",
                    "stale",
                    "UpstreamUnavailable",
                    *pending,
                ),
                headers=(REQUEST_ID,),
                max_body_bytes=MAX_BODY_BYTES,
            ),
            Call("POST", f"{of_job}/reopen", self.reopen_job, Role.OPERATOR, refuses=("not-found", "not-ended")),
        ]

    async def list_queues(self) -> QueueList:
        """All queues that have jobs, and how many they have in each state."""
        queues: dict[str, dict[JobState, int]] = {}
        for length in await self._jobs.lengths():
            queues.setdefault(length.queue, {})[length.state] = length.jobs
        return QueueList(queues=[QueueShown(queue=name, jobs=jobs) for name, jobs in queues.items()])

    async def submit_job(self, ask: Ask, queue: QueueGiven, body: JobSubmitted) -> JobShown | Answered[JobShown]:
        """Add a job to a queue. A key names one job: the same key again changes nothing, and is answered what there
        is. Repeated with its `Idempotency-Key`, the call that added it is answered 201 again, with the job as it is
        now."""
        if not may_use(ask.caller, body.key):
            raise Problem(403, "forbidden", f"this API token may not use the fencing key {body.key!r}", key=body.key)
        job, is_new = await self._jobs.submit(
            queue,
            body.key,
            payload=_bounded(body.payload, MAX_PAYLOAD_BYTES, "payload"),
            priority=body.priority,
            delay_s=body.delay_s,
            deduplicate=body.deduplicate,
            idempotency_key=ask.headers.get(IDEMPOTENCY_KEY.name, ""),
        )
        shown = JobShown.of(job)
        return shown if is_new else Answered(shown, 200)

    async def receive_jobs(self, ask: Ask, queue: QueueGiven, body: Receive) -> Received:
        """Jobs to work on, each under a lease with a fresh, higher token: nothing lower can take effect any more. A
        repeated `Idempotency-Key` is answered the same jobs, as long as they are held."""
        require_at_most(self._max_ttl_s, visibility_s=body.visibility_s)
        wish = Wish(
            body.holder,
            body.visibility_s,
            min(body.wait_s, self._max_wait_s),
            body.max,
            ask.headers.get(IDEMPOTENCY_KEY.name),
            ask.headers.get(REQUEST_ID.name, ""),
        )
        mine = None if may_use_all(ask.caller) else partial(may_use, ask.caller)
        deliveries = await self._jobs.deliveries.receive(queue, wish, mine)
        # An idempotency key may have come from another caller before.
        return Received(jobs=[self._delivery(ask, one) for one in deliveries if may_use(ask.caller, one.lease.key)])

    def _delivery(self, ask: Ask, delivery: Delivery) -> DeliveryShown:
        job, lease = delivery.job, delivery.lease
        more = handed_out(self._credentials(ask.caller, lease.key, lease.token), self._output(lease.key))
        return DeliveryShown(
            **LeaseShown.of(lease).__dict__,
            queue=job.queue or "",
            payload=job.payload,
            attempts=job.attempts,
            priority=job.priority,
            **more,
        )

    async def redrive_jobs(self, ask: Ask, queue: QueueGiven, body: Redrive) -> Redriven:
        """Have the dead jobs of a queue tried again, with all their attempts: those that the caller may use."""
        self._jobs.rule_of(queue)
        mine = partial(may_use, ask.caller)
        return Redriven(reopened=await self._jobs.redrive(queue, f"redrive: {body.reason}", body.limit, mine))

    async def list_jobs(self, ask: Ask, query: JobsAsked) -> JobPage:
        """Jobs by key; pages by cursor."""
        read = partial(self._jobs.listed, query.queue, query.state)
        jobs, following = await page_of(read, ask.caller, query.after, query.limit)
        return JobPage(jobs=[JobShown.of(job) for job in jobs], next=following)

    async def show_job(self, key: KeyGiven) -> JobKnown:
        """One job: its state, its attempts, who works on it, and its completion."""
        job = await self._jobs.job(key)
        lease: Lease | None = await self._jobs.lease_of(job)
        return JobKnown(
            **JobShown.of(job).__dict__,
            holder="" if lease is None else lease.holder,
            expires_in_s=None if lease is None else lease.expires_in_s,
        )

    async def extend_job(self, ask: Ask, key: KeyGiven, body: Extend) -> LeaseShown:
        """More time for the worker, from now on; also for one whose time has run out and whom nobody has replaced."""
        require_at_most(self._max_ttl_s, visibility_s=body.visibility_s)
        request_id = ask.headers.get(REQUEST_ID.name, "")
        return LeaseShown.of(await self._jobs.extend(key, body.token, body.visibility_s, request_id))

    async def release_job(self, key: KeyGiven, body: Release) -> JobShown:
        """Give the job back unfinished: it is delivered again, and no attempt is counted. The token is sealed."""
        return JobShown.of(await self._jobs.release(key, body.token, body.delay_s))

    async def fail_job(self, key: KeyGiven, body: Fail) -> JobShown:
        """Tell that the attempt has failed: it is tried again after a while, or dead after the last. The token is
        sealed."""
        return JobShown.of(await self._jobs.fail(key, body.token, body.error, retry=body.retry, delay_s=body.delay_s))

    async def complete_job(self, ask: Ask, key: KeyGiven, body: Complete) -> JobShown:
        """Record that the job is done, once: the same token again is answered the same. What has been sent under the
        key is waited for, and the outputs are looked at, before. Also for keys that no queue knows."""
        return JobShown.of(
            await self._completions.complete(
                key,
                body.token,
                result=_bounded(body.result, MAX_RESULT_BYTES, "result"),
                outputs=[Output(output.bucket, output.key) for output in body.outputs],
                request_id=ask.headers.get(REQUEST_ID.name, ""),
            )
        )

    async def reopen_job(self, key: KeyGiven, body: Reopen) -> Reopened:
        """Have a completed or dead job done again."""
        job = await self._jobs.reopen(FencingKey(key), f"operator: {body.reason}")
        return Reopened(job=None if job is None else JobShown.of(job))


def _bounded(text: str | None, max_bytes: int, name: str) -> str | None:
    """Raises `Problem` (413) for JSON that is too long to be kept."""
    size = len((text or "").encode())
    if size > max_bytes:
        raise Problem(413, "too-large", f"`{name}` is at most {max_bytes} bytes of JSON, this is {size}")
    return text
