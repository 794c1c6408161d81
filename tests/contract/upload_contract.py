"""What every store promises of uploads, and of whose an object is (gateway/stores/base.py), a test for each promise."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.stores.base import Store
from gateway.stores.values import UploadState
from tests.contract.stores import Clock, lookup, upload


class UploadContract:
    # --- uploads --------------------------------------------------------------------------------------------

    async def test_an_upload_is_bound_once(self, store: Store, clock: Clock) -> None:
        """The binding comes back whole; a second one is an error and changes nothing."""
        assert await lookup(store, upload()) is None
        await store.uploads.bind(upload())
        bound = replace(upload(), changed_at=clock.now)
        assert await lookup(store, upload()) == bound
        with pytest.raises(ValueError):
            await store.uploads.bind(replace(upload(), token=34))
        assert await lookup(store, upload()) == bound

    async def test_of_two_bindings_at_once_one_is_made(self, store: Store) -> None:
        """The loser is told, and it alone."""
        outcomes = await asyncio.gather(
            *(store.uploads.bind(replace(upload(), nonce=nonce)) for nonce in "xy"),
            store.uploads.bind(upload(2)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, type(None)]
        bound = await lookup(store, upload())
        assert bound is not None
        assert bound.nonce == "x"

    async def test_a_completed_upload_keeps_its_etag(self, store: Store, clock: Clock) -> None:
        """A repeated Complete can be answered, and the upload is no longer open."""
        await store.uploads.bind(upload())
        await lookup(store, upload())
        clock.now += 1
        await store.uploads.complete(upload(), '"etag"')
        assert await lookup(store, upload()) == replace(
            upload(), state=UploadState.COMPLETED, etag='"etag"', changed_at=clock.now
        )
        assert await store.uploads.unfinished(None, 10) == []

    async def test_only_the_bound_token_changes_an_upload(self, store: Store) -> None:
        """Whoever acts for another token than the binding's changes nothing."""
        await store.uploads.bind(upload())
        zombie = replace(upload(), token=32)
        await store.uploads.complete(zombie, '"etag"')
        await store.uploads.close(zombie)
        bound = await lookup(store, upload())
        assert bound is not None
        assert bound.state is UploadState.OPEN

    async def test_a_closed_upload_is_forgotten(self, store: Store) -> None:
        """After an abort the upload id is unknown, and may be bound anew."""
        await store.uploads.bind(upload())
        await lookup(store, upload())
        await store.uploads.close(upload())
        assert await lookup(store, upload()) is None
        await store.uploads.bind(upload())

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
            await store.uploads.bind(upload(number, key=key, token=token))
        await store.uploads.complete(upload(5), "etag")
        await lookup(store, upload(1))
        clock.now += 1

        async def revoked(below: int) -> list[str]:
            uploads = await store.uploads.revoke("job", below)
            assert {one.state for one in uploads} <= {UploadState.REVOKED}
            return [one.upload_id for one in uploads]

        assert await revoked(33) == []
        assert await revoked(34) == ["upload-1"]
        one = await lookup(store, upload(1))
        assert one == replace(upload(1), state=UploadState.REVOKED, changed_at=clock.now)
        assert await revoked(35) == ["upload-1", "upload-2"]
        await store.uploads.close(upload(1))
        assert await revoked(35) == ["upload-2"]

    async def test_an_aborted_upload_is_kept_for_a_while(self, store: Store, clock: Clock) -> None:
        """Only a revoked one can be marked; it is listed no more, and forgotten with age."""
        await store.uploads.bind(upload())
        await store.uploads.mark_aborted(upload())
        found = await lookup(store, upload())
        assert found is not None
        assert found.state is UploadState.OPEN
        (revoked,) = await store.uploads.revoke("job", 34)
        await store.uploads.mark_aborted(revoked)
        found = await lookup(store, upload())
        assert found is not None
        assert found.state is UploadState.ABORTED
        assert await store.uploads.revoke("job", 34) == []
        assert await store.uploads.unfinished(None, 10) == []
        assert await store.uploads.forget(clock.now + 1) == 1
        assert await lookup(store, upload()) is None

    async def test_a_copy_under_way_is_listed_and_never_revoked(self, store: Store) -> None:
        """It is no upload that could be aborted; it is there until it is closed."""
        copying = replace(upload(), state=UploadState.COPYING)
        await store.uploads.bind(copying)
        assert [found.state for found in await store.uploads.unfinished(None, 10)] == [UploadState.COPYING]
        assert await store.uploads.revoke("job", 34) == []
        await store.uploads.close(copying)
        assert await store.uploads.unfinished(None, 10) == []

    async def test_open_uploads_are_listed_in_order(self, store: Store) -> None:
        """OPEN and REVOKED, by (bucket, object, upload id), after the cursor, at most so many."""
        for number, bucket in ((3, "a"), (1, "b"), (2, "a"), (4, "a")):
            await store.uploads.bind(upload(number, bucket=bucket))
        await store.uploads.complete(upload(4, bucket="a"), "etag")
        await store.uploads.revoke("job", 34)
        await store.uploads.bind(upload(5, bucket="c"))

        async def listed(after: tuple[str, str, str] | None, limit: int) -> list[str]:
            return [one.upload_id for one in await store.uploads.unfinished(after, limit)]

        assert await listed(None, 10) == ["upload-2", "upload-3", "upload-1", "upload-5"]
        assert await listed(None, 1) == ["upload-2"]
        assert await listed(("a", "object-2", "upload-2"), 2) == ["upload-3", "upload-1"]
        assert await listed(("c", "object-5", "upload-5"), 2) == []

    async def test_old_completed_uploads_are_forgotten(self, store: Store, clock: Clock) -> None:
        """Only COMPLETED ones that changed before the given time."""
        for number in (1, 2, 3):
            await store.uploads.bind(upload(number))
        await store.uploads.complete(upload(1), "etag")
        clock.now += 10
        await store.uploads.complete(upload(2), "etag")
        await lookup(store, upload(1))
        assert await store.uploads.forget(clock.now) == 1
        assert await lookup(store, upload(1)) is None
        assert await lookup(store, upload(2)) is not None
        assert await lookup(store, upload(3)) is not None
        assert await store.uploads.forget(clock.now) == 0

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
