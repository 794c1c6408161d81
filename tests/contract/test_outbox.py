"""What every store's outbox promises (gateway/stores/base.py, Outbox)."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.stores.base import Store
from gateway.stores.values import Backlog, Dropped, Event, EventKind, Waiting
from tests.contract import stores, test_stores
from tests.contract.stores import RULES, Clock, OpenStore, event, flush

clock = stores.clock
store = stores.store
open_store = test_stores.open_store


class Told:
    """Wants raises and refusals for the webhook `a`, and raises for `b`; counts what it is told of."""

    def __init__(self, store: Store) -> None:
        self.arrived: Counter[str] = Counter()
        store.outbox.announce(self.wanted, self.arrived.update)

    def wanted(self, event: Event) -> list[str]:
        return {EventKind.RAISED: ["a", "b"], EventKind.REFUSED: ["a"]}.get(event.kind, [])


def raised(token: int, key: str = "job") -> Event:
    return Event(key, EventKind.RAISED, token, 0, "check", "request-1")


async def raise_to(store: Store, *tokens: int, key: str = "job") -> None:
    for token in tokens:
        await store.raise_floor(key, token, raised(token, key))


async def waiting(store: Store, webhook: str = "a", after: int = 0, limit: int = 100) -> list[Waiting]:
    return await store.outbox.waiting(webhook, after, limit)


def tokens(rows: list[Waiting]) -> list[int]:
    return [row.event.token for row in rows]


async def test_without_announcing_nothing_waits(store: Store) -> None:
    """Who has no webhooks has no outbox."""
    await raise_to(store, 1)
    assert await store.outbox.backlogs() == []


async def test_what_is_recorded_waits_for_each_webhook_that_wants_it(store: Store, clock: Clock) -> None:
    """Once the call has answered, with all facts of the event and the time of the store."""
    told = Told(store)
    await raise_to(store, 5)
    (row,) = await waiting(store)
    assert row == Waiting(row.serial, "a", Event("job", EventKind.RAISED, 5, 0, "check", "request-1", 1, clock.now))
    assert tokens(await waiting(store, "b")) == [5]
    assert told.arrived == {"a": 1, "b": 1}


async def test_what_has_not_happened_is_not_announced(store: Store) -> None:
    """A raise that changed nothing leaves nothing to announce, nor does what no webhook wants."""
    told = Told(store)
    await raise_to(store, 5, 5, 4)
    await store.seal("job", 5, event(EventKind.SEALED, token=5))
    assert tokens(await waiting(store)) == [5]
    assert told.arrived["a"] == 1


async def test_lazy_events_wait_too(store: Store) -> None:
    """Refusals are recorded lazily; with the next commit they wait, alike ones counted into one or one by one."""
    told = Told(store)
    for _ in range(3):
        store.record(event())
    await flush(store)
    assert sum(row.event.times for row in await waiting(store)) == 3
    assert told.arrived["a"] == len(await waiting(store))
    assert await waiting(store, "b") == []


async def test_pages_in_order(store: Store) -> None:
    """All of a webhook in the order in which it happened, page by page."""
    Told(store)
    await raise_to(store, *range(1, 8))
    first = await waiting(store, limit=4)
    assert tokens(first) == [1, 2, 3, 4]
    assert tokens(await waiting(store, after=first[-1].serial)) == [5, 6, 7]


async def test_the_next_of_a_key(store: Store) -> None:
    """Other keys and other webhooks are passed over."""
    Told(store)
    await raise_to(store, 1)
    await raise_to(store, 7, key="other")
    await raise_to(store, 2)
    (first, _, second) = await waiting(store)
    assert await store.outbox.next_of("a", "job", first.serial) == second
    assert await store.outbox.next_of("a", "job", second.serial) is None
    assert await store.outbox.next_of("c", "job", 0) is None


async def test_what_is_done_waits_no_more(store: Store) -> None:
    """For that webhook alone."""
    Told(store)
    await raise_to(store, 1, 2)
    store.outbox.done((await waiting(store))[0])
    await flush(store)
    assert tokens(await waiting(store)) == [2]
    assert tokens(await waiting(store, "b")) == [1, 2]


@pytest.mark.parametrize("clean", [True, False])
async def test_what_waits_is_there_after_a_restart(open_store: OpenStore, clean: bool) -> None:
    """A run takes up what an earlier one left, however that ended, and serials go on."""
    store = await open_store()
    await store.start(RULES)
    Told(store)
    await raise_to(store, 1, 2)
    left = await waiting(store)
    store.outbox.done(left[1])
    await flush(store)
    await store.stop(clean=clean)
    store = await open_store()
    await store.start(RULES)
    assert await waiting(store) == left[:1]
    await raise_to(store, 3)
    assert await waiting(store) == left[:1], "nobody has said anew what is wanted"
    Told(store)
    await raise_to(store, 4)
    assert [row.serial > left[1].serial for row in await waiting(store)] == [False, True]
    await store.stop(clean=True)


async def test_backlogs(store: Store, clock: Clock) -> None:
    """How much waits for each webhook, and since when."""
    Told(store)
    began = clock.now
    await raise_to(store, 1)
    clock.now += 60
    store.record(event())
    await flush(store)
    assert await store.outbox.backlogs() == [Backlog("a", 2, began), Backlog("b", 1, began)]


async def test_the_oldest_are_dropped(store: Store) -> None:
    """Down to so many, of one webhook; it is told how many, and up to which."""
    Told(store)
    await raise_to(store, 1, 2, 3, 4)
    rows = await waiting(store)
    assert await store.outbox.drop_oldest("a", 1) == Dropped(3, rows[2].serial)
    assert await store.outbox.drop_oldest("a", 1) == Dropped(0, 0)
    assert tokens(await waiting(store)) == [4]
    assert len(await waiting(store, "b")) == 4


async def test_what_is_old_is_forgotten(store: Store, clock: Clock) -> None:
    """By its time, of one webhook."""
    Told(store)
    await raise_to(store, 1)
    clock.now += 60
    await raise_to(store, 2)
    assert await store.outbox.forget("a", clock.now) == 1
    assert tokens(await waiting(store)) == [2]
    assert len(await waiting(store, "b")) == 2
