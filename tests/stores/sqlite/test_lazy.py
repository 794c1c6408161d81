"""What waits for the next commit."""

from __future__ import annotations

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite.lazy import MAX_WAITING, LazyWrites
from gateway.stores.values import Event, EventKind


def event(key: str = "job", *, token: int = 1, detail: str = "", kind: EventKind = EventKind.REFUSED) -> Event:
    return Event(key, kind, token, 1, detail)


def told(lazy: LazyWrites) -> list[tuple[str, str, int]]:
    return [(one.key, one.detail, one.times) for one in lazy.take().events]


def test_alike_events_in_a_row_are_counted() -> None:
    """Per key, whatever other keys tell in between."""
    lazy = LazyWrites()
    for one in (event(), event("other"), event(), event("other"), event(detail="x"), event()):
        lazy.record(one)
    assert told(lazy) == [("job", "", 2), ("other", "", 2), ("job", "x", 1), ("job", "", 1)]


@pytest.mark.parametrize("other", [event(token=2), event(detail="x"), event(kind=EventKind.RAISED)])
def test_events_that_differ_are_not_counted_together(other: Event) -> None:
    """Token, detail and kind each make an event another one."""
    lazy = LazyWrites()
    lazy.record(event())
    lazy.record(other)
    assert len(lazy.take().events) == 2


def test_the_newest_events_beyond_the_bound_are_dropped_and_counted() -> None:
    """The queue is bounded; one that is alike takes no room and is still counted into its line."""
    lazy = LazyWrites()
    for number in range(MAX_WAITING + 5):
        lazy.record(event(f"job-{number}"))
    lazy.record(event("job-0"))
    events = lazy.take().events
    assert (len(events), lazy.dropped_events) == (MAX_WAITING, 5)
    assert events[0].times == 2
    assert events[-1].key == f"job-{MAX_WAITING - 1}"


def test_events_of_a_failed_commit_wait_again_before_later_ones() -> None:
    """Order is kept over a failure, and the bound too."""
    lazy = LazyWrites()
    lazy.record(event(detail="first"))
    batch = lazy.take()
    lazy.record(event(detail="second"))
    lazy.failed(batch)
    assert told(lazy) == [("job", "first", 1), ("job", "second", 1)]


def test_what_a_commit_took_waits_until_it_has_succeeded() -> None:
    """A shadow floor stays known while it is being written; what came in meanwhile stays after it."""
    lazy = LazyWrites()
    lazy.raise_shadow("job", 5)
    lazy.complete_handover("job", 3)
    batch = lazy.take()
    assert lazy.shadow("job") == 5
    lazy.raise_shadow("job", 6)
    lazy.committed(batch)
    assert lazy.shadow("job") == 6
    rest = lazy.take()
    assert (rest.handovers, rest.shadows) == ({}, {"job": 6})
    lazy.committed(rest)
    assert not lazy


def test_lazy_numbers_never_fall() -> None:
    """Of several for one key the highest is written."""
    lazy = LazyWrites()
    for token in (5, 3):
        lazy.complete_handover("job", token)
        assert lazy.raise_shadow("job", token) == 5
    batch = lazy.take()
    assert (batch.handovers, batch.shadows) == ({"job": 5}, {"job": 5})


def test_keys_are_bounded() -> None:
    """A hand-over too many is left out, a shadow floor too many is refused; known keys go on."""
    lazy = LazyWrites()
    for number in range(MAX_WAITING):
        lazy.complete_handover(f"job-{number}", 1)
        lazy.raise_shadow(f"job-{number}", 1)
    lazy.complete_handover("one more", 1)
    with pytest.raises(StoreUnavailable):
        lazy.raise_shadow("one more", 1)
    lazy.complete_handover("job-0", 2)
    assert lazy.raise_shadow("job-0", 2) == 2
    batch = lazy.take()
    assert len(batch.handovers) == MAX_WAITING
    assert batch.handovers["job-0"] == 2
