"""A request on its way in: token admitted, object owned, as `gateway/service/fences.py` and `Writes.own` do it."""

from __future__ import annotations

from gateway.core.errors import FenceError, Refused
from gateway.core.gate import Admission
from gateway.core.keys import Token
from gateway.service.objects import ObjectEntry
from gateway.stores import rules as store_rules
from tests.model import guarantees, jobs, leases, sending, upstream
from tests.model.queue import Term
from tests.model.size import Op
from tests.model.world import (
    KEYS,
    At,
    NoChange,
    Request,
    World,
)

CONTROL = (Op.GRANT, Op.SEAL, *(op for op in Op if op >= Op.LEASE))
"""Calls that write no object: the record does not keep them out."""


def arrive(w: World, op: Op, obj: int, key: int, token: int, content: int, nonce: int = 0) -> None:
    """A request is admitted, or refused at once (then nothing has changed)."""
    if kept_out(w) and op not in CONTROL:
        raise NoChange
    r = Request(op, obj, key, token, content, nonce=nonce, stale=token < w.known[key])
    r.unissued = token > max(w.issued[key], w.fences[key].floor) and w.told[key] > 0
    r.seen = op not in CONTROL and upstream.shows(w, op, obj, content)
    try:
        admission = w.gates[key].admit(Token(token))
    except FenceError as error:
        raise NoChange from error
    w.requests.append(r)
    if admission is Admission.GO:
        admitted(w, r)
    else:
        r.at = At.RAISING if admission is Admission.RAISE else At.HAND_OVER
        r.value = token if admission is Admission.RAISE else 0


def kept_out(w: World) -> bool:
    """Whether the bucket's record names another database, or a rebuild."""
    return w.refused


def disk(w: World, r: Request) -> None:
    """The raise has reached the disk."""
    w.fences[r.key] = store_rules.raised(w.fences[r.key], r.value, 0.0)
    r.at, r.value = At.RAISED, w.fences[r.key].floor


def learn(w: World, r: Request) -> None:
    """The gate is told of the floor."""
    gate = w.gates[r.key]
    gate.raised(r.value)
    jobs.overtaken(w)
    r.at, r.value = At.HAND_OVER, 0
    try:
        gate.refuse_overtaken(Token(r.token))
    except Refused:
        sending.refused(w, r)


def hand_over(w: World, r: Request) -> None:
    """Try to complete the hand-over."""
    gate = w.gates[r.key]
    before = gate.completed_floor
    try:
        if gate.hand_over(Token(r.token), w.now) is not None:
            raise NoChange
    except Refused:
        sending.refused(w, r)
        if r.op is Op.LEASE:
            jobs.over(w, r.token)
        return
    if gate.completed_floor > before:
        w.lazy[r.key] = max(w.lazy[r.key], gate.completed_floor)
    admitted(w, r)


def admitted(w: World, r: Request) -> None:
    """The floor is durable and its hand-over complete."""
    r.at = At.READY
    if r.op in (Op.GRANT, Op.LEASE):
        guarantees.issued(w, r)
        guarantees.acknowledged(w, r)
        w.requests.remove(r)
        if r.op is Op.LEASE and w.queue is not None and w.queue.held == r.token:
            w.queue.term = Term.RUNNING
    elif r.op is Op.SEAL:
        r.at = At.SEALING
    elif r.op is Op.FINISH:
        leases.close(w, r)
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
    jobs.overtaken(w)
    w.requests.remove(r)
    if r.value == jobs.LAPSED:
        jobs.ended(w, r.token, jobs.LAPSED)


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
        sending.owned(w, r)
        return
    owner = w.claimed[r.obj] = w.owners[r.obj]
    if owner not in (-1, r.key) and not (r.token and w.size.rekey):
        sending.refused(w, r)
    elif not r.token or (owner == r.key and not w.size.rekey):
        sending.owned(w, r)
    elif moves_too_early(w, r):
        sending.end(w, r, again=True)
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
    sending.owned(w, r)


def ruled(w: World) -> bool:
    """Whether a rule names the one key of the objects."""
    return w.size.keys == 1
