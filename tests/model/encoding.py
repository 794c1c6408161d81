"""Worlds as tuples of numbers, and back: what a step will never read again is left out."""

from __future__ import annotations

import math

from gateway.core import gate as core_gate
from gateway.core.keys import Token
from gateway.core.write import Phase
from gateway.stores.values import Fence, Grant
from tests.model import queue as job_queue
from tests.model.size import Op, Size
from tests.model.world import (
    ABSENT,
    FORGOTTEN,
    KEYS,
    NO_OBJECT,
    NONE,
    At,
    Encoded,
    Flight,
    Request,
    Upload,
    Way,
    Why,
    World,
    settle_ticks,
)


def encode(w: World) -> Encoded:
    """The world as numbers."""
    restarts = w.crashes or w.stops or w.losses
    open_objects = [obj for obj in range(w.size.objects) if not _closed(w, obj)]
    owners = zip(w.owners, w.claimed, w.holder, strict=True) if w.size.keys > 1 else [(-1, -1, -1) for _ in w.owners]
    return (
        (w.writes, w.deletes, w.creates, w.grants, w.seals, w.retries, w.faults, w.crashes, w.stops, w.losses, w.lost,
         *(max(0, at - w.now) for at in w.settles),
         w.leases, w.finishes, w.refused, max(0, w.rebuilds_at - w.now) if w.refused else 0, w.generation),
        tuple(
            (f.floor, f.completed_floor if restarts else 0, f.sealed_token, lazy if restarts else 0,
             g.floor, g.completed_floor, g.sealed_token,
             max(0, int(g.unsettled_until - w.now)) if g.unsettled_until > w.now else 0, known, acked, sealed,
             f.granted_token, f.completed_token, g.granted_token, g._closed_to or 0, issued, told, done)
            for f, lazy, g, known, acked, sealed, issued, told, done in zip(
                w.fences, w.lazy, w.gates, w.known, w.acknowledged, w.sealed, w.issued, w.told, w.done, strict=True
            )
        ),
        tuple(head if obj in open_objects else NO_OBJECT for obj, head in enumerate(w.objects)),
        tuple(head if obj in open_objects else FORGOTTEN for obj, head in enumerate(w.memory)),
        tuple(owners),
        tuple(_request(r, w.now) for r in w.requests),
        tuple(_flight(f, w.now) for f in w.adrift),
        tuple((u.obj, u.key, u.token, u.content, u.nonce, u.completes, u.bound, u.completed, u.upstream, u.applied,
               u.finished)
              for u in w.uploads),
        tuple((int(a[0]), *a[1:]) for a in w.again),
        tuple(w.marked) if restarts else (),
        tuple(w.bound),
        job_queue.encode(w.queue),
    )  # fmt: skip


def _closed(w: World, obj: int) -> bool:
    """Whether nobody writes to the object any more, and nothing sent to it can take effect: nobody looks at it."""
    return not (
        w.writes
        or w.deletes
        or w.creates
        or w.retries
        or w.losses
        or w.refused
        or w.size.keys > 1
        or any(u.obj == obj for u in w.uploads)
        or any(r.obj == obj and r.op < Op.GRANT for r in w.requests)
        or any(f.obj == obj for f in w.adrift)
    )


def _flight(f: Flight | None, now: int) -> Encoded:
    if f is None:
        return ()
    phase, settles = (0, math.inf) if f.send is None else (int(f.send.phase), f.send.settles_at)
    doubtful = int(settles) - now if phase == Phase.IN_DOUBT else -1
    nonce = f.nonce if f.send is not None or f.op is Op.COMPLETE else 0
    if f.way > Way.UNDER_WAY:  # it has landed, or never will
        content = f.content if f.way is Way.LANDED else ABSENT
        return (
            int(f.op), f.obj, f.key, f.token, content, NONE, nonce, phase, doubtful, int(f.way), -1,
            False, False, False, False,
        )  # fmt: skip
    return (
        int(f.op), f.obj, f.key, f.token, f.content, f.condition, nonce, phase, doubtful,
        int(f.way), f.lands_by - now if f.lands_by >= 0 else -1, f.denied, f.overtaken, f.earlier, f.superseded,
    )  # fmt: skip


def _request(r: Request, now: int) -> Encoded:
    why = Why.STATE if r.why is Why.DELETE and r.at not in (At.LOOKING, At.LOOKED) else r.why
    return (
        int(r.op), r.obj, r.key, r.token, r.content, int(r.at), int(why), r.condition, r.value, r.looked, r.nonce,
        _flight(r.flight, now), r.seen, r.took, r.stale, r.unissued, r.answer,
    )  # fmt: skip


def decode(size: Size, state: Encoded) -> World:
    """The world that `encode` wrote, with gates of the product's own."""
    budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue = state
    world = World(
        size,
        *budgets[:10],
        fences=[_fence(k, row) for k, row in enumerate(keys)],
        lazy=[row[3] for row in keys],
        gates=[
            core_gate.Gate(KEYS[k], row[4], row[5], row[6], row[7] or -math.inf, row[13]) for k, row in enumerate(keys)
        ],
        objects=list(objects), memory=list(memory),
        owners=[row[0] for row in owners],
        claimed=[row[1] for row in owners], holder=[row[2] for row in owners],
        known=[row[8] for row in keys], acknowledged=[row[9] for row in keys],
        sealed=[row[10] for row in keys], marked=list(marked), bound=list(bound),
        issued=[row[15] for row in keys], told=[row[16] for row in keys], done=[row[17] for row in keys],
        leases=budgets[13], finishes=budgets[14], refused=budgets[15], rebuilds_at=budgets[16], generation=budgets[17],
        lost=budgets[10], settles=budgets[11:13],
        uploads=[Upload(*row) for row in uploads],
        again=[(_OPS[a[0]], *a[1:]) for a in again],
        queue=job_queue.decode(queue),
    )  # fmt: skip
    for gate, row in zip(world.gates, keys, strict=True):
        gate._closed_to = row[14] or None
    for row in requests:
        world.requests.append(
            Request(  # type: ignore[call-arg]
                _OPS[row[0]], *row[1:5], _AT[row[5]], _WHY[row[6]], *row[7:11], _unflight(world, row[11]), *row[12:]
            )
        )
    for row in adrift:
        flight = _unflight(world, row)
        assert flight is not None
        world.adrift.append(flight)
    return world


def _fence(key: int, row: Encoded) -> Fence:
    grant = Grant(row[11], "holder", 1.0, 0.0, "id") if row[11] else None
    return Fence(KEYS[key], row[0], row[1], row[2], grant=grant, completed_token=row[12])


def _unflight(world: World, row: Encoded) -> Flight | None:
    if not row:
        return None
    send = None
    if row[7]:
        send = core_gate.Send(Token(row[3]), settle_ticks(world.size, row[0]), _PHASES[row[7]])
        if row[8] >= 0:
            send.settles_at = row[8]
        if send.phase is not Phase.SETTLED:
            world.gates[row[2]]._sends[send] = None
    return Flight(_OPS[row[0]], *row[1:7], send, _WAYS[row[9]], *row[10:])  # type: ignore[call-arg]


_OPS, _AT, _WHY, _WAYS = tuple(Op), tuple(At), tuple(Why), tuple(Way)
_PHASES = {int(phase): phase for phase in Phase}
