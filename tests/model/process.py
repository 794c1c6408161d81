"""Time, and the process's ends and beginnings."""

from __future__ import annotations

import math

from gateway.core import gate as core_gate
from gateway.stores import rules as store_rules
from gateway.stores.values import Fence
from tests.model import guarantees, jobs, upstream
from tests.model.size import Op
from tests.model.world import (
    FORGOTTEN,
    KEYS,
    World,
    settle_ticks,
)


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
    w.known, w.acknowledged, w.sealed, w.told, w.done = ([0 for _ in w.known] for _ in range(5))
    w.refused = w.size.recorded
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
    if w.refused:
        w.rebuilds_at = w.now + rebuild_patience(w)
    w.gates = []
    for key, fence in enumerate(w.fences):
        until = -math.inf if clean else w.now + patience(w, key)
        w.gates.append(
            core_gate.Gate(
                KEYS[key], fence.floor, fence.completed_floor, fence.sealed_token, until, fence.granted_token
            )
        )
    jobs.start(w)


def rebuild(w: World) -> None:
    """The bucket is this database's, with the floors and owners that its objects tell; nothing fenced was served in it
    since the database was lost."""
    for obj, (_, key, token, _) in enumerate(w.objects):
        if token:
            found(w, obj, key, token)
    w.refused, w.generation = False, w.generation + 1
    guarantees.rebuilt(w)


def found(w: World, obj: int, key: int, token: int) -> None:
    """What an object tells."""
    w.fences[key] = store_rules.raised(w.fences[key], token, 0.0)
    w.gates[key].raised(w.fences[key].floor)
    if w.size.keys > 1:
        w.owners[obj] = w.holder[obj] = key


def rebuild_patience(w: World) -> int:
    """How long a rebuild waits for what was sent before."""
    return w.size.settle_assembly_ticks


def patience(w: World, key: int) -> int:
    """How long after an unclean start a key waits for what earlier runs sent."""
    return w.size.settle_assembly_ticks if any(bound == key for bound, _ in w.bound) else w.size.settle_ticks
