"""What is kept of the histories of all keys together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.stores.sqlite import SqliteStore, writer
from gateway.stores.values import Event, EventKind

KEPT = 1000


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer, "FLOORLESS_KEPT", KEPT)
    return tmp_path / "gateway.db"


async def refuse(store: SqliteStore, numbers: range, kind: EventKind = EventKind.REFUSED) -> None:
    """A write without a token is refused on each of as many objects, every one a key of its own."""
    for start in range(numbers.start, numbers.stop, 100):
        for number in range(start, min(start + 100, numbers.stop)):
            store.record(Event(f"object:b/{number}", kind, 0, 0, "TokenRequired: PutObject"))
        await store.check()


async def known(store: SqliteStore, numbers: range) -> int:
    """Of how many of these objects there is a history."""
    return sum([len(await store.events(f"object:b/{number}", None, 9)) for number in numbers])


@pytest.mark.parametrize("kind", [EventKind.REFUSED, EventKind.WOULD_REFUSE])
async def test_refusals_of_objects_without_a_floor_do_not_fill_the_disk(path: Path, kind: EventKind) -> None:
    """Each object may be a key of its own: a program without a token that writes ever new ones would leave a line for
    each, for ever. The newest of them stay, over a restart too; what tells of floors stays whatever comes after it."""
    store = SqliteStore(path)
    await store.start("rules")
    for number in range(50):
        await store.raise_floor(f"job-{number}", 33, Event(f"job-{number}", EventKind.RAISED, 33, 0))
        store.record(Event(f"job-{number}", EventKind.REFUSED, 32, 33, "StaleToken: PutObject"))
    for numbers in (range(2000), range(2000, 5000)):
        await refuse(store, numbers, kind)
        await store.stop(clean=True)
        store = SqliteStore(path)
        await store.start("rules")
    total = await known(store, range(5000))
    newest = await known(store, range(5000 - KEPT, 5000))
    jobs = [len(await store.events(f"job-{number}", None, 9)) for number in range(50)]
    await store.stop(clean=True)
    assert newest == KEPT
    assert total <= KEPT + 256 + 100
    assert jobs == [2] * 50
