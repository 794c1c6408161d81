"""What can happen next in a world, and what each happening does.

The way of a request follows `gateway/service`: what stands there between two awaits is one step here, and whatever is
decided is decided by `gateway.core` and `gateway.stores.rules`. A step that could change nothing raises `NoChange`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.core.write import Phase
from tests.model import admission, guarantees, leases, process, sending, uploads, upstream
from tests.model.size import Op
from tests.model.world import (
    ABSENT,
    BEARS_NONCE,
    NONE,
    TAKES_TURN,
    UNKNOWN,
    At,
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


def _arrivals(w: World) -> Iterator[Action]:
    size = w.size
    budgets = ((w.writes, size.ops), (w.grants, (Op.GRANT,)), (w.seals, (Op.SEAL,)), (w.finishes, (Op.FINISH,)))
    if w.leases:
        yield from (("ask", key) for key in range(size.keys))
    for budget, ops in budgets:
        if not budget:
            continue
        for op in ops:
            objects = range(size.objects) if op not in admission.CONTROL else range(1)
            for token in size.tokens:
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
}


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
    else:
        yield from _WAITING[r.at]


def act(w: World, action: Action) -> None:
    """Let it happen. Raises `NoChange`, or `guarantees.Violation`."""
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
            else:
                w.writes -= 1
            admission.arrive(w, op, obj, key, token, content)
        case "ask":
            w.leases -= 1
            leases.ask(w, rest[0])
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
