"""The store behind the gateway, as bad as it is allowed to be: what has been sent takes effect late, or never."""

from __future__ import annotations

from tests.model import guarantees
from tests.model.size import Op
from tests.model.world import ABSENT, NONE, Flight, Upload, Way, World


def upload_of(w: World, nonce: int) -> Upload | None:
    """The upload whose sends bear that nonce."""
    return next((u for u in w.uploads if u.nonce == nonce), None)


def land(w: World, f: Flight) -> None:
    """A send is evaluated, and takes effect if its condition holds now."""
    content, *_ = before = w.objects[f.obj]
    token = f.token
    if f.op is Op.COMPLETE:
        upload = upload_of(w, f.nonce)
        if upload is None or not (upload.upstream or upload.applied):
            f.way = Way.FAILED
            return
        # Two Completes that race both win on real servers: one that came in time lands also after the other.
        upload.upstream, upload.applied = False, True
        token = upload.token
    elif f.condition not in (NONE, content):
        f.way = Way.FAILED
        return
    f.way = Way.LANDED
    if f.op is not Op.DELETE or content != ABSENT:
        guarantees.effect(w, f, before, token)
    w.objects[f.obj] = (
        (f.content, f.key, f.token, f.nonce) if f.token and f.op is not Op.DELETE else (f.content, 0, 0, 0)
    )
    for r in w.requests:
        if r.obj == f.obj:
            r.seen = r.seen or shows(w, r.op, r.obj, r.content)
            r.took = r.took or r.flight is f


def shows(w: World, op: Op, obj: int, content: int) -> bool:
    """Whether a reader sees what a write asks for."""
    return w.objects[obj][0] == (ABSENT if op is Op.DELETE else content)


def cut(w: World, f: Flight, settle_ticks: int) -> None:
    """The connection is reset: the send lands within the settle time-out or never."""
    if f.way is Way.UNDER_WAY and f.lands_by < 0:
        f.lands_by = w.now + settle_ticks


def tick(w: World) -> None:
    """A moment passes: what was to land by now has not, and never will."""
    w.now += 1
    if not w.size.bounded:
        for f in w.flights():
            if f.lands_by >= 0:
                f.lands_by += 1  # it keeps its moment ahead of it for ever
        return
    for f in w.flights():
        if f.way is Way.UNDER_WAY and 0 <= f.lands_by <= w.now:
            f.way = Way.NEVER
