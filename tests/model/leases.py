"""Leases of the gateway's own and completions, as `gateway/service/leases.py` and `completions.py` have them."""

from __future__ import annotations

from gateway.core.errors import Refused
from gateway.core.job import Completion
from gateway.core.keys import Token
from gateway.stores import job_rules
from gateway.stores import rules as store_rules
from gateway.stores.values import GrantWanted
from tests.model import guarantees, jobs, sending
from tests.model.queue import Term
from tests.model.size import Op
from tests.model.world import ABSENT, At, NoChange, Request, World


def ask(w: World, key: int) -> None:
    """Somebody asks for the lease of a key. Who held it has just run out, or asks for a new one."""
    instead_of = 0 if w.queue is None else jobs.free(w)
    w.requests.append(Request(Op.LEASE, 0, key, 0, ABSENT, At.GRANTING, value=instead_of))


def grant_disk(w: World, r: Request) -> None:
    """The disk grants the lease, or refuses it."""
    fence = w.fences[r.key]
    instead_of = r.value if w.queue is not None else 0 if fence.held is None else fence.held.token
    after = store_rules.granted(fence, GrantWanted("holder", 1.0, "id", instead_of), generation(w), 0.0)
    if after is fence:
        w.requests.remove(r)
        if w.queue is not None:
            jobs.catch_up(w)
            jobs.see(w)
        return
    guarantees.granted(w, r.key, after.floor)
    w.fences[r.key] = after
    r.token, r.at = after.floor, At.GRANTED


def generation(w: World) -> int:
    """A new database's first, until it has taken the bucket over: then it is above that of the bucket's record."""
    return 0 if w.refused else w.generation


def grant_learn(w: World, r: Request) -> None:
    """The gate is told; the hand-over is awaited."""
    gate = w.gates[r.key]
    gate.granted(r.token)
    gate.raised(r.token, w.fences[r.key].sealed_token if w.fences[r.key].floor == r.token else 0)
    jobs.overtaken(w)
    if w.queue is not None:
        jobs.hold(w, r.token, Term.PENDING)
    r.at = At.HAND_OVER
    try:
        gate.refuse_overtaken(Token(r.token))
    except Refused:
        w.requests.remove(r)
        jobs.over(w, r.token)


def close(w: World, r: Request) -> None:
    """The gate lets no send of the token pass any more. One completion of a key at a time."""
    if any(o is not r and o.op is Op.FINISH and o.key == r.key and o.at >= At.CLOSED for o in w.requests):
        raise NoChange
    try:
        close_gate(w, r)
    except Refused:
        w.requests.remove(r)
    else:
        r.at = At.CLOSED


def close_gate(w: World, r: Request) -> None:
    """Raises `Refused`."""
    w.gates[r.key].close(Token(r.token))


def quiet(w: World, r: Request) -> None:
    """Nothing that has been sent can still take effect."""
    gate = w.gates[r.key]
    try:
        gate.refuse_overtaken(Token(r.token))
    except Refused:
        gate.open()
        w.requests.remove(r)
        return
    if not is_quiet(w, r):
        raise NoChange
    r.at = At.RECORDING


def give_up(w: World, r: Request) -> None:
    """It has waited as long as it may: the gate opens again."""
    w.gates[r.key].open()
    sending.end(w, r, again=True)


def is_quiet(w: World, r: Request) -> bool:
    return w.gates[r.key].quiet(w.now) is None


def finish_disk(w: World, r: Request) -> None:
    """The disk has the completion, and the seal with it; or it has another, or a higher token."""
    done = Completion(r.token, "", None, (), 0.0)
    job = None if w.queue is None else w.queue.job
    change = job_rules.completed(w.fences[r.key], job, done, lambda: 1, "")
    if change.done:
        guarantees.completed(w, r)
    w.fences[r.key] = change.fence
    if w.queue is not None and change.job is not None:
        w.queue.job = change.job
    r.at, r.value = At.RECORDED, int(change.done)


def finish_in_doubt(w: World, r: Request) -> None:
    """The disk has it, and says that it has failed: 503. The gate stays closed until that is known."""
    finish_disk(w, r)
    w.faults -= 1
    r.at, r.value = At.RECORDED_OR_NOT, 0


def finish_failed(w: World, r: Request) -> None:
    """The disk has failed, and nobody can tell."""
    w.faults -= 1
    r.at = At.RECORDED_OR_NOT


def finish_found_out(w: World, r: Request) -> None:
    """The disk is read: the gate learns what it has, and opens."""
    gate, fence = w.gates[r.key], w.fences[r.key]
    gate.raised(fence.floor, fence.sealed_token)
    jobs.overtaken(w)
    gate.open()
    w.requests.remove(r)


def finish_learn(w: World, r: Request) -> None:
    """The gate is told, and opens."""
    gate, fence = w.gates[r.key], w.fences[r.key]
    gate.raised(fence.floor, fence.sealed_token)
    jobs.overtaken(w)
    gate.open()
    w.requests.remove(r)
    if r.value:
        w.sealed[r.key] = max(w.sealed[r.key], r.token)
        guarantees.told_completed(w, r)
    if w.queue is not None:
        if r.value:
            jobs.forget(w, r.token)
        elif not fence.completed_token:
            jobs.ended(w, r.token)
