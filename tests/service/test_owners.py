"""R9: objects without a rule that change hands, found by the explorer (`tests/model`)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject
from gateway.service.batches import Batches
from gateway.stores.base import StoreUnavailable
from tests.service.rig import BUCKET, DEAF, HONEST, Fault, Payload, Rig, refusal, rig, rule
from tests.virtual_time import run

NO_RULE = rule("nothing", None)
MOVES = rule("**", None, rekey=True)


async def after_a_crash(r: Rig, *rules: object) -> Rig:
    """The same gateway, killed and started again."""
    await r.store.stop(clean=False)
    return await rig(*rules, store=r.store, upstream=r.upstream)  # type: ignore[arg-type]


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["honest", "deaf"])
@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
@pytest.mark.parametrize("token", [0, 3], ids=["no token", "token"])
def test_who_found_an_object_unowned_does_not_write_once_another_key_has_it(capabilities, size, token) -> None:
    """A slow write comes to its commit point after K has claimed the object and its write has been answered."""

    async def main() -> None:
        r = await rig(MOVES if token else NO_RULE, capabilities=capabilities)
        body = Payload(length=size)
        slow = asyncio.create_task(r.put(token, body, key="o", fence_key="J"))
        await body.wanted.wait()
        assert (await r.put(1, b"K", key="o", fence_key="K")).status == 200
        body.give(b"j" * size)
        body.end()
        error = await refusal(slow)
        assert error.reason is Reason.HANDOVER_PENDING
        assert r.data("o") == b"K"

    run(main())


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["honest", "deaf"])
def test_after_a_crash_a_claim_waits_for_what_was_sent_without_a_token(capabilities) -> None:
    """Nothing recorded that a write without a token was under way to the object; K's may not be landed upon."""

    async def main() -> None:
        r = await rig(NO_RULE, capabilities=capabilities)
        assert (await r.put(1, b"K", key="elsewhere", fence_key="K")).status == 200
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(0, b"plain", key="o"))
        r = await after_a_crash(r, NO_RULE)
        assert (await refusal(r.put(1, b"K", key="o", fence_key="K"))).reason is Reason.HANDOVER_PENDING
        assert (await r.put(1, b"K2", key="elsewhere", fence_key="K")).status == 200
        await asyncio.sleep(30)
        assert (await r.put(1, b"K", key="o", fence_key="K")).status == 200

    run(main())


@pytest.mark.parametrize("again", [False, True], ids=["once", "and again"])
@pytest.mark.parametrize("one", [NO_RULE, MOVES], ids=["unowned", "rekey"])
def test_after_a_crash_a_claim_waits_for_another_keys_complete(one, again) -> None:
    """A Complete may land as late as its own settle time-out: its object waits for that, another does not. That a
    second Complete has succeeded meanwhile settles nothing."""

    async def main() -> None:
        token = 5 if one is MOVES else 0
        r = await rig(one)
        assert (await r.put(1, b"K", key="elsewhere", fence_key="K")).status == 200
        upload_id = await r.create(token, key="o", fence_key="J")
        etag = (await r.part(upload_id, b"old", key="o")).header("etag") or ""
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.complete(upload_id, etag=etag, key="o"))
        r = await after_a_crash(r, one)
        await asyncio.sleep(31)
        if again:
            assert (await r.complete(upload_id, etag=etag, key="o")).status == 200
        assert (await refusal(r.put(1, b"K", key="o", fence_key="K"))).reason is Reason.HANDOVER_PENDING
        assert (await r.put(1, b"K", key="new", fence_key="K")).status == 200
        await asyncio.sleep(270)
        assert (await r.put(1, b"K", key="o", fence_key="K")).status == 200

    run(main())


def test_after_a_crash_a_batch_takes_no_object_over() -> None:
    """DeleteObjects waits for nothing: an object that changes hands is its own error."""

    async def main() -> None:
        r = await rig(MOVES)
        assert (await r.put(1, b"K", key="elsewhere", fence_key="K")).status == 200
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(5, b"J", key="o", fence_key="J"))
        r = await after_a_crash(r, MOVES)
        refusals = []
        write = r.write("DELETE", "o", 1, None, fence_key="K")
        await Batches(r.writes).delete(
            parse_head("POST", f"/{BUCKET}?delete", Headers([])),
            BUCKET,
            [(BatchObject("o", None, (("Key", "o"),)), write)],
            quiet=False,
            on_refusal=lambda error, _: refusals.append(error.reason),
        )
        assert refusals == [Reason.HANDOVER_PENDING]

    run(main())


def test_a_claim_that_the_store_could_not_record_holds_nobody_up() -> None:
    """The next write asks the store again who owns the object."""

    async def main() -> None:
        r = await rig(NO_RULE)
        claim = r.store.claim

        async def fails(*_args: object, **_options: object) -> str:
            r.store.claim = claim
            raise StoreUnavailable("disk full")

        r.store.claim = fails
        assert (await refusal(r.put(1, b"K", key="o", fence_key="K"))).reason is Reason.STORE_UNAVAILABLE
        assert (await r.put(0, b"plain", key="o")).status == 200
        assert (await r.put(1, b"K", key="o", fence_key=FencingKey("K"))).status == 200

    run(main())


def test_a_second_complete_is_waited_for_after_a_crash() -> None:
    """R5, found by the explorer: one Complete is answered, another of the upload is in doubt; where both win, the other
    may land as late as its settle time-out, which the next start has to know."""

    async def main() -> None:
        r = await rig()
        upload_id = await r.create(33)
        etag = (await r.part(upload_id, b"old")).header("etag") or ""
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.complete(upload_id, etag=etag))
        assert (await r.complete(upload_id, etag=etag)).status == 200
        for _ in range(2):
            r = await after_a_crash(r, rule())
            await asyncio.sleep(31)
            assert (await r.complete(upload_id, etag=etag)).status == 200
        assert (await refusal(r.fences.admit("j", 34, cause="check", wait_s=0))).reason is Reason.HANDOVER_PENDING
        await asyncio.sleep(270)
        live = await r.fences.admit("j", 34, cause="check", wait_s=0)
        r.fences.unpin(live)

    run(main())


async def with_a_new_database(r: Rig, *rules: object) -> Rig:
    """The same gateway with a database that knows nothing."""
    await r.store.stop(clean=True)
    return await rig(*rules, upstream=r.upstream)  # type: ignore[arg-type]


LONG = FencingKey("J" * 400)


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["honest", "deaf"])
@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
@pytest.mark.parametrize("key", [FencingKey("J/ü"), LONG], ids=["in full", "by its hash"])
def test_a_claim_that_the_object_refutes_leaves_no_owner(capabilities, size, key) -> None:
    """After a lost database another key's write claims the object, finds whose it is, and is refused: whose it is
    writes on at once, and the other one is refused as before."""

    async def main() -> None:
        r = await rig(NO_RULE, capabilities=capabilities)
        assert (await r.put(7, b"J", key="o", fence_key=key)).status == 200
        r = await with_a_new_database(r, NO_RULE)
        for _ in range(2):
            assert (await refusal(r.put(9, b"k" * size, key="o", fence_key="K"))).reason is Reason.KEY_MISMATCH
        assert (await refusal(r.put(6, b"stale", key="o", fence_key=key))).reason is Reason.STALE_TOKEN
        assert (await r.put(8, b"J2", key="o", fence_key=key)).status == 200
        assert (await refusal(r.put(9, b"K", key="o", fence_key="K"))).reason is Reason.KEY_MISMATCH
        assert r.data("o") == b"J2"

    run(main())


def test_a_claim_stays_while_something_of_its_key_may_still_land() -> None:
    """What the object says is believed once nothing can make it say something else without the new owner's waiting."""

    async def main() -> None:
        r = await rig(NO_RULE)
        assert (await r.put(7, b"J", key="o", fence_key="J")).status == 200
        r = await with_a_new_database(r, NO_RULE)
        upload_id = await r.create(9, key="o", fence_key="K")
        etag = (await r.part(upload_id, b"K", key="o")).header("etag") or ""
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.complete(upload_id, etag=etag, key="o"))
        for again in (r, await after_a_crash(r, NO_RULE)):
            assert (await refusal(again.put(9, b"K", key="o", fence_key="K"))).reason is Reason.KEY_MISMATCH
            assert await again.store.owner(BUCKET, "o") == "K"
        await asyncio.sleep(301)
        assert (await refusal(again.put(9, b"K", key="o", fence_key="K"))).reason is Reason.KEY_MISMATCH
        assert (await again.put(8, b"J2", key="o", fence_key="J")).status == 200

    run(main())
