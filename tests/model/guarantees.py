"""G0 to G5, exactly as far as the right column of `docs/protocol.md` says, held against what happens.

Nothing here asks a gate: what has been promised and what has taken effect is all that is looked at.
"""

from __future__ import annotations

from gateway.core.job import JobState
from tests.model.queue import Term
from tests.model.size import Op
from tests.model.world import ABSENT, Flight, Head, Request, World

CONDITIONAL = (Op.PUT, Op.STREAM, Op.COPY, Op.DELETE)


class Violation(Exception):
    """A guarantee is broken."""

    def __init__(self, guarantee: str, what: str) -> None:
        super().__init__(f"{guarantee}: {what}")
        self.guarantee = guarantee


def floors(w: World) -> None:
    """G0: no floor that a gate has acted upon falls, and none runs ahead of the disk."""
    for fence, gate, known in zip(w.fences, w.gates, w.known, strict=True):
        if gate.floor < known:
            raise Violation("G0", f"the floor {known} has fallen to {gate.floor}")
        if fence.completed_floor > fence.floor:
            raise Violation("G0", "a hand-over above the floor is complete")


def learned(w: World) -> None:
    """Note what the gates act upon."""
    floors(w)
    w.known = [max(known, gate.floor) for known, gate in zip(w.known, w.gates, strict=True)]


def sent(w: World, request: Request, flight: Flight) -> None:
    """G1: a write below the floor at its admission sends nothing. R9: nor does one to another key's object."""
    key, token = flight.key, flight.token
    flight.overtaken = token < w.known[key] or 0 < token <= w.sealed[key]
    holder = w.holder[flight.obj]
    if w.size.keys > 1 and holder not in (-1, key) and not (token and w.size.rekey):
        raise Violation("R9", f"a write of token {token} is sent to an object of another key")
    if request.unissued:
        raise Violation("R10", f"a write of token {token} is sent, which no lease has issued")
    if request.stale:
        raise Violation("G1", f"a write of token {flight.token}, stale at its admission, has been sent")


def effect(w: World, f: Flight, before: Head, token: int) -> None:
    """G1 to G5, and R9, at the moment when a send takes effect on its object, which was `before`. `token` is its
    writer's: of an upload's Complete, that of who created it."""
    if f.denied:
        raise Violation("G5", "a write takes effect whose client was told NotApplied")
    _replaces(w, f, before)
    if f.earlier or not w.size.bounded:
        return
    if f.overtaken:
        raise Violation("G1", f"a write of token {f.token} becomes visible that was overtaken while it was staged")
    if 0 < token <= w.done[f.key]:
        raise Violation("R3", f"a write of token {token} takes effect after {w.done[f.key]} has completed the job")
    if token < w.acknowledged[f.key]:
        raise Violation("G2", f"token {token} takes effect after token {w.acknowledged[f.key]} was acknowledged")
    if f.superseded:
        raise Violation("R9", "a write of a former key takes effect after another key's has been answered")


def _replaces(w: World, f: Flight, before: Head) -> None:
    """G3 and G4: no conditional send replaces what a higher token of its key wrote, unless the object has returned to
    the very bytes of its condition. Where each write brings its own bytes, none does."""
    content, key, token, _ = before
    if not (w.size.honoured and f.token and f.op in CONDITIONAL):
        return
    if content == ABSENT or key != f.key or token <= f.token or (f.condition == content and w.size.equal_bytes):
        return
    name = "G4" if w.lost and not f.earlier else "G3"
    raise Violation(name, f"token {f.token} replaces what token {token} wrote")


def visible(r: Request, seen: bool) -> None:
    """G5: 2xx means that what was asked for has been visible."""
    if not seen:
        raise Violation("G5", f"a {r.op.name} of token {r.token} is answered 2xx and has never been visible")


def holds(w: World, r: Request) -> None:
    """R9: a fenced write succeeds. Its object is its key's, and nothing that another key has sent on it before takes
    effect any more."""
    if not r.token:
        return
    w.holder[r.obj] = r.key
    for f in w.flights():
        if f.obj == r.obj and f.key != r.key:
            f.superseded = True


def granted(w: World, key: int, token: int) -> None:
    """R10: no lease has a token that one had before, or a lower one; a new database may not know, before it has rebuilt
    the bucket. None is granted on a job that is done."""
    if token <= w.issued[key] and not w.lost:
        raise Violation("R10", f"token {token} is granted after {w.issued[key]}")
    if w.done[key]:
        raise Violation("once", f"token {token} is granted, and {w.done[key]} has completed the job")
    w.issued[key] = max(w.issued[key], token)


def issued(w: World, r: Request) -> None:
    """R10: where leases issue the tokens, none that they have not issued is told that it holds the key."""
    if r.unissued:
        raise Violation("R10", f"token {r.token} holds the key, and no lease has issued it")
    if r.op is Op.LEASE:
        w.told[r.key] = max(w.told[r.key], r.token)


def completed(w: World, r: Request) -> None:
    """A job is completed once, and by nobody but the highest that a lease has been granted with, as far as its database
    knows all of them."""
    if w.done[r.key]:
        raise Violation("once", f"token {r.token} completes the job, and {w.done[r.key]} has completed it")
    if r.token < w.issued[r.key] and not (w.lost or w.generation):
        raise Violation("once", f"token {r.token} completes the job, and {w.issued[r.key]} has been granted")
    w.done[r.key] = r.token


def told_completed(w: World, r: Request) -> None:
    """Who is told that he has completed the job has done so, though it may have been reopened since."""
    if w.done[r.key] != r.token and not w.size.reopens:
        raise Violation("once", f"token {r.token} is told that it has completed the job, and {w.done[r.key]} has")


def delivered(w: World, token: int) -> None:
    """On disk. A delivery has a token of its own, above all others, and takes the job from nobody whose time is not
    over."""
    q = w.queue
    assert q is not None
    granted(w, 0, token)
    held = w.fences[0].held
    if held is not None and (held.token != q.held or q.term is not Term.OVER):
        raise Violation("queue", f"token {token} is delivered, and {held.token} has its time before it")


def told(w: World, r: Request) -> None:
    """A worker is told of his job: nobody has been told of a higher token, and nothing lower has an effect any more."""
    q = w.queue
    assert q is not None
    if r.token < max(q.told, default=0):
        raise Violation("queue", f"token {r.token} is told of its job, and {max(q.told)} has been")
    q.told = tuple(sorted({*q.told, r.token}))
    w.told[0] = max(w.told[0], r.token)
    acknowledged(w, r)


def job(w: World) -> None:
    """On disk, job and fence agree at any moment. Where nothing is under way, a worker whose time is not over has his
    job."""
    q, fence = w.queue, w.fences[0]
    assert q is not None
    if q.job.token > fence.granted_token:
        raise Violation("queue", f"the job runs under token {q.job.token}, which has not been granted")
    if q.job.attempts > w.size.attempts:
        raise Violation("queue", f"the job is delivered {q.job.attempts} times, and {w.size.attempts} were its last")
    if (q.job.state is JobState.COMPLETED) != bool(fence.completed_token):
        raise Violation("once", f"the job is {q.job.state.value}, its key completed by {fence.completed_token or None}")
    held = fence.held
    if w.requests or held is None or not held.token == q.held == q.job.token or q.term is not Term.RUNNING:
        return
    if not q.ran_out and q.job.state is not JobState.RUNNING:
        raise Violation("queue", f"the job is {q.job.state.value}, and token {held.token} has its time before it")


def comes_back(w: World, delivered: bool) -> None:
    """Where nothing is under way, a job that is neither done nor dead is delivered to the next worker who comes, at the
    latest when the time of the one before is over."""
    q = w.queue
    assert q is not None
    if not delivered and q.job.state not in (JobState.COMPLETED, JobState.DEAD):
        raise Violation(
            "queue", f"the job is {q.job.state.value} under token {q.job.token}, and is never delivered again"
        )


def rebuilt(w: World) -> None:
    """G0: from now on the floors are what the objects tell, and nothing lower is on its way: all guarantees hold."""
    w.lost = False
    for _, key, token, _ in w.objects:
        if token:
            w.known[key] = max(w.known[key], token)
            w.acknowledged[key] = max(w.acknowledged[key], token)
    for f in w.flights():
        f.earlier = False
    floors(w)


def acknowledged(w: World, r: Request) -> None:
    """G2: a write is answered, or a token granted: from now on nothing lower takes effect."""
    w.acknowledged[r.key] = max(w.acknowledged[r.key], r.token)


def not_applied(w: World, r: Request) -> None:
    """G5: the client is told that nothing of this request was or can be applied."""
    if r.took:
        raise Violation("G5", f"a {r.op.name} of token {r.token} has taken effect and is answered NotApplied")
    if r.flight is not None:
        r.flight.denied = True
