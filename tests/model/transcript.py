"""A counterexample as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import steps
from tests.model.admission import CONTROL
from tests.model.explore import Found, replay
from tests.model.guarantees import Violation
from tests.model.size import Op
from tests.model.world import ABSENT, Flight, Head, Request, World

_WORDS = {
    "disk": "its raise is on disk",
    "learn": "the gate learns of the floor",
    "hand over": "its hand-over is complete",
    "give up": "it gives up waiting: 503",
    "uncontested": "no other key's send is on the object",
    "claim": "its claim of the object is on disk",
    "look": "the store evaluates its HEAD",
    "judge": "its HEAD comes back and is judged",
    "commit": "passes its commit point",
    "land": "takes effect at the store, if its condition holds",
    "answer": "is answered by the store",
    "403": "is refused by the store: 403",
    "500": "is answered 500 by the store",
    "reset": "loses its connection to the store",
    "bind": "its upload is bound",
    "seal disk": "its seal is on disk",
    "seal learn": "the gate learns of the seal; it is answered",
    "grant disk": "the disk grants it, or refuses",
    "grant learn": "the gate learns of the grant",
    "quiet": "nothing that has been sent can take effect any more",
    "open": "it gives up waiting: 503, and the gate opens again",
    "finish disk": "the completion is on disk, or refused",
    "finish learn": "the gate learns of the completion; it is answered",
    "finish in doubt": "the completion is on disk, which says that it has failed: 503",
    "finish failed": "the disk has failed: 503",
    "finish found out": "the gate learns what is on disk, and opens",
    "asked again": "it is given what it was given, if that is held",
    "confirm": "its hand-over is complete; the worker is told of his job",
    "leave": "its worker gives up waiting: 503",
    "job disk": "the disk has decided",
    "job disk, said to have failed": "the disk has decided, and says that it has failed",
    "job disk failed": "the disk has failed",
    "job learn": "the service learns of the decision",
    "look after": "whether its worker has been heard of meanwhile",
    "find": "the job is read",
    "found": "the service learns what the job is",
}
_OF_THE_JOB = {
    "receive": "a worker comes for the job",
    "receive again": "the worker repeats his call",
    "reopen": "an operator has the job done again",
    "run out": "the time of the lease is over",
    "unclaimed": "nobody asks any more for the lease that is pending",
    "due": "the job is due again",
}


def transcript(found: Found) -> str:
    """The steps of the way to the violation, what came of each, and the violation."""
    lines = []
    for number, (before, action, after) in enumerate(replay(found), 1):
        lines.append(f"{number:3} {told(before, action)}")
        lines += [f"      {change}" for change in changes(before, after)]
    return "\n".join(lines)


def told(w: World, action: steps.Action) -> str:
    """What happens, in a line."""
    name, *rest = action
    match name:
        case "arrive":
            op, obj, key, token, content = rest
            return _named(w, op, obj, key, token, content) + " arrives"
        case "ask":
            return f"somebody asks for the lease{f' of key {rest[0]}' if w.size.keys > 1 else ''}"
        case "extend" | "release" | "fail":
            return f"{name} by token {rest[0]}"
        case "rebuild":
            return "the bucket is rebuilt: the floors are what its objects tell"
        case "again":
            return _named(w, *w.again[rest[0]]) + " is sent again by its client"
        case "complete" | "revoke":
            u = w.uploads[rest[0]]
            what = "a Complete arrives" if name == "complete" else "revoked and aborted"
            return f"upload of {_letter(u.content)} to {_object(u.obj)} by {_token(w, u.key, u.token)}: {what}"
        case "land adrift" | "chase":
            what = "takes effect at the store, if its condition holds" if name == "land adrift" else "is looked for"
            return f"{_sent(w, w.adrift[rest[0]])}, {what}"
        case "flush":
            return "the completed floor reaches the disk"
        case "tick":
            return "time passes"
        case "crash":
            return "the gateway is killed and started again"
        case "stop":
            return "the gateway stops in good order and is started again"
        case "lose the database":
            return "the gateway is killed, its database lost, and started again"
    if name in _OF_THE_JOB:
        return _OF_THE_JOB[str(name)]
    return f"{_sent(w, w.requests[rest[0]])}: {_WORDS[str(name)]}"


def changes(before: World, after: World | Violation) -> Iterator[str]:
    """What came of it."""
    if isinstance(after, Violation):
        yield f"=> {after}"
        return
    for obj, (old, new) in enumerate(zip(before.objects, after.objects, strict=True)):
        if old != new:
            yield f"-> {_object(obj)} is {_head(after, new)}"
    for key, (old_gate, gate) in enumerate(zip(before.gates, after.gates, strict=True)):
        if (old_gate.floor, old_gate.completed_floor) != (gate.floor, gate.completed_floor):
            name = f" of key {key}" if after.size.keys > 1 else ""
            yield f"-> floor{name} {gate.floor}, completed {gate.completed_floor}"
    if before.queue is not None and after.queue is not None:
        old_job, job = before.queue.job, after.queue.job
        if (old_job.state, old_job.token, old_job.attempts) != (job.state, job.token, job.attempts):
            yield f"-> the job is {job.state.value}, token {job.token}, attempts {job.attempts}"
        if before.queue.told != after.queue.told:
            yield f"-> token {max(after.queue.told)} is told of the job"
    for key, (was, acknowledged) in enumerate(zip(before.acknowledged, after.acknowledged, strict=True)):
        if acknowledged > was:
            yield f"-> {_token(after, key, acknowledged)} is acknowledged"


def _sent(w: World, what: Flight | Request) -> str:
    return _named(w, what.op, what.obj, what.key, what.token, what.content)


def _named(w: World, op: Op, obj: int, key: int, token: int, content: int) -> str:
    body = "" if op is Op.DELETE or op in CONTROL else f" of {_letter(content)}"
    where = "" if op in CONTROL else f" to {_object(obj)}"
    return f"{op.name}{body}{where} by {_token(w, key, token)}"


def _token(w: World, key: int, token: int) -> str:
    name = f"token {token}" if token else "no token"
    return f"{name} of key {key}" if w.size.keys > 1 else name


def _head(w: World, head: Head) -> str:
    content, key, token, _ = head
    return "absent" if content == ABSENT else f"{_letter(content)}, by {_token(w, key, token)}"


def _letter(content: int) -> str:
    return "abcdefghij"[content] if content >= 0 else "nothing"


def _object(obj: int) -> str:
    return "XY"[obj]
