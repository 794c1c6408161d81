"""Bad histories: each breaks one guarantee, and the lines that prove it are named."""

from __future__ import annotations

import pytest

from tests.checker.history import Answer, Line
from tests.checker.judge import judge
from tests.checker.lines import (
    CONDITIONAL,
    OTHER,
    OUT,
    control,
    delete,
    delete_version,
    effect,
    fault,
    floor,
    history,
    not_applied,
    ok,
    put,
    ruled,
    seen,
    sent,
    stale,
    unknown,
)

Case = tuple[str, list[Line], set[int]]
COPY = {"operation": "CopyObject"}
COMPLETE = {"operation": "CompleteMultipartUpload"}

BAD: dict[str, Case] = {
    # --- G0
    "a floor is read lower than before": ("G0", history(floor(1, 34), floor(2, 33)), {2, 3}),
    "a refusal tells a lower floor than a success has proved": (
        "G0",
        history(put(1, "b", 34), ok(2, "b"), put(3, "a", 33), stale(4, "a", 33)),
        {2, 3, 5},
    ),
    "a token is granted twice": (
        "G0",
        history(control(1, "l1", "grant"), ok(2, "l1", token=7), control(3, "l2", "grant"), ok(4, "l2", token=7)),
        {2, 3, 5},
    ),
    "a lower token is granted after a crash": (
        "G0",
        history(
            control(1, "l1", "grant"),
            ok(2, "l1", token=7),
            fault(2.5, "crash"),
            control(3, "l2", "grant"),
            ok(4, "l2", token=5),
        ),
        {2, 3, 6},
    ),
    "a new database sends what is fenced before it has rebuilt": (
        "G0",
        history(ruled(0, "one"), put(1, "b", 34), sent(1, "b", "one"), put(2, "a", 33), sent(3, "a", "two")),
        {2, 5, 6},
    ),
    "one that rebuilds sends without a token": (
        "G0",
        history(ruled(0, "one"), ruled(1, ""), put(2, "a", 0), sent(3, "a", "two")),
        {3, 4, 5},
    ),
    "a gateway goes on longer than its lapse after its bucket was taken": (
        "G0",
        history(ruled(0, "one"), ruled(10, "two"), put(70, "a", 34), sent(71, "a", "one"), lapse_s=60),
        {3, 4, 5},
    ),
    "a rebuild misses the token of an object": (
        "G0",
        history(
            put(1, "b", 34),
            effect(2, "b"),
            fault(3, "database-lost", "G0", "G1", "G2"),
            ruled(3, ""),
            ruled(4, "two"),
            put(5, "a", 32),
            stale(6, "a", 33),
        ),
        {6, 8},
    ),
    # --- G1
    "a rebuilt database takes a token that an object knows to be stale": (
        "G1",
        history(
            ruled(0, "one"),
            put(1, "b", 34),
            effect(2, "b"),
            fault(3, "database-lost", "G0", "G1", "G2"),
            ruled(4, "two"),
            put(5, "a", 33, object=OTHER),
            ok(6, "a"),
        ),
        {6, 7, 8},
    ),
    "a stale write is answered 2xx": (
        "G1",
        history(put(1, "b", 34), ok(2, "b"), put(3, "a", 33), ok(4, "a")),
        {2, 3, 4, 5},
    ),
    "a stale write is seen": (
        "G1",
        history(put(1, "b", 34), ok(2, "b"), put(3, "a", 33), seen(5, "b"), seen(6, "a")),
        {2, 3, 4, 5, 6},
    ),
    "a stale write is sent": (
        "G1",
        history(floor(1, 34), put(2, "a", 33), sent(3, "a"), stale(4, "a", 34)),
        {2, 3, 4},
    ),
    "a floor that is only pending has to be gone by as well": (
        "G1",
        history(put(1, "b", 34), not_applied(2, "b", floor=34), put(3, "a", 33), ok(4, "a")),
        {2, 3, 4, 5},
    ),
    "what has been overtaken passes its commit point": (
        "G1",
        history(put(1, "a", 33), put(2, "b", 34), not_applied(3, "b", floor=34), sent(4, "a")),
        {2, 3, 4, 5},
    ),
    "a write without a token passes a floor": (
        "G1",
        history(put(1, "b", 34), ok(2, "b"), put(3, "a", 0), ok(4, "a")),
        {2, 3, 4, 5},
    ),
    "a sealed token writes": (
        "G1",
        history(control(1, "s", "seal", 33), ok(2, "s"), put(3, "a", 33), ok(4, "a")),
        {2, 3, 4, 5},
    ),
    "a stale token passes its check": (
        "G1",
        history(control(1, "c", "check", 34), ok(2, "c"), control(3, "d", "check", 33), ok(4, "d")),
        {2, 3, 4, 5},
    ),
    "a stale write reaches another object of the key": (
        "G1",
        history(put(1, "b", 34), ok(2, "b"), put(3, "a", 33, object=OTHER), ok(4, "a")),
        {2, 3, 4, 5},
    ),
    # --- G2
    "a lost write lands after a higher one, seen by readers": (
        "G2",
        history(put(1, "a", 33), unknown(2, "a"), put(3, "b", 34), ok(4, "b"), seen(5, "b"), seen(6, "a")),
        {2, 4, 5, 6, 7},
    ),
    "a lost write lands after a higher one, known from answers and one reader": (
        "G2",
        history(put(1, "a", 33), unknown(2, "a"), put(3, "b", 34), ok(4, "b"), seen(6, "a")),
        {2, 4, 5, 6},
    ),
    "a lost write lands over nothing after a check": (
        "G2",
        history(
            put(1, "a", 33), unknown(2, "a"), control(3, "c", "check", 34), ok(4, "c"), seen(5, None), seen(6, "a")
        ),
        {2, 4, 5, 6, 7},
    ),
    "a write that was never answered lands after a grant": (
        "G2",
        history(put(1, "a", 33), control(2, "l", "grant"), ok(3, "l", token=34), seen(4, None), seen(9, "a")),
        {2, 3, 4, 5, 6},
    ),
    "a lost write of another object lands after the token's first success": (
        "G2",
        history(put(1, "a", 33, object=OTHER), put(2, "b", 34), ok(3, "b"), seen(4, None, OTHER), seen(5, "a", OTHER)),
        {2, 3, 4, 5, 6},
    ),
    "a lost delete lands after a higher token's write": (
        "G2",
        history(delete(1, "d", 33), unknown(2, "d"), put(3, "b", 34), ok(4, "b"), seen(5, None)),
        {2, 4, 5, 6},
    ),
    "every delete that may have been it is stale": (
        "G2",
        history(delete(1, "d", 33), unknown(2, "d"), delete(1, "e", 32), put(3, "b", 34), ok(4, "b"), seen(5, None)),
        {2, 5, 6, 7},
    ),
    "a write without a token lands after the first token": (
        "G2",
        history(put(1, "a", 0), put(2, "b", 1), ok(3, "b"), seen(4, "b"), seen(5, "a")),
        {2, 3, 4, 5, 6},
    ),
    "a write lands after its token's job has been completed": (
        "G2",
        history(put(1, "a", 33), control(2, "c", "complete", 33), ok(3, "c"), seen(4, None), seen(5, "a")),
        {2, 3, 4, 5, 6},
    ),
    "an onlooker sees it at once, whatever the object was before": (
        "G2",
        history(put(1, "a", 33), control(2, "c", "check", 34), ok(3, "c"), effect(4, "a")),
        {2, 3, 4, 5},
    ),
    "an effect in the very moment after the acknowledgement": (
        "G2",
        history(put(1, "a", 33), control(2, "c", "check", 34), ok(3, "c"), effect(3, "a")),
        {2, 3, 4, 5},
    ),
    "a crash excuses nothing": (
        "G2",
        history(put(1, "a", 33), fault(1.5, "crash"), put(2, "b", 34), ok(3, "b"), seen(4, "b"), seen(5, "a")),
        {2, 4, 5, 6, 7},
    ),
    # --- G3 and G4
    "what was sent before an operator's settle replaces a higher token's": (
        "G3",
        history(
            put(1, "a", 33),
            unknown(2, "a"),
            fault(3, "settle", "G2"),
            put(4, "b", 34),
            ok(5, "b"),
            seen(6, "a"),
            conditional=CONDITIONAL,
        ),
        {2, 5, 6, 7},
    ),
    "the same, as an onlooker sees it": (
        "G3",
        history(
            put(1, "a", 33),
            fault(2, "settle", "G2"),
            put(3, "b", 34),
            effect(4, "b"),
            ok(5, "b"),
            effect(6, "a"),
            conditional=CONDITIONAL,
        ),
        {2, 4, 5, 7},
    ),
    "a stale delete under a condition": (
        "G3",
        history(
            put(0, "z", 33),
            ok(0.5, "z"),
            delete(1, "d", 33),
            fault(2, "settle", "G2"),
            put(3, "b", 34),
            effect(4, "b"),
            ok(5, "b"),
            effect(6, "d", None),
            conditional=CONDITIONAL,
        ),
        {4, 6, 7, 9},
    ),
    "a stale delete of a version takes effect": (
        "G2",
        history(delete_version(1, "d", 33), put(2, "b", 34), effect(3, "b"), ok(4, "b"), effect(5, "d", None)),
        {2, 3, 5, 6},
    ),
    "what a deleted version shows again is replaced by what was sent before it": (
        "G3",
        history(
            put(1, "a", 33),
            fault(2, "settle", "G2"),
            put(3, "b", 34),
            effect(4, "b"),
            put(5, "c", 35),
            effect(6, "c"),
            delete_version(7, "d", 35),
            effect(8, "d", "b"),
            effect(9, "a"),
            conditional=CONDITIONAL,
        ),
        {2, 4, 9, 10},
    ),
    "with a new database a stale PUT replaces a higher token's object": (
        "G4",
        history(
            put(1, "b", 34),
            effect(2, "b"),
            ok(3, "b"),
            fault(4, "database-lost", "G0", "G1", "G2"),
            put(5, "a", 33),
            effect(6, "a"),
            conditional=CONDITIONAL,
        ),
        {2, 3, 6, 7},
    ),
    "the same, as readers see it": (
        "G4",
        history(
            put(1, "b", 34),
            ok(3, "b"),
            seen(3.5, "b"),
            fault(4, "database-lost", "G0", "G1", "G2"),
            put(5, "a", 33),
            ok(6, "a"),
            conditional=CONDITIONAL,
        ),
        {2, 4, 6, 7},
    ),
    # --- G5
    "a success is never visible": (
        "G5",
        history(put(1, "a", 33), ok(2, "a"), seen(3, None)),
        {2, 3, 4},
    ),
    "a success is never visible, as the onlooker knows": (
        "G5",
        history(put(1, "a", 33), ok(2, "a"), onlooker=True),
        {2, 3},
    ),
    "a success vanishes": (
        "G5",
        history(put(1, "a", 33), ok(2, "a"), seen(3, "a"), seen(4, None)),
        {4, 5},
    ),
    "an old value comes back": (
        "G5",
        history(put(1, "a", 33), ok(2, "a"), put(3, "b", 33), ok(4, "b"), seen(5, "a")),
        {4, 5, 6},
    ),
    "bytes that nobody wrote": ("G5", history(put(1, "a", 33), ok(2, "a"), seen(3, "half of a")), {2, 3, 4}),
    "other bytes than were sent": (
        "G5",
        history(put(1, "a", 33), effect(2, "a", "half of a")),
        {2, 3},
    ),
    "a write that is said not to be applied is seen": (
        "G5",
        history(put(1, "a", 33), not_applied(2, "a"), seen(3, None), seen(4, "a")),
        {2, 3, 4, 5},
    ),
    "a write that is said not to be applied has been seen before the answer": (
        "G5",
        history(put(1, "a", 33), seen(2, "a"), stale(3, "a", 34)),
        {2, 3, 4},
    ),
    "the store's own refusal, and it is seen": (
        "G5",
        history(put(1, "a", 33), Answer("a", (2, 2), 403), seen(4, "a")),
        {2, 3, 4},
    ),
    "one attempt's NotApplied, while the onlooker knows that it was this one": (
        "G5",
        history(put(1, "a1", 33, "a"), not_applied(2, "a1"), put(3, "a2", 33, "a"), effect(4, "a1", "a")),
        {2, 3, 5},
    ),
    "a Complete answers success although its object was never there": (
        "G5",
        history(put(1, "c", 33, **COMPLETE), ok(2, "c"), onlooker=True),
        {2, 3},
    ),
    "a delete answers success and the object stays": (
        "G5",
        history(put(1, "a", 33), effect(1, "a"), ok(2, "a"), delete(3, "d", 33), ok(4, "d"), onlooker=True),
        {5, 6},
    ),
    # --- R10
    "a database that has taken over grants a token again": (
        "R10",
        history(
            ruled(0, "one"),
            control(1, "l1", "grant"),
            ok(2, "l1", token=7, by="one"),
            fault(3, "database-lost", "G0", "G1", "G2"),
            ruled(3, ""),
            ruled(4, "two"),
            control(5, "l2", "grant"),
            ok(6, "l2", token=7, by="two"),
        ),
        {4, 8, 9},
    ),
    # --- once
    "two tokens complete a job": (
        "once",
        history(
            control(1, "c1", "complete", 33),
            ok(2, "c1"),
            control(3, "c2", "complete", 34),
            ok(4, "c2"),
        ),
        {2, 3, 4, 5},
    ),
    "a completed job is leased": (
        "once",
        history(control(1, "c", "complete", 33), ok(2, "c"), control(3, "l", "grant"), ok(4, "l", token=34)),
        {2, 3, 4, 5},
    ),
    "a completed job is leased before it is reopened": (
        "once",
        history(
            control(1, "c", "complete", 33),
            ok(2, "c"),
            control(3, "l", "grant"),
            ok(4, "l", token=34),
            control(5, "o", "reopen"),
            ok(6, "o"),
        ),
        {2, 3, 4, 5},
    ),
    # --- R9
    "another key's send lands after the object's new owner has written": (
        "R9",
        history(put(1, "a", 5, key="k"), sent(2, "a"), put(3, "b", 1), sent(3.5, "b"), effect(4, "b"), effect(6, "a")),
        {2, 3, 4, 6, 7},
    ),
    "a send of nobody lands after the object's new owner has written": (
        "R9",
        history(
            put(1, "a", 0, key="object:" + OUT),
            sent(2, "a"),
            put(3, "b", 1),
            effect(4, "b"),
            ok(5, "b"),
            effect(6, "a"),
        ),
        {2, 3, 4, 5, 7},
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_is_found(name: str) -> None:
    """The guarantee that is broken is named, with the very lines that prove it."""
    guarantee, lines, proof = BAD[name]
    violations = judge(lines)
    assert (guarantee, proof) in [(v.guarantee, set(v.lines)) for v in violations], [
        (str(v), v.lines) for v in violations
    ]


@pytest.mark.parametrize("name", BAD)
def test_the_order_of_lines_does_not_matter(name: str) -> None:
    """Processes write histories of their own; laid together in any order they prove the same by their times."""
    guarantee, lines, _ = BAD[name]
    if "very moment" in name:
        return
    assert guarantee in {v.guarantee for v in judge([lines[0], *reversed(lines[1:])])}
