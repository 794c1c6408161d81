"""A request on its way out: its condition, its commit point, what comes of it. As `gateway/service/writes.py` does."""

from __future__ import annotations

from gateway.core import gate as core_gate
from gateway.core.errors import FenceError, Refused
from gateway.core.keys import Token
from gateway.core.write import CONDITION_FAILED_STATUS, Answer, ObjectState, Phase, Signal, Verdict
from tests.model import admission, guarantees, product, uploads, upstream
from tests.model.size import Op
from tests.model.world import (
    ABSENT,
    BEARS_NONCE,
    FORGOTTEN,
    KEYS,
    NO_OBJECT,
    NONE,
    TAKES_TURN,
    At,
    Flight,
    Head,
    NoChange,
    Request,
    Way,
    Why,
    World,
    settle_ticks,
)


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
    elif memory == FORGOTTEN and (r.op is Op.STREAM or not (w.size.honoured or admission.ruled(w))):
        r.at, r.why = At.LOOKING, Why.STATE
        return
    ready(w, r)


def forget_unless_ours(w: World, r: Request) -> None:
    """What is remembered is judged like a head."""
    memory = w.memory[r.obj]
    if memory != FORGOTTEN and product.judge(state_of(w, memory), KEYS[r.key], r.token, 0) is not Verdict.MOVED:
        w.memory[r.obj] = FORGOTTEN


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
        uploads.completes_unclear(w, r, verdict)
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
    if admission.contested(w, r):
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
    f, send, gate = r.flight, r.flight.send, w.gates[r.key]
    match product.classify(status, code):
        case Answer.APPLIED:
            gate.settle(send, Signal.APPLIED)
            w.memory[r.obj] = (
                (f.content, f.key, f.token, 0) if f.token and r.op is not Op.DELETE else (f.content, 0, 0, 0)
            )
            if r.op is Op.COMPLETE:
                uploads.completed(w, r)
            guarantees.holds(w, r)
            end(w, r, applied=True)
        case Answer.REFUSED:
            gate.settle(send, Signal.REFUSED)
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
