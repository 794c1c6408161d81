"""Each rule of queues taken away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.core import job as life
from gateway.core.job import Job, JobState
from gateway.stores import job_rules
from gateway.stores import rules as store_rules
from gateway.stores.job_base import JobChange
from gateway.stores.values import Fence
from tests.model import deliveries, jobs
from tests.model.queue import Term
from tests.model.size import Op
from tests.model.switch import CORE, SERVICE, Patches, Switch, world
from tests.model.world import At, Request, World

QUEUE = "queue"


def tokens_kept() -> Patches:
    delivered = job_rules.delivered

    def again(fence: Fence, job: Job, wanted: Any, event: Any, generation: int, at: float) -> JobChange:
        if not job.token or job.state is not JobState.WAITING:
            return delivered(fence, job, wanted, event, generation, at)
        return JobChange(True, fence, life.delivered(job, job.token, wanted.id), event)

    return [(job_rules, "delivered", again)]


def leases_overridden() -> Patches:
    granted = store_rules.granted
    return [(store_rules, "granted", lambda fence, *more: granted(replace(fence, grant=None), *more))]


def delivered_before_the_grant() -> Patches:
    keep = deliveries.keep

    def job_first(w: World, r: Request, change: JobChange) -> None:
        keep(w, r, replace(change, fence=w.fences[0]) if r.op is Op.RECEIVE else change)

    return [(deliveries, "keep", job_first), (deliveries.guarantees, "delivered", lambda w, token: None)]


def completed_apart() -> Patches:
    completed = job_rules.completed
    return [(job_rules, "completed", lambda fence, job, *more: replace(completed(fence, job, *more), job=job))]


def completed_by_any_token() -> Patches:
    def completed(fence: Fence, token: int) -> Fence:
        sealed = max(fence.sealed_token, token)
        return fence if fence.completed_token else replace(fence, completed_token=token, sealed_token=sealed)

    return [(store_rules, "completed", completed)]


def lapsed_whatever_its_token() -> Patches:
    lapsed = job_rules.lapsed
    return [(job_rules, "lapsed", lambda fence, job, token, policy: lapsed(fence, job, job.token, policy))]


def lapsed_unasked() -> Patches:
    def look(w: World, r: Request) -> None:
        jobs.take_turn(w)
        r.at = At.LAPSING

    return [(deliveries, "look", look)]


def never_buried() -> Patches:
    lapsed = life.lapsed
    return [(life, "lapsed", lambda job, policy: lapsed(job, replace(policy, max_attempts=99)))]


def renewed_without_the_job() -> Patches:
    return [(job_rules, "renewed", lambda fence, job, token: JobChange(False, fence, job))]


def unsealed() -> Patches:
    failed = job_rules.failed
    return [(job_rules, "failed", lambda fence, *more: replace(failed(fence, *more), fence=fence))]


def forgotten_at_a_start() -> Patches:
    return [(jobs, "look_after", lambda w, token: None)]


def not_found_out() -> Patches:
    return [(jobs, "find_out", lambda w: None)]


def line_not_read_again() -> Patches:
    return [(jobs, "doubt", lambda w: None)]


def seals_not_told() -> Patches:
    def overtaken(w: World) -> None:
        q, gate = w.queue, w.gates[0]
        if q is not None and q.held and not q.held == gate.floor != gate.sealed_token:
            jobs.hold(w, 0, Term.NOBODY)

    return [(jobs, "overtaken", overtaken)]


def any_delivery_forgotten() -> Patches:
    def forget(w: World, token: int) -> None:
        jobs.queue(w).running = 0

    return [(jobs, "forget", forget)]


def extended_unseen() -> Patches:
    return [(deliveries, "runs_again", lambda w: None)]


def coming_back_unseen() -> Patches:
    def decided(w: World) -> None:
        jobs.queue(w).taken = jobs.queue(w).back = False

    return [(jobs, "decided", decided)]


def a_job(*ops: Op, **budgets: Any) -> Any:
    """A world with one."""
    return world(*ops, **{"writes": 0, "grants": 0, "receives": 2, **budgets})


SWITCHES = [
    Switch(QUEUE, "a delivery keeps the token of the one before", CORE, tokens_kept, a_job()),
    Switch(QUEUE, "a delivery asks for no lease", CORE, leases_overridden, a_job(receives=1, leases=1, crashes=1)),
    Switch(QUEUE, "a delivery is recorded apart from its grant", SERVICE, delivered_before_the_grant, a_job()),
    Switch(QUEUE, "a completion is recorded apart from the job", CORE, completed_apart, a_job(finishes=1)),
    Switch(QUEUE, "a completion asks for no token", CORE, completed_by_any_token, a_job(finishes=1)),
    Switch(QUEUE, "a job is taken back whatever its token", CORE, lapsed_whatever_its_token, a_job(ends=1)),
    Switch(QUEUE, "a job is taken back though its worker has been heard of", SERVICE, lapsed_unasked,
           a_job(extends=1)),
    Switch(QUEUE, "an extension leaves the job waiting", CORE, renewed_without_the_job, a_job(extends=1)),
    Switch(QUEUE, "a failure does not seal", CORE, unsealed, a_job(ends=1)),
    Switch(QUEUE, "no attempt is the last", CORE, never_buried, a_job(receives=3)),
    Switch(QUEUE, "what runs is forgotten at a start", SERVICE, forgotten_at_a_start, a_job(crashes=1)),
    Switch(QUEUE, "what a failed disk has decided is not found out", SERVICE, not_found_out, a_job(faults=1)),
    Switch(QUEUE, "the line is not read again after a failure", SERVICE, line_not_read_again,
           a_job(ends=1, faults=1)),
    Switch(QUEUE, "a seal ends no delivery", SERVICE, seals_not_told, a_job(seals=1)),
    Switch(QUEUE, "an end is taken for that of the next delivery", SERVICE, any_delivery_forgotten, a_job(ends=1)),
    Switch(QUEUE, "what ends while it is extended is not looked for", SERVICE, extended_unseen, a_job(extends=1)),
    Switch(QUEUE, "what comes back while it is being refused is not kept", SERVICE, coming_back_unseen,
           a_job(ends=1)),
]  # fmt: skip
