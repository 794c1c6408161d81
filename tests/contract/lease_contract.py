"""What every store promises of leases (gateway/stores/base.py), a test for each promise.

Run as `tests.contract.stores` says.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import Event, EventKind, Fence, Grant, GrantWanted
from tests.contract.stores import MAX, RULES, Clock, OpenStore

PER_GENERATION = 2**40


def wanted(holder: str = "A", *, instead_of: int = 0, idempotency_key: str = "") -> GrantWanted:
    repeatable = ("leases/job", idempotency_key) if idempotency_key else None
    return GrantWanted(holder, 30.0, f"{holder}'s request", instead_of, repeatable)


class LeaseContract:
    async def test_a_grant_is_one_above_the_floor(self, store: Store, clock: Clock) -> None:
        """Whoever raised that floor; the fence tells whose the token is, since when and for which request."""
        await store.raise_floor("job", 33)
        granted = await store.grant("job", wanted())
        assert granted.token == 34
        grant = Grant(34, "A", 30.0, clock.now, "A's request")
        assert granted.fence == await store.fence("job") == Fence("job", 34, raised_at=clock.now, grant=grant)
        assert granted.fence.held == grant

    async def test_a_held_key_is_granted_to_nobody_else(self, store: Store) -> None:
        """Neither to another nor to the same holder asking anew; nothing changes."""
        await store.grant("job", wanted("A"))
        for holder in "BA":
            refused = await store.grant("job", wanted(holder))
            assert (refused.token, refused.fence.floor) == (0, 1)
            assert refused.fence.held is not None
            assert refused.fence.held.holder == "A"

    async def test_a_lease_that_ran_out_is_taken_over_by_who_knows_it(self, store: Store) -> None:
        """The token in the way is named: another one that has been granted meanwhile stands."""
        await store.grant("job", wanted("A"))
        assert (await store.grant("job", wanted("B", instead_of=1))).token == 2
        assert (await store.grant("job", wanted("C", instead_of=1))).token == 0
        fence = await store.fence("job")
        assert fence.held is not None
        assert (fence.held.holder, fence.floor) == ("B", 2)

    async def test_of_many_grants_at_once_one_is_made(self, store: Store) -> None:
        """Decided in one transaction or in many: the others find it."""
        outcomes = await asyncio.gather(*(store.grant("job", wanted(f"w{n}")) for n in range(64)))
        assert sorted(outcome.token for outcome in outcomes) == [0] * 63 + [1]

    async def test_a_sealed_lease_is_not_held(self, store: Store) -> None:
        """Released: the next grant is higher, and the floor has stayed."""
        await store.grant("job", wanted("A"))
        released = await store.seal("job", 1)
        assert (released.held, released.floor, released.granted_token) == (None, 1, 1)
        assert (await store.grant("job", wanted("B"))).token == 2

    async def test_an_overtaken_lease_is_not_held(self, store: Store) -> None:
        """An operator's raise, or a token found on an object, ends it; the token granted last is still known."""
        await store.grant("job", wanted("A"))
        raised = await store.raise_floor("job", 7)
        assert (raised.held, raised.granted_token) == (None, 1)
        assert (await store.grant("job", wanted("B"))).token == 8

    async def test_no_token_comes_twice_through_releases_and_restarts(self, open_store: OpenStore) -> None:
        """However a run ends, the next one goes on above it."""
        tokens = []
        for clean in (True, False, True):
            store = await open_store()
            await store.start(RULES)
            for _ in range(3):
                tokens.append((await store.grant("job", wanted())).token)
                await store.seal("job", tokens[-1])
            await store.stop(clean=clean)
        assert tokens == sorted(set(tokens))

    async def test_a_restart_keeps_who_holds(self, open_store: OpenStore) -> None:
        """Holder, time and request are there again, and so is what a repeated call is answered."""
        store = await open_store()
        await store.start(RULES)
        before = (await store.grant("job", wanted(idempotency_key="once"))).fence
        await store.stop(clean=True)
        store = await open_store()
        await store.start(RULES)
        assert await store.fence("job") == before
        assert await store.granted_before("leases/job", "once") == 1
        await store.stop(clean=True)

    async def test_a_new_generation_begins_above_all_earlier_tokens(self, store: Store) -> None:
        """Also on keys that have a floor, and never below one (R10)."""
        await store.raise_generation(0)
        await store.raise_floor("beyond", 3 * PER_GENERATION)
        assert (await store.grant("job", wanted())).token == PER_GENERATION + 1
        assert (await store.grant("beyond", wanted())).token == 3 * PER_GENERATION + 1

    async def test_a_key_at_its_last_token_grants_nothing(self, store: Store) -> None:
        """There is none above it, and the calls beside it do not suffer."""
        await store.raise_floor("job", MAX)
        refused, other = await asyncio.gather(store.grant("job", wanted()), store.grant("other", wanted()))
        assert (refused.token, refused.fence.floor, refused.fence.held) == (0, MAX, None)
        assert other.token == 1

    async def test_a_grant_records_its_event_with_its_token(self, store: Store, clock: Clock) -> None:
        """What was not granted leaves no line."""
        line = Event("job", EventKind.GRANTED, 0, 0, "A for 30 s", "request-1")
        await store.grant("job", wanted("A"), line)
        await store.grant("job", wanted("B"), line)
        (found,) = await store.events("job", None, 10)
        assert found == line._replace(token=1, at=clock.now, serial=found.serial)

    async def test_a_repeatable_grant_is_found_again(self, store: Store, clock: Clock) -> None:
        """By its scope and key, until it is forgotten; one that was not made is not found."""
        assert await store.granted_before("leases/job", "once") == 0
        await store.grant("job", wanted(idempotency_key="once"))
        await store.grant("job", wanted("B", idempotency_key="in vain"))
        clock.now += 10
        await store.grant("job", wanted("C", instead_of=1, idempotency_key="later"))
        assert await store.granted_before("leases/job", "once") == 1
        assert await store.granted_before("leases/other", "once") == 0
        assert await store.granted_before("leases/job", "in vain") == 0
        assert await store.granted_before("leases/job", "later") == 2
        assert await store.forget_grants(clock.now) == 1
        assert await store.granted_before("leases/job", "once") == 0
        assert await store.granted_before("leases/job", "later") == 2

    async def test_held_keys_are_listed(self, store: Store) -> None:
        """In order, after the cursor, with the prefix; not the released, the overtaken, or those without a lease."""
        for key in ("c", "a", "b/2", "b/1", "released", "overtaken"):
            await store.grant(key, wanted())
        await store.seal("released", 1)
        await store.raise_floor("overtaken", 2)
        await store.raise_floor("without", 2)

        async def listed(after: str | None, limit: int, prefix: str = "") -> list[str]:
            return [fence.key for fence in await store.leases(after, limit, prefix)]

        assert await listed(None, 100) == ["a", "b/1", "b/2", "c"]
        assert await listed("a", 2) == ["b/1", "b/2"]
        assert await listed(None, 100, "b/") == ["b/1", "b/2"]

    async def test_what_has_no_utf8_form_is_an_error(self, store: Store) -> None:
        """It is refused before it reaches anybody else's transaction."""
        for key, holder in (("\ud800", "A"), ("job", "\ud800")):
            with pytest.raises(ValueError):
                await store.grant(key, wanted(holder))
        assert await store.fence("job") == Fence("job")

    async def test_a_closed_store_grants_nothing(self, store: Store) -> None:
        """It fails closed."""
        await store.stop(clean=True)
        for call in (store.grant("job", wanted()), store.leases(None, 1), store.granted_before("a", "b")):
            with pytest.raises(StoreUnavailable, match="closed"):
                await call
        await store.start(RULES)
