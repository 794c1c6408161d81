"""The worlds that are explored: a few in every test run, all of them by `make model`."""

from __future__ import annotations

from typing import Any

from tests.model import systematic
from tests.model.size import Op, Size

PUT, STREAM, DELETE, COPY, CREATE = Op.PUT, Op.STREAM, Op.DELETE, Op.COPY, Op.CREATE


def a_job(name: str, *ops: Op, **budgets: Any) -> Size:
    """The job of a queue, received twice at most, unless it is said otherwise."""
    return Size(name, ops, **{"writes": 0, "receives": 2, **budgets})


BOUNDED = [
    Size("two streams, a fault and a crash", (STREAM,), writes=2, faults=1, crashes=1, honoured=False),
    Size("two conditional writes, a fault and a retry", (PUT, DELETE), writes=2, faults=1, retries=1, equal_bytes=True),
    Size("three writes of three tokens", (PUT,), writes=3, tokens=(1, 2, 3), equal_bytes=True),
    Size("two objects and a crash", (PUT,), writes=2, grants=1, objects=2, crashes=1),
    Size("an upload, two crashes", (CREATE,), writes=1, grants=1, crashes=2),
    Size("a lost database", (PUT, DELETE), writes=2, losses=1, faults=1),
    Size("late for ever", (PUT, DELETE), writes=2, faults=1, bounded=False, equal_bytes=True),
    Size("stops", (PUT,), writes=1, grants=1, faults=1, stops=2, honoured=False),
    Size("no token, then a token", (PUT, STREAM), writes=2, tokens=(0, 1), faults=1, crashes=1),
    Size("a seal", (STREAM,), writes=2, seals=1, crashes=1),
    Size("leases", (PUT,), writes=1, leases=2, crashes=1, honoured=False),
    Size("a lease and a completion", (STREAM,), writes=1, leases=1, finishes=1, tokens=(1,), crashes=1),
    Size("two completions", (PUT,), writes=0, leases=1, finishes=2, tokens=(1,), crashes=1),
    Size("a rebuilt bucket", (PUT,), writes=2, tokens=(1, 2), losses=1, recorded=True),
    Size("two keys, no rule", (PUT,), writes=2, tokens=(0, 1), keys=2, rekey=False, crashes=1),
    Size("two keys, rekey", (PUT, DELETE), writes=2, tokens=(1,), keys=2, crashes=1),
    a_job("a job, its worker's end and a crash", ends=1, crashes=1),
    a_job("a job that is extended, and a disk that fails", extends=1, faults=1),
    a_job("a job received three times", receives=3),
    a_job("a job that is completed, and a crash", finishes=1, crashes=1),
    a_job("a job that is completed, and a disk that fails", finishes=1, faults=1),
    a_job("a job done again", finishes=1, reopens=1),
    a_job("a job and a seal", seals=1),
    a_job("a job and a lease beside the queue", leases=1),
    a_job("a job and a write", PUT, writes=1),
    *systematic.worlds(1),
]
"""Small enough for every test run."""

_ALL: dict[str, Any] = {"grants": 1, "faults": 1, "crashes": 1}
PICKED = [
    Size("two writes", (PUT, STREAM), writes=2, honoured=False, **_ALL),
    Size("two writes or streams on two objects", (PUT, STREAM), writes=2, objects=2, **_ALL),
    Size("an upload, two crashes and a fault", (CREATE,), writes=1, grants=1, crashes=2, faults=1),
    Size("two writes and stops", (PUT,), writes=2, grants=1, faults=1, stops=2, honoured=False),
    Size("seals", (PUT, STREAM), writes=2, seals=1, crashes=1, faults=1),
    Size("three writes", (PUT, DELETE), writes=3, faults=1, crashes=1),
    Size("three writes, unconditional", (PUT, DELETE), writes=3, faults=1, crashes=1, honoured=False),
    Size("three writes and a retry", (PUT,), writes=3, retries=1, **_ALL),
    Size("three streams", (STREAM,), writes=3, **_ALL),
    Size("three writes with equal bytes", (PUT, DELETE), writes=3, faults=1, equal_bytes=True),
    Size("three writes, three tokens", (PUT,), writes=3, tokens=(1, 2, 3), **_ALL),
    Size("copies", (COPY, DELETE), writes=2, **_ALL),
    Size("an upload and a write", (CREATE, PUT), writes=2, **_ALL),
    Size("two uploads", (CREATE,), writes=2, **_ALL),
    Size("three writes and a lost database", (PUT, DELETE), writes=3, losses=1, faults=1),
    Size("a lost database with equal bytes", (PUT, DELETE), writes=3, losses=1, equal_bytes=True),
    Size("streams and a lost database", (PUT, STREAM), writes=2, losses=1, crashes=1, faults=1, retries=1),
    Size("three late for ever", (PUT, DELETE), writes=3, faults=1, bounded=False),
    Size("stops and crashes", (PUT, STREAM), writes=2, stops=2, **_ALL),
    Size("two keys and an upload", (PUT, CREATE), writes=2, tokens=(0, 1), keys=2, rekey=False, crashes=1),
    Size("two keys, rekey and an upload", (PUT, CREATE), writes=2, tokens=(1,), keys=2, crashes=1),
    Size("two keys and copies", (COPY,), writes=2, tokens=(1,), keys=2, crashes=1, faults=1),
    Size("two keys and a lost database", (PUT,), writes=2, tokens=(1, 2), keys=2, rekey=False, losses=1, faults=1),
    Size("leases and faults", (PUT,), writes=1, leases=2, faults=1, crashes=1, honoured=False),
    Size("a lease, a completion and a fault", (STREAM,), writes=1, leases=1, finishes=1, faults=1, crashes=1),
    Size("a completion, then another", (PUT,), writes=1, grants=1, leases=1, finishes=2, honoured=False),
    Size("a rebuilt bucket and leases", (PUT,), writes=2, losses=1, recorded=True, faults=1, leases=1),
    Size("leases and streams", (STREAM,), writes=2, leases=2, tokens=(1, 2), crashes=1, faults=1),
    Size("completions", (PUT, STREAM), writes=2, leases=2, finishes=2, crashes=1),
    Size(
        "completions and faults", (PUT,), writes=2, leases=1, finishes=1, seals=1, crashes=1, faults=1, honoured=False
    ),
    Size("a rebuilt bucket with deletes", (PUT, DELETE), writes=3, losses=1, recorded=True, faults=1),
    Size("a rebuilt bucket, an upload and a crash", (CREATE, PUT), writes=2, losses=1, recorded=True, crashes=1),
    Size("two rebuilt buckets' worth", (PUT,), writes=2, tokens=(1, 2), objects=2, losses=2, recorded=True, leases=1),
    Size("a rebuilt bucket of two keys", (PUT,), writes=2, tokens=(0, 1), keys=2, rekey=False, losses=1, recorded=True),
    a_job("a job, extended and given up, with a crash", extends=1, ends=1, crashes=1),
    a_job("a job, extended and given up, with a disk that fails", extends=1, ends=1, faults=1),
    a_job("a job received three times, extended and given up", receives=3, extends=1, ends=1),
    a_job("a job received three times, with a crash and a disk that fails", receives=3, crashes=1, faults=1),
    a_job("a job whose disk fails twice", ends=1, faults=2),
    a_job("a job completed twice, with a crash", finishes=2, crashes=1),
    a_job("a job completed, extended, with a disk that fails", finishes=1, extends=1, faults=1),
    a_job("a job done again, with a crash", finishes=1, reopens=1, crashes=1),
    a_job("a job that dies and is tried again", ends=1, reopens=1, attempts=1, faults=1),
    a_job("a job and a seal, given up, with a crash", seals=1, ends=1, crashes=1),
    a_job("a job, a lease beside the queue and a crash", leases=1, ends=1, crashes=1),
    a_job("a job, a lease beside the queue and a disk that fails", leases=1, faults=1),
    a_job("a job and a stream", STREAM, writes=1, ends=1, crashes=1),
    a_job("a job, a write and its completion", PUT, writes=1, finishes=1, crashes=1),
    a_job("a job, two writes and a fault", PUT, writes=2, faults=1, honoured=False),
]
"""What the systematic ones lack: other kinds of writes, leases, completions, jobs, stops, rebuilt buckets, two keys."""

PAIRS = [size for size in systematic.worlds(2) if size not in BOUNDED]
FULL = [*BOUNDED, *PAIRS, *PICKED]
"""All that `make model` looks at; which of them are too large to be looked at whole, docs/model.md tells."""
