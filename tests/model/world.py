"""The state of a world, and its one form for the explorer.

A `World` is the gateway's process with its real gates, its database, the store behind it with what is under way to it,
and what has been promised so far. `encode` and `decode` turn it into a tuple of numbers and back; `canonical` gives
one form to worlds that differ in names alone. Time is relative: whatever has a moment counts ticks from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from gateway.core import gate as core_gate
from gateway.core.keys import FencingKey, Token
from gateway.core.write import Phase
from gateway.stores.values import Fence, Grant
from tests.model import queue as job_queue
from tests.model.queue import Queue
from tests.model.size import Op, Size

KEYS = (FencingKey("job"), FencingKey("other"))
ABSENT, UNKNOWN, NONE = -1, -2, -3
"""In place of the number of an object's content: there is no object; nothing is known; no condition."""
Encoded = tuple[Any, ...]
Head = tuple[int, int, int, int]
"""What a HEAD tells of an object: content, key, token, nonce."""
NO_OBJECT: Head = (ABSENT, 0, 0, 0)
FORGOTTEN: Head = (UNKNOWN, 0, 0, 0)


BEARS_NONCE = (Op.PUT, Op.STREAM, Op.COPY)
TAKES_TURN = (Op.PUT, Op.COPY, Op.DELETE)


class NoChange(Exception):
    """Nothing has happened, or nothing that leads anywhere new."""


class Way(IntEnum):
    """What has become of a send at the upstream."""

    STAGED = 0
    UNDER_WAY = 1
    LANDED = 2
    FAILED = 3
    """Its condition did not hold, or its upload was gone."""
    NEVER = 4
    """It can land no more."""


class At(IntEnum):
    """Where in the service a request waits."""

    RAISING = 0
    """For the disk."""
    RAISED = 1
    """The floor is on disk, the gate does not know it yet."""
    HAND_OVER = 2
    UNCONTESTED = 3
    """For sends of another key on its object."""
    LOOKING = 4
    LOOKED = 5
    """The head is on its way back."""
    READY = 6
    """For its body, and its turn."""
    STAGED = 7
    """Streaming."""
    SENT = 8
    CREATING = 9
    SEALING = 10
    SEALED = 11
    CLAIMING = 12
    """For the disk to have it as the owner of its object."""
    GRANTING = 13
    """For the disk to grant a lease."""
    GRANTED = 14
    """It is on disk, the gate does not know it yet."""
    CLOSED = 15
    """The gate is closed to its token, for its completion; for what has been sent."""
    RECORDING = 16
    """For the disk to have the completion."""
    RECORDED = 17
    ASKING_AGAIN = 18
    """For what the disk knows of an earlier call."""
    CONFIRMING = 19
    """A delivery, for its hand-over."""
    RENEWING = 20
    """For its turn, and the disk to have the job run again."""
    RENEWED = 21
    GIVING = 22
    """For the disk to take the job back from its worker."""
    GIVEN = 23
    LAPSE_DUE = 24
    """For its turn."""
    LAPSING = 25
    """For the disk to take the job back."""
    LAPSED = 26
    REOPENING = 27
    REOPENED = 28
    FINDING = 29
    """For the job to be read."""
    FOUND = 30
    RECORDED_OR_NOT = 31
    """A completion, for the disk to tell; the gate is closed."""


class Why(IntEnum):
    """What a head is looked at for."""

    STATE = 0
    DELETE = 1
    MOVED = 2
    DOUBT = 3


@dataclass(slots=True, eq=False)
class Flight:
    """One send: the gateway's view of it and the upstream's."""

    op: Op
    obj: int
    key: int
    token: int
    content: int
    condition: int
    nonce: int
    send: core_gate.Send | None
    """The gate's; None once the process that sent it is gone."""
    way: Way = Way.STAGED
    lands_by: int = -1
    """The moment after which it lands no more; -1 while its connection is open."""
    denied: bool = False
    """Its client was told that nothing of it was or can be applied."""
    overtaken: bool = False
    """A higher token was known when it passed its commit point."""
    earlier: bool = False
    """Sent under a database that is lost."""
    superseded: bool = False
    """A write of another key on its object has been answered since it was sent."""


@dataclass(slots=True, eq=False)
class Request:
    """One request inside the gateway."""

    op: Op
    obj: int
    key: int
    token: int
    content: int
    at: At = At.READY
    why: Why = Why.STATE
    condition: int = NONE
    value: int = 0
    """What the disk answered to the raise."""
    looked: Head = NO_OBJECT
    nonce: int = 0
    """The upload's."""
    flight: Flight | None = None
    seen: bool = False
    """What it asks for has been visible since it came."""
    took: bool = False
    """One of its own sends has taken effect."""
    stale: bool = False
    """It was below the floor when it was admitted."""
    unissued: bool = False
    """When it came, somebody had been told of a lease of its key, and its token was above the floor."""
    answer: tuple[int, ...] = ()
    """What the disk has decided on the job."""


@dataclass(slots=True, eq=False)
class Upload:
    """A multipart upload: its binding, and its parts upstream."""

    obj: int
    key: int
    token: int
    content: int
    nonce: int
    completes: int
    """How many Completes its client still sends."""
    bound: bool = True
    """The database knows it, and it has not been completed."""
    completed: bool = False
    """The database knows that it was."""
    upstream: bool = True
    applied: bool = False
    finished: bool = False
    """A Complete has succeeded; the database is told when no other can land any more."""


@dataclass(slots=True, eq=False)
class World:
    """See the module."""

    size: Size
    writes: int
    grants: int
    seals: int
    retries: int
    faults: int
    crashes: int
    stops: int
    losses: int
    fences: list[Fence]
    """What the disk holds, for each key."""
    lazy: list[int]
    """Completed floors on their way to disk."""
    gates: list[core_gate.Gate]
    objects: list[Head]
    """What a reader sees."""
    memory: list[Head]
    """What the gateway remembers of each object, without nonces."""
    owners: list[int]
    """The key recorded as the owner of each object; -1 for none."""
    claimed: list[int]
    """The key that is about to be recorded, or is, as far as the process knows."""
    holder: list[int]
    """The key whose fenced write of each object was answered last (R9); -1 for none."""
    marked: list[tuple[int, int]]
    """Copies that the database knows to be under way: key and object."""
    bound: list[tuple[int, int]]
    """Uploads and copies that an earlier run had open: key and object."""
    known: list[int]
    """The highest floor that each gate has ever acted upon (G0, G1)."""
    acknowledged: list[int]
    """The highest token that was told that it holds the key (G2)."""
    sealed: list[int]
    """The highest token whose client was told that it is sealed (R3)."""
    issued: list[int]
    """The highest token of each key that a lease has on disk, whatever became of that disk."""
    told: list[int]
    """The highest token of a lease that somebody was told of (R10)."""
    done: list[int]
    """The token that has completed the job, on disk; 0 for none."""
    queue: Queue | None = None
    leases: int = 0
    finishes: int = 0
    refused: bool = False
    """The database is new, and the bucket has not been rebuilt."""
    rebuilds_at: int = 0
    """The rebuild has waited until then, at the earliest."""
    generation: int = 0
    lost: bool = False
    """The database has been lost."""
    requests: list[Request] = field(default_factory=list)
    adrift: list[Flight] = field(default_factory=list)
    """Sends whose request has ended."""
    uploads: list[Upload] = field(default_factory=list)
    settles: tuple[int, int] = (0, 0)
    """When nothing that an earlier run sent can land any more: without Completes and copies, and with them."""
    again: list[tuple[Op, int, int, int, int]] = field(default_factory=list)
    """What clients may send again."""
    now: int = 0

    def flights(self) -> list[Flight]:
        """All sends, whoever waits for them."""
        return [r.flight for r in self.requests if r.flight is not None] + self.adrift


def first(size: Size) -> World:
    """The world before anything has happened."""
    keys, objects = range(size.keys), range(size.objects)
    return World(
        size, size.writes, size.grants, size.seals, size.retries, size.faults, size.crashes, size.stops, size.losses,
        fences=[Fence(KEYS[k]) for k in keys],
        lazy=[0 for _ in keys],
        gates=[core_gate.Gate(KEYS[k]) for k in keys],
        objects=[NO_OBJECT for _ in objects],
        memory=[FORGOTTEN for _ in objects],
        owners=[-1 for _ in objects],
        claimed=[-1 for _ in objects],
        holder=[-1 for _ in objects],
        marked=[],
        bound=[],
        known=[0 for _ in keys],
        acknowledged=[0 for _ in keys],
        sealed=[0 for _ in keys],
        issued=[0 for _ in keys],
        told=[0 for _ in keys],
        done=[0 for _ in keys],
        queue=job_queue.first(size),
        leases=size.leases,
        finishes=size.finishes,
    )  # fmt: skip


def settle_ticks(size: Size, op: Op) -> int:
    """The operation's settle time-out."""
    return size.settle_assembly_ticks if op in (Op.COMPLETE, Op.COPY) else size.settle_ticks


# --- to numbers and back


def encode(w: World) -> Encoded:
    """The world as numbers."""
    return (
        (w.writes, w.grants, w.seals, w.retries, w.faults, w.crashes, w.stops, w.losses, w.lost,
         *(max(0, at - w.now) for at in w.settles),
         w.leases, w.finishes, w.refused, max(0, w.rebuilds_at - w.now) if w.refused else 0, w.generation),
        tuple(
            (f.floor, f.completed_floor, f.sealed_token, lazy, g.floor, g.completed_floor, g.sealed_token,
             max(0, int(g.unsettled_until - w.now)) if g.unsettled_until > w.now else 0, known, acked, sealed,
             f.granted_token, f.completed_token, g.granted_token, g._closed_to or 0, issued, told, done)
            for f, lazy, g, known, acked, sealed, issued, told, done in zip(
                w.fences, w.lazy, w.gates, w.known, w.acknowledged, w.sealed, w.issued, w.told, w.done, strict=True
            )
        ),
        tuple(w.objects),
        tuple(w.memory),
        tuple(zip(w.owners, w.claimed, w.holder, strict=True)),
        tuple(_request(r, w.now) for r in w.requests),
        tuple(_flight(f, w.now) for f in w.adrift),
        tuple((u.obj, u.key, u.token, u.content, u.nonce, u.completes, u.bound, u.completed, u.upstream, u.applied,
               u.finished)
              for u in w.uploads),
        tuple((int(a[0]), *a[1:]) for a in w.again),
        tuple(w.marked),
        tuple(w.bound),
        job_queue.encode(w.queue),
    )  # fmt: skip


def _flight(f: Flight | None, now: int) -> Encoded:
    if f is None:
        return ()
    phase, settles = (0, math.inf) if f.send is None else (int(f.send.phase), f.send.settles_at)
    return (
        int(f.op), f.obj, f.key, f.token, f.content, f.condition, f.nonce, phase,
        int(settles) - now if phase == Phase.IN_DOUBT else -1,
        int(f.way), f.lands_by - now if f.lands_by >= 0 else -1, f.denied, f.overtaken, f.earlier, f.superseded,
    )  # fmt: skip


def _request(r: Request, now: int) -> Encoded:
    return (
        int(r.op), r.obj, r.key, r.token, r.content, int(r.at), int(r.why), r.condition, r.value, r.looked, r.nonce,
        _flight(r.flight, now), r.seen, r.took, r.stale, r.unissued, r.answer,
    )  # fmt: skip


def decode(size: Size, state: Encoded) -> World:
    """The world that `encode` wrote, with gates of the product's own."""
    budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue = state
    world = World(
        size,
        writes=budgets[0], grants=budgets[1], seals=budgets[2], retries=budgets[3], faults=budgets[4],
        crashes=budgets[5], stops=budgets[6], losses=budgets[7],
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
        leases=budgets[11], finishes=budgets[12], refused=budgets[13], rebuilds_at=budgets[14], generation=budgets[15],
        lost=budgets[8], settles=budgets[9:11],
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


# --- one form for worlds that differ in names alone


def canonical(size: Size, state: Encoded) -> Encoded:
    """The same for all worlds that differ only in the numbers of contents and nonces, in the order of what stands side
    by side, or (two objects) in which object is which."""
    form = _named(state, _SAME)
    return min(form, _named(state, _SWAPPED)) if size.objects == 2 else form


_SAME, _SWAPPED = (0, 1), (1, 0)


def _named(state: Encoded, swap: tuple[int, int]) -> Encoded:
    budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue = state
    if swap is _SWAPPED:
        objects, memory, owners = objects[::-1], memory[::-1], owners[::-1]
    contents: dict[int, int] = {ABSENT: ABSENT, UNKNOWN: UNKNOWN, NONE: NONE}
    nonces: dict[int, int] = {0: 0}
    held = {f[6] for f in adrift} | {u[4] for u in uploads}
    for r in requests:
        held.add(r[10])
        if r[11]:
            held.add(r[11][6])

    def content(number: int) -> int:
        return contents.setdefault(number, len(contents))

    def nonce(number: int) -> int:
        return nonces.setdefault(number, len(nonces)) if number in held else 0

    def flight(f: Encoded) -> Encoded:
        if not f:
            return f
        return (f[0], swap[f[1]], f[2], f[3], content(f[4]), content(f[5]), nonce(f[6]), *f[7:])

    objects = tuple((content(o[0]), o[1], o[2], nonce(o[3])) for o in objects)
    memory = tuple((content(m[0]), m[1], m[2], 0) for m in memory)
    uploads = tuple(sorted(
        (swap[u[0]], u[1], u[2], content(u[3]), nonce(u[4]), *u[5:]) for u in sorted(uploads, key=_upload_order)
    ))  # fmt: skip
    adrift = tuple(sorted(flight(f) for f in sorted(adrift, key=_flight_order)))
    requests = tuple(sorted(
        (
            r[0], swap[r[1]], r[2], r[3], content(r[4]), r[5], r[6], content(r[7]), r[8],
            (content(r[9][0]), r[9][1], r[9][2], nonce(r[9][3])), nonce(r[10]), flight(r[11]), *r[12:],
        )
        for r in sorted(requests, key=_request_order)
    ))  # fmt: skip
    again = tuple(sorted((a[0], swap[a[1]], a[2], a[3], content(a[4])) for a in sorted(again)))
    marked = tuple(sorted((m[0], swap[m[1]]) for m in marked))
    bound = tuple(sorted((b[0], swap[b[1]]) for b in bound))
    return budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue


def _flight_order(f: Encoded) -> Encoded:
    return (f[0], f[2], f[3], f[7:]) if f else f


def _request_order(r: Encoded) -> Encoded:
    return (r[0], r[2], r[3], r[5], r[6], r[8], r[12:], _flight_order(r[11]))


def _upload_order(u: Encoded) -> Encoded:
    return (u[1], u[2], u[5:])
