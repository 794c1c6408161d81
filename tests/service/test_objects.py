"""The ledger of single objects: who may still land there, and what may be forgotten (R9)."""

from __future__ import annotations

import pytest

from gateway.core.keys import FencingKey
from gateway.service.objects import Objects
from tests.virtual_time import run

K, M = FencingKey("K"), FencingKey("M")


def test_only_the_sends_of_other_keys_contest_an_object() -> None:
    """A key's own sends do not keep it off; with another's among them they do."""
    entry = Objects().pin("b", "o")
    assert not entry.contested(K)
    entry.begin(K)
    assert (entry.contested(K), entry.contested(M)) == (False, True)
    entry.begin(M)
    assert (entry.contested(K), entry.contested(M)) == (True, True)
    entry.end(K)
    assert (entry.contested(K), entry.contested(M)) == (True, False)


@pytest.mark.parametrize("why", ["pinned", "unsettled", "its turn is taken"])
def test_a_busy_object_is_not_forgotten(why) -> None:
    """Whoever comes next must find the same entry."""

    async def main() -> None:
        objects = Objects(capacity=2)
        busy = objects.pin("b", "busy")
        if why != "pinned":
            objects.unpin(busy)
        if why == "unsettled":
            busy.begin(K)
        if why == "its turn is taken":
            await busy.turn.acquire()
        for n in range(20):
            objects.unpin(objects.pin("b", f"other{n}"))
        assert objects.pin("b", "busy") is busy

    run(main())


def test_idle_objects_are_forgotten() -> None:
    """Memory does not grow with the number of objects that have been written."""
    objects = Objects(capacity=4)
    for n in range(100):
        objects.unpin(objects.pin("b", f"o{n}"))
    assert len(objects._entries) <= 5
