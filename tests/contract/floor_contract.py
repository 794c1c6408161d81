"""What every store promises of floors and of a key's history (gateway/stores/base.py), a test for each promise."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores.base import Store
from gateway.stores.values import EventKind, Fence
from tests.contract.stores import MAX, Clock, event, flush


class FloorContract:
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
        assert history[0] == event(EventKind.RAISED, token=34, detail="PUT b/k")._replace(
            at=clock.now, serial=history[0].serial
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

    async def test_a_floor_that_stays_is_answered_with_what_waits_for_the_disk(self, store: Store) -> None:
        """Completed and shadow floors as they will be written, as where it rises."""
        await store.raise_floor("job", 7)
        store.complete_handover("job", 7)
        await store.raise_shadow("job", 9)
        for token in (7, 3):
            fence = await store.raise_floor("job", token)
            assert (fence.floor, fence.completed_floor, fence.shadow_floor) == (7, 7, 9)

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
        assert line == event(detail="PUT b/käse")._replace(at=clock.now, serial=line.serial)
        assert line.serial > 0

    async def test_no_alike_event_is_lost(self, store: Store) -> None:
        """Alike events in a row may share a line, and then it counts them; a different one ends the row."""
        for detail in ("a", "a", "a", "b", "a"):
            store.record(event(detail=detail))
            store.record(event(key="other"))
        await flush(store)
        lines = await store.events("job", None, 10)
        told = [line.detail for line in reversed(lines) for _ in range(line.times)]
        assert told == ["a", "a", "a", "b", "a"]
        assert sum(line.times for line in await store.events("other", None, 10)) == 5
        assert store.dropped_events == 0

    async def test_text_that_is_not_utf8_spoils_no_history(self, store: Store) -> None:
        """What a client sent as bytes is made readable, and the events beside it are kept."""
        store.record(event(detail="PUT \udcff"))
        store.record(event(detail="fine"))
        await flush(store)
        assert [line.detail for line in await store.events("job", None, 9)] == ["fine", "PUT ?"]
