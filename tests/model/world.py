"""The state of a world: the gateway's process with its real gates, its database, the store behind it with what is under
way to it, and what has been promised so far.

`encoding.py` turns it into a tuple of numbers and back, `canonical.py` gives one form to worlds that differ in names
alone. Time is relative there: whatever has a moment counts ticks from now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from gateway.core import gate as core_gate
from gateway.core.keys import FencingKey
from gateway.stores.values import Fence
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
    deletes: int
    creates: int
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
        size, size.writes, size.deletes, size.creates, size.grants,
        size.seals, size.retries, size.faults, size.crashes, size.stops, size.losses,
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
