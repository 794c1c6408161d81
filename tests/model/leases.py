"""Leases of the gateway's own and completions, as `gateway/service/leases.py` and `completions.py` have them."""

from __future__ import annotations

from gateway.core.errors import Refused
from gateway.core.keys import Token
from gateway.stores import rules as store_rules
from gateway.stores.values import GrantWanted
from tests.model import guarantees, sending
from tests.model.size import Op
from tests.model.world import ABSENT, At, NoChange, Request, World


def ask(w: World, key: int) -> None:
    """Somebody asks for the lease of a key. Who held it has just run out, or asks for a new one."""
    w.requests.append(Request(Op.LEASE, 0, key, 0, ABSENT, At.GRANTING))


def grant_disk(w: World, r: Request) -> None:
    """The disk grants the lease, or refuses it."""
    fence = w.fences[r.key]
    instead_of = 0 if fence.held is None else fence.held.token
    after = store_rules.granted(fence, GrantWanted("holder", 1.0, "id", instead_of), generation(w), 0.0)
    if after is fence:
        w.requests.remove(r)
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
    r.at = At.HAND_OVER
    try:
        gate.refuse_overtaken(Token(r.token))
    except Refused:
        w.requests.remove(r)


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
    fence = w.fences[r.key]
    after = store_rules.completed(fence, r.token)
    if after is not fence:
        guarantees.completed(w, r)
    w.fences[r.key] = after
    r.at, r.value = At.RECORDED, int(after is not fence)


def finish_learn(w: World, r: Request) -> None:
    """The gate is told, and opens."""
    gate, fence = w.gates[r.key], w.fences[r.key]
    gate.raised(fence.floor, fence.sealed_token)
    gate.open()
    if r.value:
        w.sealed[r.key] = max(w.sealed[r.key], r.token)
    w.requests.remove(r)
