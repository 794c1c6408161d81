"""What can happen next in a world, and what each happening does.

The way of a request follows `gateway/service`: what stands there between two awaits is one step here, and whatever is
decided is decided by `gateway.core` and `gateway.stores.rules`. A step that could change nothing raises `NoChange`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gateway.core import gate as core_gate
from gateway.core.errors import FenceError, Refused
from gateway.core.gate import Admission
from gateway.core.keys import Token
from gateway.core.write import CONDITION_FAILED_STATUS, Answer, ObjectState, Phase, Signal, Verdict
from gateway.service.objects import ObjectEntry
from gateway.stores import rules as store_rules
from gateway.stores.base import Fence
from tests.model import guarantees, product, upstream
from tests.model.size import Op
from tests.model.world import (
    ABSENT,
    FORGOTTEN,
    KEYS,
    NO_OBJECT,
    NONE,
    UNKNOWN,
    At,
    Flight,
    Head,
    Request,
    Upload,
    Way,
    Why,
    World,
    settle_ticks,
)

Action = tuple[object, ...]
BEARS_NONCE = (Op.PUT, Op.STREAM, Op.COPY)
TAKES_TURN = (Op.PUT, Op.COPY, Op.DELETE)


class NoChange(Exception):
    """Nothing has happened, or nothing that leads anywhere new."""


# --- admission, as in service/fences.py


def arrive(w: World, op: Op, obj: int, key: int, token: int, content: int, nonce: int = 0) -> None:
    """A request is admitted, or refused at once (then nothing has changed)."""
    r = Request(op, obj, key, token, content, nonce=nonce, stale=token < w.known[key])
    r.seen = op not in (Op.GRANT, Op.SEAL) and upstream.shows(w, op, obj, content)
    try:
        admission = w.gates[key].admit(Token(token))
    except Refused as error:
        raise NoChange from error
    w.requests.append(r)
    if admission is Admission.GO:
        admitted(w, r)
    else:
        r.at = At.RAISING if admission is Admission.RAISE else At.HAND_OVER
        r.value = token if admission is Admission.RAISE else 0


def disk(w: World, r: Request) -> None:
    """The raise has reached the disk."""
    w.fences[r.key] = store_rules.raised(w.fences[r.key], r.value, 0.0)
    r.at, r.value = At.RAISED, w.fences[r.key].floor


def learn(w: World, r: Request) -> None:
    """The gate is told of the floor."""
    gate = w.gates[r.key]
    gate.raised(r.value)
    r.at, r.value = At.HAND_OVER, 0
    try:
        gate.refuse_overtaken(Token(r.token))
    except Refused:
        refused(w, r)


def hand_over(w: World, r: Request) -> None:
    """Try to complete the hand-over."""
    gate = w.gates[r.key]
    before = gate.completed_floor
    try:
        if gate.hand_over(Token(r.token), w.now) is not None:
            raise NoChange
    except Refused:
        refused(w, r)
        return
    if gate.completed_floor > before:
        w.lazy[r.key] = max(w.lazy[r.key], gate.completed_floor)
    admitted(w, r)


def admitted(w: World, r: Request) -> None:
    """The floor is durable and its hand-over complete."""
    r.at = At.READY
    if r.op is Op.GRANT:
        guarantees.acknowledged(w, r)
        w.requests.remove(r)
    elif r.op is Op.SEAL:
        r.at = At.SEALING
    elif unsettled_of_another(w, r) or claims(w, r):
        r.at = At.UNCONTESTED
    else:
        uncontested(w, r)


def seal_disk(w: World, r: Request) -> None:
    """The seal has reached the disk."""
    w.fences[r.key] = store_rules.sealed(w.fences[r.key], r.token)
    r.at = At.SEALED


def seal_learn(w: World, r: Request) -> None:
    """The gate is told of the seal, then the client."""
    fence = w.fences[r.key]
    w.gates[r.key].raised(fence.floor, fence.sealed_token)
    w.sealed[r.key] = max(w.sealed[r.key], r.token)
    w.requests.remove(r)


# --- the object and its owner (service/writes.py, service/objects.py)


def contested(w: World, r: Request) -> bool:
    """Whether another key has claimed the object, or a send of one may still land on it."""
    return entry_of(w, r).contested(KEYS[r.key])


def entry_of(w: World, r: Request) -> ObjectEntry:
    """The product's ledger of the object."""
    entry = ObjectEntry("bucket", "object")
    entry.owner = KEYS[w.claimed[r.obj]] if w.claimed[r.obj] >= 0 else None
    for f in w.flights():
        if f.obj == r.obj and f.send is not None and f.send.unsettled:
            entry.begin(KEYS[f.key])
    return entry


def unsettled_of_another(w: World, r: Request) -> bool:
    """Whether a send of another key may still land on the object."""
    return entry_of(w, r).unsettled_of_another(KEYS[r.key])


def claims(w: World, r: Request) -> bool:
    """Whether somebody is about to claim the object: one at a time."""
    return any(o.at is At.CLAIMING and o.obj == r.obj for o in w.requests)


def uncontested(w: World, r: Request) -> None:
    """Nobody else's send is on the object: own it."""
    if unsettled_of_another(w, r) or claims(w, r):
        raise NoChange
    if ruled(w):
        owned(w, r)
        return
    owner = w.claimed[r.obj] = w.owners[r.obj]
    if owner not in (-1, r.key) and not (r.token and w.size.rekey):
        refused(w, r)
    elif not r.token or (owner == r.key and not w.size.rekey):
        owned(w, r)
    elif moves_too_early(w, r):
        end(w, r, again=True)
    else:
        w.claimed[r.obj] = r.key
        r.at = At.CLAIMING


def moves_too_early(w: World, r: Request) -> bool:
    """Whether what an earlier run sent under another key, or none, may still land on the object."""
    soon, late = (at > w.now for at in w.settles)
    return soon or (late and any(obj == r.obj for _, obj in w.bound))


def claim(w: World, r: Request) -> None:
    """The claim has reached the disk."""
    w.owners[r.obj] = r.key
    owned(w, r)


def owned(w: World, r: Request) -> None:
    """The object may be written under the key."""
    r.at = At.READY
    if r.op is Op.CREATE:
        r.at = At.CREATING
    elif r.op is not Op.COMPLETE and r.token:
        conditioned(w, r)
    elif r.op is Op.STREAM:
        stage(w, r)


def conditioned(w: World, r: Request) -> None:
    """What must be known of the object before the send."""
    forget_unless_ours(w, r)
    memory = w.memory[r.obj]
    if r.op is Op.DELETE:
        if memory in (FORGOTTEN, NO_OBJECT):
            r.at, r.why = At.LOOKING, Why.DELETE
            return
    elif memory == FORGOTTEN and (r.op is Op.STREAM or not (w.size.honoured or ruled(w))):
        r.at, r.why = At.LOOKING, Why.STATE
        return
    ready(w, r)


def forget_unless_ours(w: World, r: Request) -> None:
    """What is remembered is judged like a head."""
    memory = w.memory[r.obj]
    if memory != FORGOTTEN and product.judge(state_of(w, memory), KEYS[r.key], r.token, 0) is not Verdict.MOVED:
        w.memory[r.obj] = FORGOTTEN


def ruled(w: World) -> bool:
    """Whether a rule names the one key of the objects."""
    return w.size.keys == 1


def ready(w: World, r: Request) -> None:
    """Conditioned on the state last seen."""
    r.at = At.READY
    if w.size.honoured:
        r.condition = product.condition_on(w.memory[r.obj])
    if r.op is Op.STREAM:
        stage(w, r)


def stage(w: World, r: Request) -> None:
    """A body begins to stream."""
    try:
        send = w.gates[r.key].stage(Token(r.token), settle_ticks(w.size, r.op))
    except Refused:
        refused(w, r)
        return
    r.at, r.flight = At.STAGED, flight_of(w, r, send)


def look(w: World, r: Request) -> None:
    """The store evaluates a HEAD."""
    r.at, r.looked = At.LOOKED, w.objects[r.obj]


def judge(w: World, r: Request) -> None:
    """The head has come, and is judged."""
    content, _, higher, _ = r.looked
    nonce = r.flight.nonce if r.flight is not None and r.token else 0
    verdict = product.judge(state_of(w, r.looked), KEYS[r.key], r.token, nonce)
    head, r.looked = r.looked, NO_OBJECT
    if r.op is Op.COMPLETE:
        completes_unclear(w, r, verdict)
        return
    w.memory[r.obj] = (*head[:3], 0)
    if verdict is Verdict.OTHER_KEY:
        if not w.size.rekey:
            refused(w, r)
            return
        verdict = Verdict.MOVED
    if verdict is Verdict.HIGHER_TOKEN:
        # The object remembers a token that the floor does not know: the floor is raised, and the write is stale.
        if higher > w.gates[r.key].floor:
            r.at, r.value = At.RAISING, higher
        else:
            refused(w, r)
    elif r.why is Why.STATE:
        ready(w, r)
    elif r.why is Why.DELETE:
        if content == ABSENT:
            end(w, r, applied=True)
        else:
            ready(w, r)
    elif r.why is Why.MOVED:
        moved(w, r, verdict, head)
    else:
        doubted(w, r, verdict)


def moved(w: World, r: Request, verdict: Verdict, head: Head) -> None:
    """The condition failed: it was applied after all, or is sent again, admitted anew."""
    if verdict is Verdict.OURS:
        end(w, r, applied=True)
        return
    if r.op is Op.STREAM:
        end(w, r, again=True)
        return
    try:
        admit_anew(w, r)
    except Refused:
        refused(w, r)
        return
    r.flight = None
    if r.op is Op.DELETE and head == NO_OBJECT:
        end(w, r, applied=True)
        return
    r.at, r.condition = At.READY, product.condition_on(head)


def admit_anew(w: World, r: Request) -> None:
    """Raises `Refused` for a writer that has been overtaken or sealed meanwhile."""
    w.gates[r.key].admit(Token(r.token))


def doubted(w: World, r: Request, verdict: Verdict) -> None:
    """Only a send's own nonce settles it before its time."""
    assert r.flight is not None
    if verdict is not Verdict.OURS:
        end(w, r, again=True, unknown=True)
        return
    if r.flight.send is not None and r.flight.send.unsettled:
        guarantees.holds(w, r)
    nonce_seen(w, r.flight)
    end(w, r, applied=True)


def nonce_seen(w: World, f: Flight) -> None:
    """The object bears the send's nonce."""
    if f.send is not None and f.send.phase is Phase.IN_DOUBT:
        w.gates[f.key].settle(f.send, Signal.NONCE_SEEN)


# --- sending


def commit(w: World, r: Request) -> None:
    """The commit point: the next bytes complete the request."""
    gate = w.gates[r.key]
    if r.op in TAKES_TURN and w.size.honoured and r.token:
        forget_unless_ours(w, r)
        if conditional(w, r):
            r.condition = product.condition_on(w.memory[r.obj])
    if r.flight is None:
        try:
            r.flight = flight_of(w, r, gate.stage(Token(r.token), settle_ticks(w.size, r.op)))
        except Refused:
            refused(w, r)
            return
    f = r.flight
    assert f.send is not None
    try:
        pass_gate(w, r, f)
    except FenceError as error:
        gate.settle(f.send, Signal.ABANDON)
        f.way = Way.NEVER
        end(w, r, again=not isinstance(error, Refused))
        return
    guarantees.sent(w, r, f)
    r.at, f.way = At.SENT, Way.UNDER_WAY
    if r.op is Op.COMPLETE:
        w.memory[r.obj] = FORGOTTEN
        upload = upstream.upload_of(w, r.nonce)
        if upload is None or not upload.upstream:
            f.way = Way.FAILED


def pass_gate(w: World, r: Request, f: Flight) -> None:
    """As `Passage.commit` does. Raises `FenceError`."""
    gate = w.gates[r.key]
    gate.refuse_overtaken(Token(r.token))
    if contested(w, r):
        raise product.contested(KEYS[r.key])
    assert f.send is not None
    gate.enter(f.send)


def conditional(w: World, r: Request) -> bool:
    """Whether what is remembered of the object makes a condition."""
    memory = w.memory[r.obj]
    return memory != FORGOTTEN and (memory != NO_OBJECT or r.op is not Op.DELETE)


def flight_of(w: World, r: Request, send: core_gate.Send) -> Flight:
    """A send of the request, with a nonce of its own."""
    nonce = r.nonce if r.op is Op.COMPLETE else new_nonce(w) if r.token and r.op in BEARS_NONCE else 0
    return Flight(r.op, r.obj, r.key, r.token, r.content, r.condition, nonce, send)


def new_nonce(w: World) -> int:
    """A number that nothing in the world bears."""
    used = {f.nonce for f in w.flights()} | {u.nonce for u in w.uploads} | {o[3] for o in w.objects}
    used |= {r.looked[3] for r in w.requests}
    return next(n for n in range(1, 100) if n not in used)


def answer(w: World, r: Request, status: int, code: str | None) -> None:
    """The upstream answers."""
    assert r.flight is not None
    assert r.flight.send is not None
    f, gate = r.flight, w.gates[r.key]
    match product.classify(status, code):
        case Answer.APPLIED:
            gate.settle(f.send, Signal.APPLIED)
            w.memory[r.obj] = (
                (f.content, f.key, f.token, 0) if f.token and r.op is not Op.DELETE else (f.content, 0, 0, 0)
            )
            if r.op is Op.COMPLETE:
                completed(w, r)
            guarantees.holds(w, r)
            end(w, r, applied=True)
        case Answer.REFUSED:
            gate.settle(f.send, Signal.REFUSED)
            if r.op is Op.COMPLETE and code == "NoSuchUpload" and r.token:
                r.at, r.why = At.LOOKING, Why.STATE
            elif r.condition != NONE and status in CONDITION_FAILED_STATUS:
                r.at, r.why = At.LOOKING, Why.MOVED
            else:
                end(w, r)
        case Answer.LOST:
            lose(w, r)


def lose(w: World, r: Request) -> None:
    """The answer is lost, the connection reset."""
    f = r.flight
    assert f is not None
    upstream.cut(w, f, settle_ticks(w.size, r.op))
    lost(w, f)
    w.memory[r.obj] = FORGOTTEN
    if r.token and r.op is not Op.DELETE:
        r.at, r.why = At.LOOKING, Why.DOUBT
    else:
        end(w, r, again=True, unknown=True)


def lost(w: World, f: Flight) -> None:
    """The gate is told that nobody knows."""
    assert f.send is not None
    w.gates[f.key].lost(f.send, w.now)


def chase(w: World, f: Flight) -> None:
    """A send in doubt is looked for."""
    if product.judge(state_of(w, w.objects[f.obj]), KEYS[f.key], f.token, f.nonce) is not Verdict.OURS:
        raise NoChange
    nonce_seen(w, f)


def refused(w: World, r: Request) -> None:
    """412: overtaken or sealed. After a lost answer it is suppressed, and the answer stays Unknown."""
    doubtful = r.why is Why.DOUBT and r.flight is not None
    end(w, r, again=doubtful, unknown=doubtful)


def end(w: World, r: Request, *, applied: bool = False, again: bool = False, unknown: bool = False) -> None:
    """The request is answered: with 2xx, with 503 (`again`), else for good; as NotApplied unless `unknown`."""
    w.requests.remove(r)
    if r.flight is not None:
        w.adrift.append(r.flight)
    if applied:
        upload = upstream.upload_of(w, r.nonce) if r.op is Op.COMPLETE else None
        guarantees.visible(r, upload.applied if upload is not None else r.seen)
        guarantees.acknowledged(w, r)
    elif not unknown:
        guarantees.not_applied(w, r)
    if again and w.retries and r.op in (Op.PUT, Op.STREAM, Op.DELETE, Op.COPY):
        w.again.append((r.op, r.obj, r.key, r.token, r.content))


def state_of(w: World, head: Head) -> ObjectState:
    """A head as the core knows it."""
    content, key, token, nonce = head
    return product.state(content, KEYS[key] if token else None, token, nonce)


# --- multipart uploads (service/uploads.py)


def bind(w: World, r: Request) -> None:
    """CreateMultipartUpload: bound durably, then answered."""
    upload = Upload(r.obj, r.key, r.token, r.content, new_nonce(w), completes=2)
    w.uploads.append(upload)
    w.requests.remove(r)
    try:
        w.gates[r.key].refuse_overtaken(Token(r.token))
    except Refused:
        upload.completes = 0


def complete(w: World, upload: Upload) -> None:
    """A Complete comes in; key and token are its binding's."""
    upload.completes -= 1
    if upload.completed:
        try:
            w.gates[upload.key].admit(Token(upload.token))
        except Refused as error:
            raise NoChange from error
        repeated = Request(Op.COMPLETE, upload.obj, upload.key, upload.token, upload.content)
        guarantees.visible(repeated, upload.applied)
    elif upload.bound:
        arrive(w, Op.COMPLETE, upload.obj, upload.key, token_of(w, upload), upload.content, upload.nonce)
    else:
        raise NoChange


def token_of(w: World, upload: Upload) -> int:
    """The token of a Complete that bears none."""
    return upload.token


def completes_unclear(w: World, r: Request, verdict: Verdict) -> None:
    """No success came back. The upload's nonce decides the answer and settles nothing."""
    if verdict is Verdict.OURS:
        completed(w, r)
        end(w, r, applied=True)
    elif r.why is Why.DOUBT:
        end(w, r, again=True, unknown=True)
    else:
        end(w, r)


def completed(w: World, r: Request) -> None:
    """The upload is finished."""
    if (upload := upstream.upload_of(w, r.nonce)) is not None:
        upload.finished = True


def record_finished(w: World) -> None:
    """The database is told of finished uploads once nothing of them can land."""
    for u in w.uploads:
        if u.finished and u.bound and (u.key, u.obj) not in w.bound and not may_land(w, u):
            u.bound, u.completed = False, True


def may_land(w: World, upload: Upload) -> bool:
    """Whether a Complete of the upload is unsettled."""
    return any(f.op is Op.COMPLETE and f.nonce == upload.nonce and f.send is not None and f.send.unsettled
               for f in w.flights())  # fmt: skip


def revoke(w: World, upload: Upload) -> None:
    """What is below the floor is revoked, and aborted upstream once nothing of it can land."""
    gate = w.gates[upload.key]
    if not upload.bound or gate.completed_floor < gate.floor or upload.token >= gate.floor:
        raise NoChange
    upload.bound = upload.upstream = False


# --- time, ends and beginnings


def tick(w: World) -> None:
    """A moment passes."""
    upstream.tick(w)
    for gate in w.gates:
        gate.expire(w.now)
    if w.settles[1] <= w.now:
        w.marked.clear()
        w.bound.clear()


def flush(w: World, key: int) -> None:
    """A completed floor reaches the disk."""
    w.fences[key] = store_rules.handed_over(w.fences[key], w.lazy[key])


def crash(w: World) -> None:
    """The process is killed, and started again."""
    w.lazy = [0 for _ in w.lazy]
    cut_all(w)
    start(w, clean=False)


def stop(w: World) -> None:
    """The process stops in good order, and is started again."""
    for key in range(w.size.keys):
        flush(w, key)
    clean = stops_clean(w)
    cut_all(w)
    start(w, clean=clean)


def stops_clean(w: World) -> bool:
    """Nothing that this run or an earlier one has sent can still land."""
    return not any(next(gate.unsettled(), None) or gate.unsettled_until > w.now for gate in w.gates)


def lose_database(w: World) -> None:
    """The process is killed, and started again with a new database."""
    w.fences = [Fence(KEYS[key]) for key in range(w.size.keys)]
    w.owners, w.holder = [-1 for _ in w.owners], [-1 for _ in w.holder]
    w.known, w.acknowledged, w.sealed = ([0 for _ in w.known] for _ in range(3))
    w.marked.clear()
    w.lost = True
    for upload in w.uploads:
        upload.bound = upload.completed = False
    w.lazy = [0 for _ in w.lazy]
    cut_all(w)
    for f in w.adrift:
        f.earlier = True
    start(w, clean=True)


def cut_all(w: World) -> None:
    """All connections are cut, all requests forgotten."""
    for r in w.requests:
        if w.retries and r.op in (Op.PUT, Op.STREAM, Op.DELETE, Op.COPY):
            w.again.append((r.op, r.obj, r.key, r.token, r.content))
    copies = {(f.key, f.obj) for f in w.flights() if f.op is Op.COPY and f.send is not None and f.send.unsettled}
    w.marked = sorted(copies | set(w.marked))
    w.adrift = w.flights()
    w.requests.clear()
    for f in w.adrift:
        upstream.cut(w, f, settle_ticks(w.size, f.op))
        f.send = None


def start(w: World, *, clean: bool) -> None:
    """The gates as the database knows them."""
    w.memory = [FORGOTTEN for _ in w.memory]
    w.claimed = [-1 for _ in w.claimed]
    w.bound = [] if clean else sorted({(u.key, u.obj) for u in w.uploads if u.bound} | set(w.marked))
    w.settles = (0, 0) if clean else (w.now + w.size.settle_ticks, w.now + w.size.settle_assembly_ticks)
    w.gates = []
    for key, fence in enumerate(w.fences):
        until = -math.inf if clean else w.now + patience(w, key)
        w.gates.append(
            core_gate.Gate(KEYS[key], fence.floor, fence.completed_floor, fence.sealed_token, unsettled_until=until)
        )


def patience(w: World, key: int) -> int:
    """How long after an unclean start a key waits for what earlier runs sent."""
    return w.size.settle_assembly_ticks if any(bound == key for bound, _ in w.bound) else w.size.settle_ticks


# --- what can happen next


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
        or any(f.lands_by >= 0 or (f.send is not None and f.send.phase is Phase.IN_DOUBT) for f in w.flights())
    ):
        yield ("tick",)
    if w.crashes:
        yield ("crash",)
    if w.losses:
        yield ("lose the database",)
    if w.stops and not w.requests:
        yield ("stop",)


def _arrivals(w: World) -> Iterator[Action]:
    size = w.size
    for budget, ops in ((w.writes, size.ops), (w.grants, (Op.GRANT,)), (w.seals, (Op.SEAL,))):
        if not budget:
            continue
        for op in ops:
            objects = range(size.objects) if op not in (Op.GRANT, Op.SEAL) else range(1)
            for token in size.tokens:
                if not token and op in (Op.GRANT, Op.SEAL):
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
    if op in (Op.DELETE, Op.GRANT, Op.SEAL):
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
            else:
                w.writes -= 1
            arrive(w, op, obj, key, token, content)  # type: ignore[arg-type]
        case "again":
            w.retries -= 1
            arrive(w, *w.again.pop(rest[0]))  # type: ignore[call-overload]
        case "complete":
            complete(w, w.uploads[rest[0]])  # type: ignore[call-overload]
        case "revoke":
            revoke(w, w.uploads[rest[0]])  # type: ignore[call-overload]
        case "land adrift":
            upstream.land(w, w.adrift[rest[0]])  # type: ignore[call-overload]
        case "chase":
            chase(w, w.adrift[rest[0]])  # type: ignore[call-overload]
        case "flush":
            flush(w, rest[0])  # type: ignore[arg-type]
        case "tick":
            tick(w)
        case "crash":
            w.crashes -= 1
            crash(w)
        case "lose the database":
            w.losses -= 1
            lose_database(w)
        case "stop":
            w.stops -= 1
            stop(w)
        case _:
            _act_on(w, w.requests[rest[0]], str(name))  # type: ignore[call-overload]
    record_finished(w)
    guarantees.learned(w)
    _tidy(w)


def _act_on(w: World, r: Request, name: str) -> None:
    f = r.flight
    match name:
        case "give up":
            end(w, r, again=True)
        case "land":
            assert f is not None
            upstream.land(w, f)
        case "answer":
            assert f is not None
            if f.way is Way.LANDED:
                answer(w, r, 200, None)
            elif r.op is Op.COMPLETE:
                answer(w, r, 404, "NoSuchUpload")
            else:
                answer(w, r, 412, "PreconditionFailed")
        case "403":
            assert f is not None
            w.faults -= 1
            f.way = Way.NEVER
            answer(w, r, 403, "AccessDenied")
        case "500":
            w.faults -= 1
            answer(w, r, 500, "InternalError")
            if f is not None:
                upstream.cut(w, f, settle_ticks(w.size, r.op))
        case "reset":
            w.faults -= 1
            lose(w, r)
        case _:
            _STEPS[name](w, r)


_STEPS = {
    "disk": lambda w, r: disk(w, r),
    "learn": lambda w, r: learn(w, r),
    "hand over": lambda w, r: hand_over(w, r),
    "uncontested": lambda w, r: uncontested(w, r),
    "look": lambda w, r: look(w, r),
    "judge": lambda w, r: judge(w, r),
    "commit": lambda w, r: commit(w, r),
    "bind": lambda w, r: bind(w, r),
    "seal disk": lambda w, r: seal_disk(w, r),
    "seal learn": lambda w, r: seal_learn(w, r),
    "claim": lambda w, r: claim(w, r),
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
