"""What the process does about the job of its queue, as `gateway/service/jobs.py` and `holdings.py` do it."""

from __future__ import annotations

from gateway.core.job import JobState
from gateway.stores import job_rules
from tests.model.queue import Queue, Term
from tests.model.size import Op
from tests.model.world import ABSENT, At, NoChange, Request, World

LAPSED = 1
"""In the value of a LAPSE or SEAL: nobody has been told of the delivery."""
DECIDING = (At.GRANTING, At.GRANTED)
TURNS = (At.GIVING, At.GIVEN, At.RENEWED, At.LAPSING, At.LAPSED, At.FOUND)
"""Of these there is one at a time."""


def queue(w: World) -> Queue:
    assert w.queue is not None
    return w.queue


def spawn(w: World, op: Op, token: int, at: At, value: int = 0) -> Request:
    """Something is under way, asked for by a client or by the service itself."""
    r = Request(op, 0, 0, token, ABSENT, at, value=value)
    w.requests.append(r)
    return r


def deciding(w: World) -> bool:
    """Whether the disk is being asked to grant the key."""
    return any(r.op in (Op.RECEIVE, Op.LEASE) and r.at in DECIDING for r in w.requests)


def take_turn(w: World) -> None:
    """One after another. Raises `NoChange`."""
    if any(r.at in TURNS for r in w.requests):
        raise NoChange


def ending(w: World, token: int) -> bool:
    """Whether the lease is just being given up by its holder, or given up for lost."""
    return any(
        r.token == token
        and (
            r.at in (At.GIVING, At.GIVEN)
            or (r.op is Op.FINISH and r.at in (At.RECORDING, At.RECORDED))
            or (r.op is Op.SEAL and r.value == LAPSED and r.at in (At.SEALING, At.SEALED))
        )
        for r in w.requests
    )


# --- the line of the key: who holds it


def free(w: World) -> int:
    """The token in whose place the key may be granted; 0 for none. Raises `NoChange` where somebody has it."""
    q = queue(w)
    if deciding(w) or q.term in (Term.PENDING, Term.RUNNING):
        raise NoChange
    return q.held


def hold(w: World, token: int, term: Term, *, ran_out: bool = False) -> None:
    """That lease is known from now on."""
    q = queue(w)
    q.held, q.term, q.ran_out = token, term, ran_out


def see(w: World) -> None:
    """What the disk knows of the lease; it has its full time before it."""
    q, held = queue(w), w.fences[0].held
    if held is None:
        hold(w, 0, Term.NOBODY)
    elif q.held != held.token:
        hold(w, held.token, Term.RUNNING, ran_out=True)


def catch_up(w: World) -> None:
    """The disk is read: the gate was behind where it had failed after it had done its part."""
    gate, fence = w.gates[0], w.fences[0]
    gate.granted(fence.granted_token)
    if (fence.floor, fence.sealed_token) != (gate.floor, gate.sealed_token):
        gate.raised(fence.floor, fence.sealed_token)
        overtaken(w)


def look_at_lease(w: World) -> None:
    """As `Leases.lease_of`. Raises `NoChange` while nobody can tell."""
    if deciding(w):
        raise NoChange
    if not queue(w).held:
        catch_up(w)
        if not w.fences[0].completed_token:
            see(w)


def own(w: World, token: int) -> None:
    """As `Holdings.owned`: raises `NoChange` where the token does not hold the key, or nobody can tell yet."""
    if deciding(w):
        raise NoChange
    if queue(w).held != token:
        held = w.fences[0].held
        if held is None or held.token != token:
            raise NoChange
        catch_up(w)
        see(w)


def overtaken(w: World) -> None:
    """A floor has risen, or its token has been sealed."""
    q = w.queue
    if q is None or not q.held or q.held == w.gates[0].floor != w.gates[0].sealed_token:
        return
    token = q.held
    hold(w, 0, Term.NOBODY)
    if not deciding(w) and not ending(w, token):
        ended(w, token)


def over(w: World, token: int) -> None:
    """A lease turns out to be lost at its own hand-over."""
    q = w.queue
    if q is not None and q.held == token:
        hold(w, 0, Term.NOBODY)
        ended(w, token)


def run_out(w: World) -> None:
    """The time of the lease is over."""
    q = queue(w)
    q.term, q.ran_out = Term.OVER, True
    ended(w, q.held)


def unclaimed(w: World) -> None:
    """Nobody asks any more for a lease that is pending: its token is sealed."""
    q = queue(w)
    asked = any(r.token == q.held and r.op in (Op.RECEIVE, Op.LEASE) for r in w.requests)
    if asked or ending(w, q.held):
        raise NoChange
    spawn(w, Op.SEAL, q.held, At.SEALING, LAPSED)


# --- the job


def ended(w: World, token: int, how: int = 0) -> None:
    """A lease has ended that its holder has not given up: so does the delivery, if it was one."""
    q = queue(w)
    if q.running == token:
        q.running = 0
        spawn(w, Op.LAPSE, token, At.LAPSE_DUE, how)


def forget(w: World, token: int) -> None:
    """That delivery is looked after no more."""
    q = queue(w)
    if q.running == token:
        q.running = 0


def returned(w: World, state: JobState) -> None:
    """The job waits, is delayed, or is dead."""
    q = queue(w)
    if state is JobState.WAITING:
        add(w)
    elif state is JobState.DELAYED:
        q.watched = True


def add(w: World) -> None:
    """To the line."""
    q = queue(w)
    if q.taken:
        q.back = True
    elif q.read:
        q.in_line = True


def decided(w: World) -> None:
    """What was taken from the line is delivered, or waited no more."""
    q = queue(w)
    q.taken = False
    if q.back:
        q.back = False
        add(w)


def put_back(w: World) -> None:
    """What was taken from the line waits on."""
    q = queue(w)
    q.taken = q.back = False
    add(w)


def doubt(w: World) -> None:
    """What is known of the line may be wrong."""
    q = queue(w)
    q.in_line = q.read = False


def unavailable(w: World) -> None:
    """The disk has failed: what it has decided is found out."""
    doubt(w)
    find_out(w)


def find_out(w: World) -> None:
    """What has become of the job."""
    spawn(w, Op.FIND_OUT, 0, At.FINDING)


def due(w: World) -> None:
    """The job's delay is over."""
    q = queue(w)
    change = job_rules.due(w.fences[0], q.job, q.job.available_at)
    assert change.job is not None
    q.job, q.watched = change.job, False
    add(w)


def start(w: World) -> None:
    """A process begins: what runs comes back when its time is over, or at once if it is held no more."""
    q = w.queue
    if q is None:
        return
    hold(w, 0, Term.NOBODY)
    q.in_line = q.taken = q.back = q.read = False
    q.running = 0
    q.watched = q.job.state is JobState.DELAYED
    if q.job.state is JobState.RUNNING:
        look_after(w, q.job.token)


def look_after(w: World, token: int) -> None:
    """The job runs under that token: it comes back when its lease ends."""
    q = queue(w)
    if token < q.running:
        return
    q.running = token
    look_at_lease(w)
    if q.held != token or q.term is Term.OVER:
        ended(w, token)
