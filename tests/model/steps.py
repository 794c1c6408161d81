"""What can happen next in a world, and what each happening does.

The way of a request follows `gateway/service`: what stands there between two awaits is one step here, and whatever is
decided is decided by `gateway.core` and `gateway.stores.rules`. A step that could change nothing raises `NoChange`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.core.job import JobState
from gateway.core.write import Phase
from tests.model import admission, deliveries, guarantees, jobs, leases, process, sending, uploads, upstream
from tests.model.encoding import decode, encode
from tests.model.queue import Queue, Term
from tests.model.size import Op
from tests.model.world import (
    ABSENT,
    BEARS_NONCE,
    NONE,
    TAKES_TURN,
    UNKNOWN,
    At,
    NoChange,
    Request,
    Way,
    World,
    settle_ticks,
)

Action = tuple[Any, ...]


def enabled(w: World) -> Iterator[Action]:
    """All that can happen next; some of it may turn out to change nothing."""
    yield from _arrivals(w)
    for i, r in enumerate(w.requests):
        yield from ((name, i) for name in _steps_of(w, r))
    for i, f in enumerate(w.adrift):
        if f.way is Way.UNDER_WAY:
            yield ("land adrift", i)
        if f.send is not None and f.send.phase is Phase.IN_DOUBT and f.token and f.op in BEARS_NONCE:
            yield ("chase", i)
    for i in range(len(w.uploads)):
        yield ("revoke", i)
    for key, lazy in enumerate(w.lazy):
        if lazy > w.fences[key].completed_floor:
            yield ("flush", key)
    if (
        any(gate.unsettled_until > w.now for gate in w.gates)
        or max(w.settles) > w.now
        or (w.refused and w.rebuilds_at > w.now)
        or any(f.lands_by >= 0 or (f.send is not None and f.send.phase is Phase.IN_DOUBT) for f in w.flights())
    ):
        yield ("tick",)
    if w.crashes:
        yield ("crash",)
    if w.losses:
        yield ("lose the database",)
    if w.refused and w.rebuilds_at <= w.now:
        yield ("rebuild",)
    if w.stops and not w.requests:
        yield ("stop",)
    if w.queue is not None:
        yield from _of_the_job(w, w.queue)


def _arrivals(w: World) -> Iterator[Action]:
    size = w.size
    budgets = (
        (w.writes, size.ops), (w.deletes, (Op.DELETE,)), (w.creates, (Op.CREATE,)),
        (w.grants, (Op.GRANT,)), (w.seals, (Op.SEAL,)), (w.finishes, (Op.FINISH,)),
    )  # fmt: skip
    if w.leases:
        yield from (("ask", key) for key in range(size.keys))
    for budget, ops in budgets:
        if not budget:
            continue
        for op in ops:
            objects = range(size.objects) if op not in admission.CONTROL else range(1)
            for token in size.tokens if w.queue is None else w.queue.told:
                if not token and op in admission.CONTROL:
                    continue
                for key in range(size.keys):
                    for obj in objects:
                        for content in _contents(w, op):
                            yield ("arrive", op, obj, key, token, content)
    for i in range(len(w.again)):
        if w.retries:
            yield ("again", i)
    for i, upload in enumerate(w.uploads):
        if upload.completes:
            yield ("complete", i)


def _of_the_job(w: World, q: Queue) -> Iterator[Action]:
    if q.receives:
        yield ("receive",)
        if q.job.delivery:
            yield ("receive again",)
    for token in q.told:
        if q.extends:
            yield ("extend", token)
        if q.ends:
            yield ("release", token)
            yield ("fail", token)
    if q.reopens and q.job.state in (JobState.COMPLETED, JobState.DEAD):
        yield ("reopen",)
    if q.term is Term.RUNNING:
        yield ("run out",)
    elif q.term is Term.PENDING:
        yield ("unclaimed",)
    if q.watched and q.job.state is JobState.DELAYED:
        yield ("due",)


def _contents(w: World, op: Op) -> Iterator[int]:
    """The bodies that a write may bring: a new one, and any that is about where equal bytes are asked for."""
    if op is Op.DELETE or op in admission.CONTROL:
        yield ABSENT
        return
    about = (
        {o[0] for o in w.objects} | {m[0] for m in w.memory} | {u.content for u in w.uploads} | {a[4] for a in w.again}
    )
    for f in w.flights():
        about |= {f.content, f.condition}
    for r in w.requests:
        about |= {r.content, r.condition, r.looked[0]}
    about -= {ABSENT, UNKNOWN, NONE}
    yield next(n for n in range(100) if n not in about)
    if w.size.equal_bytes and op is not Op.CREATE:
        yield from sorted(about)


_WAITING = {
    At.RAISING: ("disk",),
    At.RAISED: ("learn",),
    At.HAND_OVER: ("hand over", "give up"),
    At.UNCONTESTED: ("uncontested", "give up"),
    At.LOOKING: ("look",),
    At.LOOKED: ("judge",),
    At.STAGED: ("commit",),
    At.CREATING: ("bind",),
    At.SEALING: ("seal disk",),
    At.SEALED: ("seal learn",),
    At.CLAIMING: ("claim",),
    At.GRANTING: ("grant disk",),
    At.GRANTED: ("grant learn",),
    At.CLOSED: ("quiet", "open"),
    At.RECORDING: ("finish disk",),
    At.RECORDED: ("finish learn",),
    At.RECORDED_OR_NOT: ("finish found out",),
    At.ASKING_AGAIN: ("asked again",),
    At.CONFIRMING: ("confirm", "leave"),
    At.LAPSE_DUE: ("look after",),
    At.FINDING: ("find",),
    At.FOUND: ("found",),
    **dict.fromkeys((At.RENEWED, At.GIVEN, At.LAPSED, At.REOPENED), ("job learn",)),
}
DECIDED = (At.RENEWING, At.GIVING, At.LAPSING, At.REOPENING)
"""On the job, by the disk."""


def _steps_of(w: World, r: Request) -> Iterator[str]:
    if r.at is At.READY:
        if r.op not in TAKES_TURN or not any(
            o.at is At.SENT and o.op in TAKES_TURN and o.obj == r.obj for o in w.requests
        ):
            yield "commit"
    elif r.at is At.SENT:
        assert r.flight is not None
        if r.flight.way is Way.UNDER_WAY:
            yield "land"
            if w.faults:
                yield "403"
        else:
            yield "answer"
        if w.faults:
            yield "reset"
            yield "500"
    elif r.at in DECIDED or (r.op is Op.RECEIVE and r.at is At.GRANTING):
        yield "job disk"
        if w.faults:
            yield "job disk, said to have failed"
            yield "job disk failed"
    elif r.op is Op.RECEIVE and r.at is At.GRANTED:
        yield "job learn"
    else:
        yield from _WAITING[r.at]
        if r.at is At.RECORDING and w.faults:
            yield "finish in doubt"
            yield "finish failed"


LONG = 30
LEADING_NOWHERE = ("receive again", "leave", "open")


def act(w: World, action: Action) -> None:
    """Let it happen. Raises `NoChange`, or `guarantees.Violation`."""
    _act(w, action)
    if w.queue is not None:
        guarantees.job(w)
        if not w.requests:
            guarantees.comes_back(w, _delivered_by_itself(decode(w.size, encode(w))))


def _delivered_by_itself(w: World) -> bool:
    """Whether the job comes to the next worker though nobody else does anything any more."""
    q = jobs.queue(w)
    q.extends = q.ends = q.reopens = w.faults = 0
    token = q.job.token
    for _ in range(LONG):
        q.receives = 1
        if q.job.state is JobState.DEAD or (q.job.state is JobState.RUNNING and q.job.token > token):
            return True
        for action in (*((step, i) for i, r in enumerate(w.requests) for step in _steps_of(w, r)), *_of_the_job(w, q)):
            if action[0] in LEADING_NOWHERE:
                continue
            try:
                _act(w, action)
            except NoChange:
                continue
            break
        else:
            return False
    return False


def _act(w: World, action: Action) -> None:
    name, *rest = action
    match name:
        case "arrive":
            op, obj, key, token, content = rest
            if op is Op.GRANT:
                w.grants -= 1
            elif op is Op.SEAL:
                w.seals -= 1
            elif op is Op.FINISH:
                w.finishes -= 1
            elif op is Op.DELETE and w.deletes:
                w.deletes -= 1
            elif op is Op.CREATE and w.creates:
                w.creates -= 1
            else:
                w.writes -= 1
            admission.arrive(w, op, obj, key, token, content)
        case "ask":
            w.leases -= 1
            leases.ask(w, rest[0])
        case "receive":
            deliveries.receive(w)
        case "receive again":
            deliveries.receive_again(w)
        case "extend":
            deliveries.extend(w, rest[0])
        case "release":
            deliveries.give_up(w, Op.RELEASE, rest[0])
        case "fail":
            deliveries.give_up(w, Op.FAIL, rest[0])
        case "reopen":
            deliveries.reopen(w)
        case "run out":
            jobs.run_out(w)
        case "unclaimed":
            jobs.unclaimed(w)
        case "due":
            jobs.due(w)
        case "rebuild":
            process.rebuild(w)
        case "again":
            w.retries -= 1
            admission.arrive(w, *w.again.pop(rest[0]))
        case "complete":
            uploads.complete(w, w.uploads[rest[0]])
        case "revoke":
            uploads.revoke(w, w.uploads[rest[0]])
        case "land adrift":
            upstream.land(w, w.adrift[rest[0]])
        case "chase":
            sending.chase(w, w.adrift[rest[0]])
        case "flush":
            process.flush(w, rest[0])
        case "tick":
            process.tick(w)
        case "crash":
            w.crashes -= 1
            process.crash(w)
        case "lose the database":
            w.losses -= 1
            process.lose_database(w)
        case "stop":
            w.stops -= 1
            process.stop(w)
        case _:
            _act_on(w, w.requests[rest[0]], str(name))
    uploads.record_finished(w)
    guarantees.learned(w)
    _tidy(w)


def _act_on(w: World, r: Request, name: str) -> None:
    f = r.flight
    match name:
        case "give up":
            sending.end(w, r, again=True)
        case "land":
            assert f is not None
            upstream.land(w, f)
        case "answer":
            assert f is not None
            if f.way is Way.LANDED:
                sending.answer(w, r, 200, None)
            elif r.op is Op.COMPLETE:
                sending.answer(w, r, 404, "NoSuchUpload")
            else:
                sending.answer(w, r, 412, "PreconditionFailed")
        case "403":
            assert f is not None
            w.faults -= 1
            f.way = Way.NEVER
            sending.answer(w, r, 403, "AccessDenied")
        case "500":
            w.faults -= 1
            sending.answer(w, r, 500, "InternalError")
            if f is not None:
                upstream.cut(w, f, settle_ticks(w.size, r.op))
        case "reset":
            w.faults -= 1
            sending.lose(w, r)
        case _:
            _STEPS[name](w, r)


_STEPS = {
    "disk": lambda w, r: admission.disk(w, r),
    "learn": lambda w, r: admission.learn(w, r),
    "hand over": lambda w, r: admission.hand_over(w, r),
    "uncontested": lambda w, r: admission.uncontested(w, r),
    "look": lambda w, r: sending.look(w, r),
    "judge": lambda w, r: sending.judge(w, r),
    "commit": lambda w, r: sending.commit(w, r),
    "bind": lambda w, r: uploads.bind(w, r),
    "seal disk": lambda w, r: admission.seal_disk(w, r),
    "seal learn": lambda w, r: admission.seal_learn(w, r),
    "claim": lambda w, r: admission.claim(w, r),
    "grant disk": lambda w, r: leases.grant_disk(w, r),
    "grant learn": lambda w, r: leases.grant_learn(w, r),
    "open": lambda w, r: leases.give_up(w, r),
    "quiet": lambda w, r: leases.quiet(w, r),
    "finish disk": lambda w, r: leases.finish_disk(w, r),
    "finish learn": lambda w, r: leases.finish_learn(w, r),
    "finish in doubt": lambda w, r: leases.finish_in_doubt(w, r),
    "finish failed": lambda w, r: leases.finish_failed(w, r),
    "finish found out": lambda w, r: leases.finish_found_out(w, r),
    "asked again": lambda w, r: deliveries.asked_again(w, r),
    "confirm": lambda w, r: deliveries.confirm(w, r),
    "leave": lambda w, r: deliveries.leave(w, r),
    "job disk": lambda w, r: deliveries.decide(w, r),
    "job disk, said to have failed": lambda w, r: deliveries.fail_after(w, r),
    "job disk failed": lambda w, r: deliveries.fail_before(w, r),
    "job learn": lambda w, r: deliveries.learn(w, r),
    "look after": lambda w, r: deliveries.look(w, r),
    "find": lambda w, r: deliveries.find(w, r),
    "found": lambda w, r: deliveries.found(w, r),
}


def _tidy(w: World) -> None:
    """Forget what can do nothing more."""
    w.adrift = [
        f for f in w.adrift if f.way is Way.UNDER_WAY or (f.send is not None and f.send.phase is not Phase.SETTLED)
    ]
    named = {f.nonce for f in w.flights()} | {r.nonce for r in w.requests}
    w.uploads = [u for u in w.uploads if u.bound or u.nonce in named or (u.completed and u.completes)]
    if not w.retries:
        w.again.clear()
