"""What every store promises (gateway/stores/base.py), a test for each promise: its beginning and end, who asks, and who
rules a bucket. What it promises of floors, uploads, leases and jobs has suites of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import MAX_GENERATION, EventKind, Fence, Ruling
from tests.contract.stores import RULES, Clock, OpenStore, event, lookup, upload


class StoreContract:
    # --- beginning and end ----------------------------------------------------------------------------------

    async def test_first_start_is_clean(self, open_store: OpenStore) -> None:
        """A database that has never served leaves nothing in doubt."""
        store = await open_store()
        start = await store.start(RULES)
        assert (start.clean, start.reason) == (True, "")
        await store.stop(clean=False)

    async def test_start_after_a_clean_stop_is_clean(self, open_store: OpenStore) -> None:
        """The clean mark survives to the next start."""
        store = await open_store()
        await store.start(RULES)
        await store.stop(clean=True)
        store = await open_store()
        assert (await store.start(RULES)).clean
        await store.stop(clean=True)

    async def test_start_after_an_unclean_stop_says_so(self, open_store: OpenStore) -> None:
        """A run that ended with sends unsettled leaves no clean mark, nor does it keep that of the run before."""
        store = await open_store()
        await store.start(RULES)
        await store.stop(clean=True)
        store = await open_store()
        await store.start(RULES)
        await store.stop(clean=False)
        store = await open_store()
        start = await store.start(RULES)
        assert not start.clean
        assert start.reason == "the last run did not stop cleanly"
        await store.stop(clean=True)

    async def test_changed_rules_make_a_start_unclean_once(self, open_store: OpenStore) -> None:
        """Other rules may fence what the last run did not; the digest is kept at that start."""
        for rules, reason in ((RULES, ""), ("rules-2", "the fencing rules have changed"), ("rules-2", "")):
            store = await open_store()
            start = await store.start(rules)
            assert (start.clean, start.reason) == (not reason, reason)
            await store.stop(clean=True)

    async def test_both_reasons_are_named(self, open_store: OpenStore) -> None:
        """A crash under rules that have changed is told as both."""
        store = await open_store()
        await store.start(RULES)
        await store.stop(clean=False)
        store = await open_store()
        start = await store.start("rules-2")
        assert start.reason == "the last run did not stop cleanly; the fencing rules have changed"
        await store.stop(clean=True)

    async def test_a_restart_keeps_everything(self, open_store: OpenStore, clock: Clock) -> None:
        """Floors, seals, lazy writes, bindings, owners and history are all there after a stop and a start."""
        store = await open_store()
        await store.start(RULES)
        await store.raise_floor("job", 33, event(EventKind.RAISED))
        await store.seal("job", 33)
        store.complete_handover("job", 33)
        await store.raise_shadow("job", 40)
        store.record(event())
        await store.uploads.bind(upload())
        await store.claim("b", "plain", "job", instead_of=None)
        await store.stop(clean=True)
        store = await open_store()
        await store.start(RULES)
        assert await store.fence("job") == Fence("job", 33, 33, 33, 40, clock.now)
        assert await lookup(store, upload()) == replace(upload(), changed_at=clock.now)
        assert await store.owner("b", "plain") == "job"
        history = await store.events("job", None, 10)
        assert [line.kind for line in history] == [EventKind.REFUSED, EventKind.RAISED]
        await store.stop(clean=True)

    async def test_a_closed_store_fails_closed(self, store: Store) -> None:
        """After its stop every call is StoreUnavailable, also those that a cache could answer."""
        await store.raise_floor("job", 33)
        await store.fence("job")
        await store.uploads.bind(upload())
        await lookup(store, upload())
        await store.claim("b", "o", "job", instead_of=None)
        await store.owner("b", "o")
        await store.stop(clean=True)
        calls: list[Callable[[], Awaitable[object]]] = [
            store.check,
            lambda: store.fence("job"),
            lambda: store.raise_floor("job", 33),
            lambda: store.raise_floor("job", 34),
            lambda: store.raise_shadow("job", 34),
            lambda: store.seal("job", 33),
            lambda: store.uploads.bind(upload(2)),
            lambda: lookup(store, upload()),
            lambda: store.uploads.complete(upload(), "etag"),
            lambda: store.uploads.close(upload()),
            lambda: store.uploads.mark_aborted(upload()),
            lambda: store.uploads.revoke("job", 34),
            lambda: store.uploads.unfinished(None, 10),
            lambda: store.uploads.forget(1.0),
            lambda: store.owner("b", "o"),
            lambda: store.claim("b", "o", "job", instead_of=None),
            lambda: store.fences(None, 10),
            lambda: store.events("job", None, 10),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="closed"):
                await call()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.complete_handover("job", 33)
        with pytest.raises(StoreUnavailable, match="closed"):
            store.record(event())
        await store.start(RULES)

    # --- callers --------------------------------------------------------------------------------------------

    async def test_a_caller_that_gives_up_harms_nobody(self, store: Store) -> None:
        """Of raises side by side some are cancelled; the others are answered as ever."""
        tasks = [asyncio.create_task(store.raise_floor(f"job-{n}", 5)) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, Fence) for outcome in outcomes[1::2])
        for number in range(1, 20, 2):
            assert (await store.fence(f"job-{number}")).floor == 5

    # --- who rules a bucket -----------------------------------------------------------------------------------

    async def test_a_database_stays_who_it_is_and_knows_its_runs(self, open_store: OpenStore) -> None:
        """Over a restart the identity stays; the run is another, and the earlier one is remembered."""
        store = await open_store()
        await store.start(RULES)
        first = store.authority
        await store.stop(clean=True)
        store = await open_store()
        await store.start(RULES)
        second = store.authority
        assert (second.database, second.generation) == (first.database, first.generation) == (first.database, 0)
        assert second.run != first.run
        assert await store.knows_run(first.run)
        assert await store.knows_run(second.run)
        assert not await store.knows_run("of another")
        await store.stop(clean=True)

    async def test_the_generation_only_rises(self, open_store: OpenStore) -> None:
        """By one at least, above what is named, durably, and never past the last."""
        store = await open_store()
        await store.start(RULES)
        assert (await store.raise_generation(0)).generation == 1
        assert (await store.raise_generation(7)).generation == 8
        assert (await store.raise_generation(3)).generation == 9
        with pytest.raises(StoreUnavailable, match="no generation after"):
            await store.raise_generation(MAX_GENERATION)
        assert store.authority.generation == 9
        await store.stop(clean=True)
        store = await open_store()
        await store.start(RULES)
        assert store.authority.generation == 9
        await store.stop(clean=True)

    async def test_a_rebuild_goes_on_where_it_was(self, open_store: OpenStore) -> None:
        """How far it has come is kept over a restart, until the bucket is ruled."""
        store = await open_store()
        await store.start(RULES)
        assert await store.ruling("b") is None
        await store.begin_rebuild("b", "claim-1")
        await store.advance_rebuild("b", "claim-1", "k500", 500)
        await store.stop(clean=False)
        store = await open_store()
        await store.start(RULES)
        assert await store.ruling("b") == Ruling("b", "claim-1", "k500", 500)
        await store.rule("b")
        assert await store.ruling("b") == Ruling("b")
        await store.stop(clean=True)

    async def test_a_rebuild_of_another_claim_advances_nothing(self, store: Store) -> None:
        """Nor does one of a bucket that is ruled, or that nobody has claimed."""
        await store.begin_rebuild("b", "claim-2")
        await store.advance_rebuild("b", "claim-1", "k500", 500)
        assert await store.ruling("b") == Ruling("b", "claim-2")
        await store.rule("b")
        await store.advance_rebuild("b", "claim-2", "k500", 500)
        assert await store.ruling("b") == Ruling("b")
        await store.advance_rebuild("c", "claim-1", "k500", 500)
        assert await store.ruling("c") is None

    async def test_a_rebuild_begins_anew_with_a_new_claim(self, store: Store) -> None:
        """What an earlier one has seen says nothing of what was written under another authority since."""
        await store.begin_rebuild("b", "claim-1")
        await store.advance_rebuild("b", "claim-1", "k500", 500)
        await store.begin_rebuild("b", "claim-2")
        assert await store.ruling("b") == Ruling("b", "claim-2")

    async def test_buckets_are_listed_and_forgotten(self, store: Store) -> None:
        """In their order; one that is deleted is as if it had never been."""
        await store.rule("b")
        await store.begin_rebuild("a", "claim-1")
        assert await store.rulings() == [Ruling("a", "claim-1"), Ruling("b")]
        await store.forget_bucket("a")
        await store.forget_bucket("never seen")
        assert await store.rulings() == [Ruling("b")]
