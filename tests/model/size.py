"""How large a world is: who writes what, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Op(IntEnum):
    """What a request asks for."""

    PUT = 0
    """A PUT whose body is at hand."""
    STREAM = 1
    """A PUT whose body streams, its tail withheld."""
    DELETE = 2
    COPY = 3
    CREATE = 4
    COMPLETE = 5
    GRANT = 6
    """A lease, a `check`, a `raise`: raises the floor and writes nothing."""
    SEAL = 7
    LEASE = 8
    """A lease of the gateway's own: whoever held the key may just have run out."""
    FINISH = 9
    """The completion of the job."""
    RECEIVE = 10
    """A worker asks for the job of the queue."""
    EXTEND = 11
    """He still works on it."""
    RELEASE = 12
    """He gives it back."""
    FAIL = 13
    """He has failed."""
    REOPEN = 14
    """An operator has a job done again that is done or dead."""
    LAPSE = 15
    """The service's own: a delivery has ended that nobody has given up."""
    FIND_OUT = 16
    """The service's own: what has become of the job at a disk that failed."""


@dataclass(frozen=True)
class Size:
    """What may happen in a world; each number is a budget, spent in any order."""

    name: str
    ops: tuple[Op, ...]
    tokens: tuple[int, ...] = (1, 2)
    writes: int = 3
    """Requests of `ops`."""
    deletes: int = 0
    """DELETEs beside `writes`."""
    creates: int = 0
    """Uploads beside `writes`."""
    completes: int = 2
    """How many Completes the client of each upload sends."""
    grants: int = 0
    """Requests of GRANT, with any of the tokens."""
    seals: int = 0
    leases: int = 0
    """Leases of the gateway's own."""
    finishes: int = 0
    """Completions of the job, by any of the tokens."""
    receives: int = 0
    """Where there are any, the first key names a job that waits in a queue, and tokens come from its leases alone."""
    extends: int = 0
    ends: int = 0
    """Deliveries that their workers release or fail."""
    reopens: int = 0
    attempts: int = 2
    """After so many the job is dead."""
    retries: int = 0
    """How often a client sends again after a 503 or a broken connection."""
    faults: int = 0
    """Lost answers, 500s and 403s of the upstream; in worlds with a queue also decisions on its job at which the disk
    fails, having decided or not."""
    crashes: int = 0
    stops: int = 0
    losses: int = 0
    """Crashes that take the database along."""
    recorded: bool = False
    """The bucket bears a record: with a new database nothing fenced is served there until it has been rebuilt."""
    objects: int = 1
    keys: int = 1
    """Two: no rule names the objects' key, and writes name either."""
    rekey: bool = True
    """Objects may move from key to key."""
    equal_bytes: bool = False
    """Bodies may equal bytes that are about; otherwise each write brings its own."""
    honoured: bool = True
    """The upstream honours conditions on PUT, Copy and DELETE."""
    bounded: bool = True
    """What is sent lands within the settle time-out or never; else at any time (G3 is then what holds)."""
    settle_ticks: int = 1
    settle_assembly_ticks: int = 2
