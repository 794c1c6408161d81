"""Good histories: whatever an honest gateway and a faulty world can bring about raises no alarm."""

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

COMPLETE = {"operation": "CompleteMultipartUpload"}

GOOD: dict[str, list[Line]] = {
    "one after another": history(
        put(1, "a", 33), ok(2, "a"), put(3, "b", 34), ok(4, "b"), put(5, "c", 33), stale(6, "c", 34), seen(7, "b")
    ),
    "a lost answer lands late, before the hand-over is complete": history(
        put(1, "a", 33), unknown(2, "a"), put(3, "b", 34), not_applied(4, "b", floor=34), seen(5, None), seen(6, "a"),
        put(7, "b2", 34, "b"), ok(8, "b2"), seen(9, "b"),
    ),
    "a lost answer lands while the higher write is under way": history(
        put(1, "a", 33), unknown(2, "a"), put(3, "b", 34), seen(3.5, None), seen(4, "a"), ok(6, "b"), seen(7, "b")
    ),
    "it may have landed before the acknowledgement, for nobody looked": history(
        put(1, "a", 33), unknown(2, "a"), control(3, "c", "check", 34), ok(4, "c"), seen(5, "a")
    ),
    "a reader so slow that its look may be of before": history(
        put(1, "a", 33), ok(2, "a"), put(3, "b", 34), ok(4, "b"), seen((2.5, 6), "a"), seen(7, "b")
    ),
    "an answer so slow that the write may be of before": history(
        put(1, "a", 33), control(2, "c", "check", 34), ok(3, "c"), ok(9, "a"), seen(10, "a")
    ),
    "clocks that overlap prove no order": history(
        put((1, 2), "a", 33), unknown((2, 3), "a"), control((3, 4), "c", "check", 34), ok((4, 6), "c"),
        seen((5, 5.5), None), seen((5.6, 7), "a"),
    ),
    "a call begins while the token is just being acknowledged": history(
        put(1, "b", 34), put((1.5, 2.5), "a", 33), ok((2, 2.2), "b"), sent(1.9, "a"), unknown(3, "a")
    ),
    "unknown stays possible for ever": history(
        put(1, "a", 33), unknown(2, "a"), put(3, "b", 33), ok(4, "b"), seen(5, "b"), seen(10_000, "a")
    ),
    "a call that was never answered, too": history(
        put(1, "a", 33), put(3, "b", 33), ok(4, "b"), seen(5, "b"), seen(10_000, "a")
    ),
    "an SDK tries again, and the first attempt was it": history(
        put(1, "a1", 33, "a"), unknown(2, "a1"), put(3, "a2", 33, "a"), not_applied(4, "a2"),
        seen(5, None), seen(6, "a"),
    ),
    "an SDK tries again with a condition of its own, and reads 412 of its own success": history(
        put(1, "a1", 33, "a"), unknown(2, "a1"), put(3, "a2", 33, "a"), Answer("a2", (4, 4), 412), seen(6, "a")
    ),
    "an answer of 500 without an outcome may have been applied": history(
        put(1, "a", 33), Answer("a", (2, 2), 500), seen(3, None), seen(4, "a")
    ),
    "a Complete is answered for its first attempt's sake": history(
        put(1, "c1", 33, "c", **COMPLETE), unknown(2, "c1"), effect(2.5, "c1", "c"), put(3, "b", 33), effect(3, "b"),
        ok(4, "b"), put(5, "c2", 33, "c", **COMPLETE), ok(6, "c2"), onlooker=True,
    ),
    "the same, as readers see it": history(
        put(1, "c1", 33, "c", **COMPLETE), unknown(2, "c1"), put(3, "b", 33), ok(4, "b"), seen(4.5, "b"),
        put(5, "c2", 33, "c", **COMPLETE), ok(6, "c2"), seen(7, "b"),
    ),
    "a lost Complete lands again after another has been answered": history(
        put(1, "c1", 33, "c", **COMPLETE), put(2, "c2", 33, "c", **COMPLETE), ok(3, "c2"), ok(3, "c1"),
        put(4, "b", 33), ok(5, "b"), seen(6, "c"),
    ),
    "deletes and writes of one token, in any order": history(
        put(1, "a", 33), delete(1, "d", 33), unknown(2, "d"), ok(2, "a"), seen(3, "a"), seen(4, None)
    ),
    "one of several deletes may have been it": history(
        delete(1, "d", 33), unknown(2, "d"), put(3, "b", 34), delete(3, "e", 34), ok(4, "b"), seen(5, "b"),
        seen(6, None),
    ),
    "a delete of what is not there": history(delete(1, "d", 33), ok(2, "d"), onlooker=True),
    "what was there before": history(
        seen(1, "old"), delete(2, "d", 33), ok(3, "d"), seen(4, None), initial={OUT: "old"}
    ),
    "a deleted version shows what was before it, which is replaced by what was sent then": history(
        put(1, "a", 33), effect(2, "a"), put(3, "x", 34), fault(4, "settle", "G2"), put(5, "c", 35), effect(6, "c"),
        delete_version(7, "d", 35), effect(8, "d", "a"), ok(9, "d"), effect(10, "x"), conditional=CONDITIONAL,
    ),
    "a new database learns of what a deleted version shows the token that it bears": history(
        ruled(0, "one"), put(1, "a", 33), effect(2, "a"), put(3, "b", 34), effect(4, "b"), delete_version(5, "d", 34),
        effect(6, "d", "a"), fault(7, "database-lost", "G0", "G1", "G2", "R9", by="one"), ruled(8, "two"),
        floor(9, 33), onlooker=True,
    ),
    "what no fence covers": history(
        put(1, "b", 34), ok(2, "b"), put(3, "a", 0, fenced=False), ok(4, "a"), seen(5, "a")
    ),
    "a copy of which nobody can say what it leaves": history(
        put(1, "a", 33), ok(2, "a"), put(3, "x", 33, "?", operation="CopyObject"), ok(4, "x"), seen(5, "whatever")
    ),
    "two keys": history(
        put(1, "b", 34), ok(2, "b"), put(3, "a", 5, key="k", object=OTHER), ok(4, "a"), seen(5, "a", OTHER)
    ),
    "a worker throws away its upload, although it is stale": history(
        put(1, "b", 34), ok(2, "b"), control(3, "x", "AbortMultipartUpload", 33), sent(3, "x"), ok(4, "x")
    ),
    "an overtaken write's own answer tells the new floor": history(
        put(1, "a", 33), put(2, "b", 34), stale(3, "a", 34), ok(4, "b"), floor(5, 34)
    ),
    "all in one moment: the order of the lines decides": history(
        put(1, "a", 33), control(1, "c", "check", 34), ok(1, "c"), stale(1, "a", 33)
    ),
    "a floor is read while it rises": history(
        put(1, "b", 34), floor((1, 3), 34), floor((2, 4), 33), ok(5, "b")
    ),
    "a grant is asked for again, and a check repeated": history(
        control(1, "l1", "grant", value="once"), ok(2, "l1", token=7), control(3, "l2", "grant", value="once"),
        ok(4, "l2", token=7), control(5, "c", "check", 7), ok(6, "c"),
    ),
    "a completion is told again": history(
        control(1, "c", "complete", 7), ok(2, "c"), control(3, "d", "complete", 7), ok(4, "d")
    ),
    "a job is sealed without waiting for what is under way": history(
        put(1, "a", 33), control(2, "s", "seal", 33), ok(3, "s"), seen(4, None), seen(5, "a")
    ),
    "an operator's settle, and the store honours no condition": history(
        put(1, "a", 33), unknown(2, "a"), fault(3, "settle", "G2"), put(4, "b", 34), ok(5, "b"), seen(6, "a")
    ),
    "an operator's settle, and the object returned to what the send was conditioned on": history(
        put(1, "a", 33), unknown(2, "a"), fault(3, "settle", "G2"), put(4, "b", 34), ok(5, "b"), delete(6, "d", 34),
        ok(7, "d"), seen(8, "a"), conditional=CONDITIONAL,
    ),
    "equal bytes return": history(
        put(0, "z", 32, bytes="same"), effect(0.5, "z"), put(1, "a", 33), fault(3, "settle", "G2"),
        put(4, "b", 34, bytes="same"), effect(5, "b"), ok(5, "b"), effect(6, "a"), conditional=CONDITIONAL,
    ),
    "a store refuses what it has applied": history(
        put(1, "a", 33), fault(2, "applied-then-412", "G5"), effect(2, "a"), not_applied(3, "a")
    ),
    "a database is lost without the bucket's record": history(
        floor(1, 34), fault(2, "database-lost", "G0", "G1", "G2"), floor(3, 0), put(4, "a", 33), ok(5, "a"),
        seen(6, "a"),
    ),
    "what was sent before the database was lost lands, and nobody knows its token": history(
        put(1, "b", 34), fault(2, "database-lost", "G0", "G1", "G2"), effect(3, "b"), put(4, "a", 33), effect(5, "a")
    ),
    "another key's send of before the database was lost": history(
        put(1, "a", 5, key="k"), sent(2, "a"), fault(2.5, "database-lost", "R9"), put(3, "b", 1), effect(4, "b"),
        effect(6, "a"),
    ),
    "what another key sent before the database was lost": history(
        put(1, "b", 1), sent(1, "b"), fault(2, "database-lost", "R9"), put(3, "a", 5, key="k"), sent(3, "a"),
        effect(4, "b"), effect(6, "a"),
    ),
    "an object moves to another key": history(
        put(1, "a", 5, key="k"), sent(1, "a"), effect(2, "a"), ok(3, "a"), put(4, "b", 1), sent(4, "b"), effect(5, "b"),
        ok(6, "b"),
    ),
    "and back": history(
        put(1, "a", 5, key="k"), put(2, "b", 1), sent(2, "b"), effect(3, "b"), ok(4, "b"), sent(5, "a"), effect(6, "a")
    ),
    "a grant asked for again, that others knew of": history(
        control(1, "l1", "grant", value="w"), put(2, "a", 6), stale(3, "a", 7), control(4, "l2", "grant", value="w"),
        ok(5, "l2", token=7),
    ),
    "a new database grants before it has taken the bucket over": history(
        ruled(0, "one"), control(1, "l1", "grant"), ok(2, "l1", token=7, by="one"),
        fault(3, "database-lost", "G0", "G1", "G2"), control(4, "l2", "grant"), ok(5, "l2", token=1, by="two"),
        ruled(6, "two"), control(7, "l3", "grant"), ok(8, "l3", token=8, by="two"),
    ),
    "a database that began after the record was lost, and one that knows of it alone": history(
        ruled(0, "one"), ruled(1, None), fault(2, "database-lost", "G0", "G1", "G2"), ruled(3, "two"),
        control(4, "l1", "grant"), ok(5, "l1", token=8, by="two"), fault(6, "database-lost", "G0", "G1", "G2"),
        ruled(7, ""), ruled(8, "three"), control(9, "l2", "grant"), ok(10, "l2", token=7, by="three"),
    ),
    "a new database grants where the record was lost": history(
        ruled(0, "one"), control(1, "l1", "grant"), ok(2, "l1", token=7, by="one"), ruled(3, None),
        fault(4, "database-lost", "G0", "G1", "G2"), ruled(5, "two"), control(6, "l2", "grant"),
        ok(7, "l2", token=1, by="two"),
    ),
    "a completion is told again, after the floor has risen": history(
        control(1, "c", "complete", 33), ok(2, "c"), control(3, "k", "raise", 40), ok(4, "k"),
        control(5, "c2", "complete", 33), ok(6, "c2"),
    ),
    "a job is reopened": history(
        control(1, "c", "complete", 33), ok(2, "c"), control(3, "c2", "complete", 33), ok(4, "c2"),
        control(5, "o", "reopen"), ok(6, "o"), control(7, "l", "grant"), ok(8, "l", token=34),
        control(9, "d", "complete", 34), ok(10, "d"),
    ),
    "a grant is answered while the job is completed": history(
        control(1, "l", "grant"), control(2, "c", "complete", 33), ok(3, "c"), ok(4, "l", token=33)
    ),
    "a job is done again, its completion lost with the database": history(
        control(1, "c", "complete", 33), ok(2, "c"), fault(3, "database-lost", "G0", "G1", "G2"),
        control(4, "l", "grant"), ok(5, "l", token=1),
    ),
    "a gateway goes on within its lapse": history(
        ruled(0, "one"), ruled(10, ""), put(60, "a", 34), sent(69, "a", "one"), lapse_s=60
    ),
    "a write without a token had seen no record": history(
        put(1, "a", 0), ruled(5, "one"), sent(60, "a", "two"), lapse_s=60
    ),
    "the record is lost, and nobody knows": history(
        ruled(1, "one"), ruled(2, None), put(3, "a", 1), sent(4, "a", "two")
    ),
    "what no fence covers, of whomever": history(ruled(1, "one"), put(3, "a", 1, fenced=False), sent(4, "a", "two")),
    "nobody knows that there was another database": history(
        ruled(0, "one"), put(1, "b", 34), effect(2, "b"), ruled(2.5, None), fault(3, "database-lost", "G0", "G1", "G2"),
        ruled(4, "two"), floor(5, 0),
    ),
    "what is granted while the record is lost, which nobody writes before the database is lost": history(
        ruled(0, "one"), control(1, "l1", "grant"), ruled(2, None), ok(3, "l1", token=7, by="one"),
        fault(4, "database-lost", "G0", "G1", "G2"), ruled(5, "two"), control(6, "l2", "grant"),
        ok(7, "l2", token=1, by="two"),
    ),
    "the record of a database that was lost meanwhile lands late, and tells the next one nothing": history(
        ruled(0, "one"), put(1, "b", 34), effect(2, "b"), ruled(3, ""),
        fault(4, "database-lost", "G0", "G1", "G2", by="two"), ruled(5, "two"), floor(6, 0),
    ),
    "a floor that no object tells": history(
        ruled(0, "one"), put(1, "b", 34), effect(2, "b"), put(2, "d", 39, object=OTHER), effect(2.5, "d", where=OTHER),
        delete(2.6, "e", 39, object=OTHER), effect(2.7, "e", None, OTHER), control(2.8, "c", "check", 40), ok(2.9, "c"),
        fault(3, "database-lost", "G0", "G1", "G2"), ruled(4, "two"), floor(5, 34), put(6, "a", 35), ok(7, "a"),
    ),
    "the same database rules on after its record was lost": history(
        ruled(0, "one"), put(1, "b", 34), effect(2, "b"), fault(2, "x", "G0", "G1", "G2"), ruled(3, None),
        ruled(4, "one"), floor(5, 33),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_no_false_alarm(name: str) -> None:
    """No course of events that the guarantees allow is taken for their breach."""
    assert [(str(v), v.lines) for v in judge(GOOD[name])] == []
