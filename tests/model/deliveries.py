"""The calls of workers on the job of a queue, and what becomes of it by itself, step by step: what is asked of the
disk, what it decides, and what the service makes of that. As `gateway/service/deliveries.py` and `jobs.py` have them.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import Refused
from gateway.core.job import JobState, RetryPolicy
from gateway.core.keys import Token
from gateway.stores import job_rules
from gateway.stores.job_base import JobChange
from gateway.stores.values import Event, EventKind, GrantWanted
from tests.model import guarantees, jobs
from tests.model.jobs import queue
from tests.model.queue import DELAY_S, Term
from tests.model.size import Op
from tests.model.world import KEYS, At, NoChange, Request, World

_STATES = tuple(JobState)


def policy(w: World) -> RetryPolicy:
    return RetryPolicy(w.size.attempts, DELAY_S)


# --- asked


def receive(w: World) -> None:
    """A worker comes for the job. Who does not find it waits outside."""
    q = queue(w)
    q.receives -= 1
    instead_of = jobs.free(w)
    if not q.read:
        q.read, q.in_line = True, q.job.state is JobState.WAITING and not q.taken
    if not q.in_line:
        raise NoChange
    q.in_line, q.taken = False, True
    jobs.spawn(w, Op.RECEIVE, 0, At.GRANTING, instead_of)


def receive_again(w: World) -> None:
    """A worker repeats his call, since he has not been answered."""
    q, held = queue(w), w.fences[0].held
    q.receives -= 1
    if held is None or held.token != q.job.token:
        raise NoChange
    jobs.spawn(w, Op.RECEIVE, q.job.token, At.ASKING_AGAIN)


def asked_again(w: World, r: Request) -> None:
    """He is given what his call was given, as long as it is held."""
    if jobs.deciding(w):
        raise NoChange
    queue(w).running = max(queue(w).running, r.token)
    try:
        jobs.own(w, r.token)
    except NoChange:
        w.requests.remove(r)
    else:
        r.at = At.CONFIRMING


def extend(w: World, token: int) -> None:
    """A worker says that he still works."""
    q = queue(w)
    q.extends -= 1
    jobs.own(w, token)
    if q.term is Term.PENDING:
        raise NoChange
    q.term = Term.RUNNING
    if q.ran_out:
        jobs.spawn(w, Op.EXTEND, token, At.RENEWING)


def give_up(w: World, op: Op, token: int) -> None:
    """A worker releases the job, or says that he has failed."""
    q = queue(w)
    q.ends -= 1
    jobs.take_turn(w)
    jobs.own(w, token)
    try:
        w.gates[0].refuse_overtaken(Token(token))
    except Refused as error:
        raise NoChange from error
    jobs.spawn(w, op, token, At.GIVING)


def reopen(w: World) -> None:
    """An operator has the job done again."""
    queue(w).reopens -= 1
    jobs.spawn(w, Op.REOPEN, 0, At.REOPENING)


# --- decided by the disk


def _deliver(w: World, r: Request) -> JobChange:
    wanted = GrantWanted("worker", 1.0, "id", r.value)
    return job_rules.delivered(w.fences[0], queue(w).job, wanted, Event(KEYS[0], EventKind.GRANTED, 0, 0), 0, 0.0)


def _renew(w: World, r: Request) -> JobChange:
    return job_rules.renewed(w.fences[0], queue(w).job, r.token)


def _give_up(w: World, r: Request) -> JobChange:
    fence, job = w.fences[0], queue(w).job
    if r.op is Op.RELEASE:
        return job_rules.released(fence, job, r.token, 0.0, "")
    return job_rules.failed(fence, job, r.token, policy(w), 0.0, "", True, None)


def _lapse(w: World, r: Request) -> JobChange:
    if r.value == jobs.LAPSED:
        return job_rules.undelivered(w.fences[0], queue(w).job, r.token, DELAY_S)
    return job_rules.lapsed(w.fences[0], queue(w).job, r.token, policy(w))


def _reopen(w: World, r: Request) -> JobChange:
    return job_rules.reopened(w.fences[0], queue(w).job, "")


_DECISIONS: dict[At, tuple[Callable[[World, Request], JobChange], At]] = {
    At.GRANTING: (lambda w, r: _deliver(w, r), At.GRANTED),
    At.RENEWING: (lambda w, r: _renew(w, r), At.RENEWED),
    At.GIVING: (lambda w, r: _give_up(w, r), At.GIVEN),
    At.LAPSING: (lambda w, r: _lapse(w, r), At.LAPSED),
    At.REOPENING: (lambda w, r: _reopen(w, r), At.REOPENED),
}


def decide(w: World, r: Request) -> None:
    """The disk has decided."""
    if r.at is At.RENEWING:
        jobs.take_turn(w)
    decision, following = _DECISIONS[r.at]
    change = decision(w, r)
    keep(w, r, change)
    assert change.job is not None
    fence, job = change.fence, change.job
    r.answer = (change.done, fence.floor, fence.sealed_token, _STATES.index(job.state), job.token)
    r.at = following


def keep(w: World, r: Request, change: JobChange) -> None:
    """It is on disk."""
    q = queue(w)
    assert change.job is not None
    if change.done:
        if r.op is Op.RECEIVE:
            guarantees.delivered(w, change.fence.granted_token)
        elif r.op is Op.REOPEN:
            w.done[0] = 0
    w.fences[0], q.job = change.fence, change.job


def fail_after(w: World, r: Request) -> None:
    """The disk has decided, and says that it has failed."""
    if r.at is At.RENEWING:
        jobs.take_turn(w)
    decision, _ = _DECISIONS[r.at]
    keep(w, r, decision(w, r))
    fail_before(w, r)


def fail_before(w: World, r: Request) -> None:
    """The disk has failed."""
    w.faults -= 1
    if r.op is Op.LAPSE:
        r.at = At.LAPSE_DUE
        return
    w.requests.remove(r)
    jobs.unavailable(w)
    if r.op is Op.RECEIVE:
        jobs.put_back(w)


# --- learnt by the service


def learn(w: World, r: Request) -> None:
    """What the disk has decided is known."""
    _LEARN[r.op](w, r)


def _delivered(w: World, r: Request) -> None:
    done, floor, sealed, state, token = r.answer
    q, gate = queue(w), w.gates[0]
    if done:
        q.running = r.token = token
        gate.granted(token)
        gate.raised(floor, sealed)
        jobs.overtaken(w)
        jobs.hold(w, token, Term.PENDING)
        jobs.decided(w)
        r.at, r.answer, r.value = At.CONFIRMING, (), 0
    elif _STATES[state] is not JobState.WAITING:
        w.requests.remove(r)
        jobs.decided(w)
    else:
        # Leased without the queue, or delivered by a decision that is not known: the worker does not wait for that.
        jobs.catch_up(w)
        w.requests.remove(r)
        jobs.see(w)
        jobs.put_back(w)


def _extended(w: World, r: Request) -> None:
    *_, state, token = r.answer
    q = queue(w)
    if _STATES[state] is JobState.RUNNING and token == r.token:
        q.running = token
        runs_again(w)
    if q.held == r.token:
        q.ran_out = q.term is Term.OVER
    w.requests.remove(r)


def runs_again(w: World) -> None:
    """Its lease may have ended again, before anybody knew that it ran."""
    jobs.find_out(w)


def _given_up(w: World, r: Request) -> None:
    done, floor, sealed, state, _ = r.answer
    w.gates[0].raised(floor, sealed)
    jobs.overtaken(w)
    w.requests.remove(r)
    if not done:
        jobs.ended(w, r.token)
        return
    w.sealed[0] = max(w.sealed[0], r.token)
    jobs.forget(w, r.token)
    jobs.returned(w, _STATES[state])


def _lapsed(w: World, r: Request) -> None:
    done, *_, state, _ = r.answer
    w.requests.remove(r)
    if done:
        jobs.returned(w, _STATES[state])
    else:
        jobs.unavailable(w)


def _reopened(w: World, r: Request) -> None:
    done, *_, state, _ = r.answer
    w.requests.remove(r)
    if done:
        jobs.returned(w, _STATES[state])


_LEARN = {
    Op.RECEIVE: lambda w, r: _delivered(w, r),
    Op.EXTEND: lambda w, r: _extended(w, r),
    Op.RELEASE: lambda w, r: _given_up(w, r),
    Op.FAIL: lambda w, r: _given_up(w, r),
    Op.LAPSE: lambda w, r: _lapsed(w, r),
    Op.REOPEN: lambda w, r: _reopened(w, r),
}


def confirm(w: World, r: Request) -> None:
    """The hand-over is complete, and the worker is told of his job."""
    gate, q = w.gates[0], queue(w)
    before = gate.completed_floor
    try:
        if gate.hand_over(Token(r.token), w.now) is not None:
            raise NoChange
    except Refused:
        w.requests.remove(r)
        jobs.over(w, r.token)
        return
    if gate.completed_floor > before:
        w.lazy[0] = max(w.lazy[0], gate.completed_floor)
    w.requests.remove(r)
    guarantees.told(w, r)
    if q.term is Term.OVER:
        q.extends += 1
        extend(w, r.token)
    elif q.held == r.token:
        q.term = Term.RUNNING


def leave(w: World, r: Request) -> None:
    """He has waited as long as he may: 503."""
    w.requests.remove(r)


def look(w: World, r: Request) -> None:
    """Whether the worker has been heard of meanwhile."""
    jobs.take_turn(w)
    q = queue(w)
    jobs.look_at_lease(w)
    if q.held == r.token and q.term in (Term.PENDING, Term.RUNNING):
        q.running = r.token
        w.requests.remove(r)
    else:
        r.at = At.LAPSING


def find(w: World, r: Request) -> None:
    """The job is read."""
    jobs.take_turn(w)
    q = queue(w)
    r.answer = (_STATES.index(q.job.state), q.job.token)
    r.at = At.FOUND


def found(w: World, r: Request) -> None:
    """What it says."""
    state, token = r.answer
    q = queue(w)
    if _STATES[state] is JobState.RUNNING:
        jobs.look_after(w, token)
    else:
        jobs.forget(w, token)
    if _STATES[state] is JobState.DELAYED:
        q.watched = True
    w.requests.remove(r)
