"""What every store promises (gateway/stores/base.py), a test for each promise.

A module that runs the suite has a fixture `open_store` that opens the same store anew each time, and imports
the class: `from tests.contract.store_contract import StoreContract as TestStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import MAX_GENERATION, Event, EventKind, Fence, Ruling, Upload, UploadState

MAX = 2**63 - 1
RULES = "rules-1"


class Clock:
    """Wall-clock time that moves when told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


OpenStore = Callable[[], Awaitable[Store]]
"""Opens the store of this test, as it was left; not started."""


def upload(number: int = 1, *, key: str = "job", token: int = 33, bucket: str = "b") -> Upload:
    return Upload(f"upload-{number}", bucket, f"object-{number}", key, token, f"nonce-{number}")


def event(kind: EventKind = EventKind.REFUSED, *, key: str = "job", token: int = 33, detail: str = "") -> Event:
    return Event(key, kind, token, 34, detail, "request-1")


async def lookup(store: Store, wanted: Upload) -> Upload | None:
    return await store.upload(wanted.bucket, wanted.object_key, wanted.upload_id)


async def flush(store: Store) -> None:
    """Have what is lazy written: it reaches the disk with the next commit."""
    await store.check()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    store = await open_store()
    await store.start(RULES)
    yield store
    await store.stop(clean=True)


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
        await store.bind_upload(upload())
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
        await store.bind_upload(upload())
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
            lambda: store.bind_upload(upload(2)),
            lambda: lookup(store, upload()),
            lambda: store.complete_upload(upload(), "etag"),
            lambda: store.close_upload(upload()),
            lambda: store.mark_aborted(upload()),
            lambda: store.revoke_uploads("job", 34),
            lambda: store.open_uploads(None, 10),
            lambda: store.forget_uploads(1.0),
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

    # --- fences ---------------------------------------------------------------------------------------------

    async def test_an_unknown_key_is_all_zeros(self, store: Store) -> None:
        """A key that nobody has raised has the floor 0 and is not listed."""
        assert await store.fence("job") == Fence("job")
        assert await store.fences(None, 10) == []

    async def test_a_raise_answers_the_state_after_it(self, store: Store, clock: Clock) -> None:
        """The answer is what a read shows from then on, with the time of the raise."""
        raised = await store.raise_floor("job", 33)
        assert raised == Fence("job", floor=33, raised_at=clock.now)
        assert await store.fence("job") == raised

    @pytest.mark.parametrize("token", [0, 1, 32, 33])
    async def test_a_floor_never_falls(self, store: Store, clock: Clock, token: int) -> None:
        """A raise to the floor or below changes nothing, not even the time of the last raise."""
        raised = await store.raise_floor("job", 33)
        clock.now += 1
        assert await store.raise_floor("job", token) == raised
        assert await store.fence("job") == raised

    async def test_the_largest_token_is_kept_exactly(self, store: Store) -> None:
        """2^63-1 is a token like any other."""
        assert (await store.raise_floor("job", MAX)).floor == MAX
        assert (await store.fence("job")).floor == MAX

    @pytest.mark.parametrize("token", [-1, MAX + 1])
    async def test_a_number_that_is_no_token_is_an_error(self, store: Store, token: int) -> None:
        """What does not fit is refused before it reaches anybody else's transaction."""
        for call in (store.raise_floor, store.raise_shadow, store.seal):
            with pytest.raises(ValueError):
                await call("job", token)
        with pytest.raises(ValueError):
            store.complete_handover("job", token)

    async def test_a_key_without_utf8_form_is_an_error(self, store: Store) -> None:
        """A lone surrogate cannot be stored, and does not spoil the calls beside it."""
        outcomes = await asyncio.gather(
            store.raise_floor("job", 1), store.raise_floor("\ud800", 1), return_exceptions=True
        )
        assert isinstance(outcomes[0], Fence)
        assert isinstance(outcomes[1], ValueError)

    @pytest.mark.parametrize("key", ["a\x00b", "a\nb", "käse/🧀", "'; DROP TABLE fence; --", " "])
    async def test_any_text_is_a_key(self, store: Store, key: str) -> None:
        """Keys are told apart to their last character, whatever they hold."""
        await store.raise_floor(key, 7)
        assert (await store.fence(key)).floor == 7
        assert (await store.fence(key[:1])).floor == (7 if key == key[:1] else 0)
        assert [fence.key for fence in await store.fences(None, 10)] == [key]

    async def test_many_raises_at_once_end_at_the_highest(self, store: Store) -> None:
        """Side by side, in any order, each answer is at least what was asked and the end is the maximum."""
        tokens = [(number * 37) % 101 for number in range(101)]
        answers = await asyncio.gather(*(store.raise_floor("job", token) for token in tokens))
        assert all(answer.floor >= token for answer, token in zip(answers, tokens, strict=True))
        assert (await store.fence("job")).floor == 100

    async def test_keys_do_not_touch_each_other(self, store: Store) -> None:
        """Raises of many keys at once give each key its own floor."""
        await asyncio.gather(*(store.raise_floor(f"job-{n}", n + 1) for n in range(600)))
        floors = [(await store.fence(f"job-{n}")).floor for n in range(600)]
        assert floors == list(range(1, 601))

    async def test_a_raise_records_its_event_only_if_it_rose(self, store: Store, clock: Clock) -> None:
        """The history tells of raises that were, not of those that found the floor already there."""
        for token in (33, 33, 32):
            await store.raise_floor("job", token, event(EventKind.RAISED, token=token))
        await store.raise_floor("job", 34, event(EventKind.RAISED, token=34, detail="PUT b/k"))
        history = await store.events("job", None, 10)
        assert [line.token for line in history] == [34, 33]
        assert history[0] == replace(
            event(EventKind.RAISED, token=34, detail="PUT b/k"), at=clock.now, serial=history[0].serial
        )

    async def test_a_handover_completes_up_to_the_floor(self, store: Store) -> None:
        """The completed floor never exceeds the floor and never falls."""
        await store.raise_floor("job", 33)
        for token, completed in ((20, 20), (10, 20), (99, 33), (33, 33)):
            store.complete_handover("job", token)
            await flush(store)
            assert (await store.fence("job")).completed_floor == completed
        store.complete_handover("unknown", 5)
        await flush(store)
        assert await store.fence("unknown") == Fence("unknown")

    async def test_a_raise_leaves_the_completed_floor(self, store: Store) -> None:
        """A hand-over that is only begun is not completed."""
        await store.raise_floor("job", 33)
        store.complete_handover("job", 33)
        raised = await store.raise_floor("job", 34)
        assert (raised.floor, raised.completed_floor) == (34, 33)

    async def test_a_seal_holds_up_to_the_floor(self, store: Store) -> None:
        """A token above the floor cannot be sealed; a sealed one stays so."""
        await store.raise_floor("job", 33)
        for token, sealed in ((34, 0), (20, 20), (10, 20), (33, 33)):
            assert (await store.seal("job", token)).sealed_token == sealed
            assert (await store.fence("job")).sealed_token == sealed
        assert (await store.raise_floor("job", 34)).sealed_token == 33

    async def test_a_seal_records_its_event_only_if_it_sealed(self, store: Store) -> None:
        """Sealing twice, or above the floor, leaves no second line."""
        await store.raise_floor("job", 33)
        for token in (34, 33, 33):
            await store.seal("job", token, event(EventKind.SEALED, token=token))
        assert [line.token for line in await store.events("job", None, 10)] == [33]

    async def test_a_shadow_floor_is_exact_in_its_answer(self, store: Store) -> None:
        """Each answer knows every raise before it, though none may be on the disk yet; the floor stays."""
        for token, shadow in ((5, 5), (3, 5), (9, 9), (9, 9)):
            assert (await store.raise_shadow("job", token)).shadow_floor == shadow
        await flush(store)
        assert await store.fence("job") == Fence("job", shadow_floor=9)
        assert (await store.raise_shadow("job", 4)).shadow_floor == 9
        await store.raise_shadow("job", 12)
        assert (await store.raise_shadow("job", 4)).shadow_floor == 12

    async def test_fences_are_listed_by_key(self, store: Store) -> None:
        """In order, after the cursor, at most so many, and only those with the prefix."""
        keys = ["a", "b", "b/1", "b/2", "b/\U0010ffff", "c", "é"]
        for key in reversed(keys):
            await store.raise_floor(key, 1)

        async def listed(after: str | None, limit: int, prefix: str = "") -> list[str]:
            return [fence.key for fence in await store.fences(after, limit, prefix)]

        assert await listed(None, 100) == keys
        assert await listed(None, 2) == ["a", "b"]
        assert await listed("b", 2) == ["b/1", "b/2"]
        assert await listed(None, 100, "b/") == ["b/1", "b/2", "b/\U0010ffff"]
        assert await listed("b/1", 1, "b/") == ["b/2"]
        assert await listed("é", 1) == []

    # --- history --------------------------------------------------------------------------------------------

    async def test_history_is_read_newest_first_by_cursor(self, store: Store, clock: Clock) -> None:
        """Serials fall from line to line, and a page begins below the serial it is given."""
        for number in range(5):
            clock.now += 1
            store.record(event(detail=f"{number}"))
            store.record(event(key="other", detail=f"{number}"))
        await flush(store)
        lines = await store.events("job", None, 10)
        assert [line.detail for line in lines] == ["4", "3", "2", "1", "0"]
        assert [line.at for line in lines] == [clock.now - number for number in range(5)]
        assert sorted((line.serial for line in lines), reverse=True) == [line.serial for line in lines]
        page = await store.events("job", lines[1].serial, 2)
        assert [line.detail for line in page] == ["2", "1"]

    async def test_a_lone_event_is_kept_whole(self, store: Store, clock: Clock) -> None:
        """What is recorded comes back, with the store's time and serial."""
        await flush(store)
        store.record(event(detail="PUT b/käse"))
        await flush(store)
        (line,) = await store.events("job", None, 10)
        assert line == replace(event(detail="PUT b/käse"), at=clock.now, serial=line.serial)
        assert line.serial > 0

    async def test_no_alike_event_is_lost(self, store: Store) -> None:
        """Alike events in a row may share a line, and then it counts them; a different one ends the row."""
        for detail in ("a", "a", "a", "b", "a"):
            store.record(event(detail=detail))
            store.record(event(key="other"))
        await flush(store)
        lines = await store.events("job", None, 10)
        told = [line.detail for line in reversed(lines) for _ in range(line.count)]
        assert told == ["a", "a", "a", "b", "a"]
        assert sum(line.count for line in await store.events("other", None, 10)) == 5
        assert store.dropped_events == 0

    async def test_text_that_is_not_utf8_spoils_no_history(self, store: Store) -> None:
        """What a client sent as bytes is made readable, and the events beside it are kept."""
        store.record(event(detail="PUT \udcff"))
        store.record(event(detail="fine"))
        await flush(store)
        assert [line.detail for line in await store.events("job", None, 9)] == ["fine", "PUT ?"]

    # --- uploads --------------------------------------------------------------------------------------------

    async def test_an_upload_is_bound_once(self, store: Store, clock: Clock) -> None:
        """The binding comes back whole; a second one is an error and changes nothing."""
        assert await lookup(store, upload()) is None
        await store.bind_upload(upload())
        bound = replace(upload(), changed_at=clock.now)
        assert await lookup(store, upload()) == bound
        with pytest.raises(ValueError):
            await store.bind_upload(replace(upload(), token=34))
        assert await lookup(store, upload()) == bound

    async def test_of_two_bindings_at_once_one_is_made(self, store: Store) -> None:
        """The loser is told, and it alone."""
        outcomes = await asyncio.gather(
            *(store.bind_upload(replace(upload(), nonce=nonce)) for nonce in "xy"),
            store.bind_upload(upload(2)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, type(None)]
        bound = await lookup(store, upload())
        assert bound is not None
        assert bound.nonce == "x"

    async def test_a_completed_upload_keeps_its_etag(self, store: Store, clock: Clock) -> None:
        """A repeated Complete can be answered, and the upload is no longer open."""
        await store.bind_upload(upload())
        await lookup(store, upload())
        clock.now += 1
        await store.complete_upload(upload(), '"etag"')
        assert await lookup(store, upload()) == replace(
            upload(), state=UploadState.COMPLETED, etag='"etag"', changed_at=clock.now
        )
        assert await store.open_uploads(None, 10) == []

    async def test_only_the_bound_token_changes_an_upload(self, store: Store) -> None:
        """Whoever acts for another token than the binding's changes nothing."""
        await store.bind_upload(upload())
        zombie = replace(upload(), token=32)
        await store.complete_upload(zombie, '"etag"')
        await store.close_upload(zombie)
        bound = await lookup(store, upload())
        assert bound is not None
        assert bound.state is UploadState.OPEN

    async def test_a_closed_upload_is_forgotten(self, store: Store) -> None:
        """After an abort the upload id is unknown, and may be bound anew."""
        await store.bind_upload(upload())
        await lookup(store, upload())
        await store.close_upload(upload())
        assert await lookup(store, upload()) is None
        await store.bind_upload(upload())

    async def test_a_revocation_takes_the_open_uploads_below(self, store: Store, clock: Clock) -> None:
        """Of the key, open, with a lower token; those revoked before and not closed since are told again."""
        await store.raise_floor("job", 35)
        for number, key, token in (
            (1, "job", 33),
            (2, "job", 34),
            (3, "job", 35),
            (4, "other", 1),
            (5, "job", 33),
        ):
            await store.bind_upload(upload(number, key=key, token=token))
        await store.complete_upload(upload(5), "etag")
        await lookup(store, upload(1))
        clock.now += 1

        async def revoked(below: int) -> list[str]:
            uploads = await store.revoke_uploads("job", below)
            assert {one.state for one in uploads} <= {UploadState.REVOKED}
            return [one.upload_id for one in uploads]

        assert await revoked(33) == []
        assert await revoked(34) == ["upload-1"]
        one = await lookup(store, upload(1))
        assert one == replace(upload(1), state=UploadState.REVOKED, changed_at=clock.now)
        assert await revoked(35) == ["upload-1", "upload-2"]
        await store.close_upload(upload(1))
        assert await revoked(35) == ["upload-2"]

    async def test_an_aborted_upload_is_kept_for_a_while(self, store: Store, clock: Clock) -> None:
        """Only a revoked one can be marked; it is listed no more, and forgotten with age."""
        await store.bind_upload(upload())
        await store.mark_aborted(upload())
        found = await lookup(store, upload())
        assert found is not None
        assert found.state is UploadState.OPEN
        (revoked,) = await store.revoke_uploads("job", 34)
        await store.mark_aborted(revoked)
        found = await lookup(store, upload())
        assert found is not None
        assert found.state is UploadState.ABORTED
        assert await store.revoke_uploads("job", 34) == []
        assert await store.open_uploads(None, 10) == []
        assert await store.forget_uploads(clock.now + 1) == 1
        assert await lookup(store, upload()) is None

    async def test_a_copy_under_way_is_listed_and_never_revoked(self, store: Store) -> None:
        """It is no upload that could be aborted; it is there until it is closed."""
        copying = replace(upload(), state=UploadState.COPYING)
        await store.bind_upload(copying)
        assert [found.state for found in await store.open_uploads(None, 10)] == [UploadState.COPYING]
        assert await store.revoke_uploads("job", 34) == []
        await store.close_upload(copying)
        assert await store.open_uploads(None, 10) == []

    async def test_open_uploads_are_listed_in_order(self, store: Store) -> None:
        """OPEN and REVOKED, by (bucket, object, upload id), after the cursor, at most so many."""
        for number, bucket in ((3, "a"), (1, "b"), (2, "a"), (4, "a")):
            await store.bind_upload(upload(number, bucket=bucket))
        await store.complete_upload(upload(4, bucket="a"), "etag")
        await store.revoke_uploads("job", 34)
        await store.bind_upload(upload(5, bucket="c"))

        async def listed(after: tuple[str, str, str] | None, limit: int) -> list[str]:
            return [one.upload_id for one in await store.open_uploads(after, limit)]

        assert await listed(None, 10) == ["upload-2", "upload-3", "upload-1", "upload-5"]
        assert await listed(None, 1) == ["upload-2"]
        assert await listed(("a", "object-2", "upload-2"), 2) == ["upload-3", "upload-1"]
        assert await listed(("c", "object-5", "upload-5"), 2) == []

    async def test_old_completed_uploads_are_forgotten(self, store: Store, clock: Clock) -> None:
        """Only COMPLETED ones that changed before the given time."""
        for number in (1, 2, 3):
            await store.bind_upload(upload(number))
        await store.complete_upload(upload(1), "etag")
        clock.now += 10
        await store.complete_upload(upload(2), "etag")
        await lookup(store, upload(1))
        assert await store.forget_uploads(clock.now) == 1
        assert await lookup(store, upload(1)) is None
        assert await lookup(store, upload(2)) is not None
        assert await lookup(store, upload(3)) is not None
        assert await store.forget_uploads(clock.now) == 0

    # --- owners ---------------------------------------------------------------------------------------------

    async def test_an_object_is_claimed_only_from_the_owner_that_was_seen(self, store: Store) -> None:
        """None before the first claim; a claim that has been overtaken changes nothing and names the owner."""
        assert await store.owner("b", "o") is None
        assert await store.claim("b", "o", "job-1", instead_of=None) == "job-1"
        assert await store.claim("b", "o", "job-2", instead_of=None) == "job-1"
        assert await store.owner("b", "o") == "job-1"
        assert await store.claim("b", "o", "job-2", instead_of="job-1") == "job-2"
        assert await store.claim("b", "o", "job-2", instead_of="job-1") == "job-2"
        assert await store.owner("b", "o") == "job-2"
        assert await store.owner("o", "b") is None

    async def test_of_two_claims_at_once_one_finds_the_other(self, store: Store) -> None:
        """Both saw no owner: both are answered with the same one."""
        claims = (store.claim("b", "o", key, instead_of=None) for key in ("job-1", "job-2"))
        first, second = await asyncio.gather(*claims)
        assert first == second == await store.owner("b", "o")

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
