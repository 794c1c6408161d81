"""R9: to whom an object belongs that no rule maps, and who may still write it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Reason
from gateway.service.waits import Timing
from tests.service.rig import BUCKET, DEAF, Fault, Payload, refusal, rig, rule
from tests.service.sent import elsewhere
from tests.virtual_time import run


def test_without_a_rule_an_object_belongs_to_the_key_that_wrote_it() -> None:
    """R9: another key is a mismatch; none, with a token, is a mismatch; none without is told that one is required."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await r.put(5, b"K", key="o", fence_key="K")
        assert (await refusal(r.put(6, b"M", key="o", fence_key="M"))).reason is Reason.KEY_MISMATCH
        assert (await refusal(r.put(6, b"x", key="o"))).reason is Reason.KEY_MISMATCH
        assert (await refusal(r.put(0, b"x", key="o"))).reason is Reason.TOKEN_REQUIRED
        assert r.data("o") == b"K"
        assert (await r.put(6, b"K2", key="o", fence_key="K")).status == 200

    run(main())


def test_the_object_itself_says_whose_it_is() -> None:
    """R9: the store knows nothing, the metadata does."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await elsewhere(r, 5, b"K", key="o", fence_key="K")
        assert (await refusal(r.put(6, b"M", key="o", fence_key="M"))).reason is Reason.KEY_MISMATCH
        assert r.data("o") == b"K"

    run(main())


@pytest.mark.parametrize("size", [10, 100], ids=["at hand", "streamed"])
def test_a_refused_key_is_refused_again(size) -> None:
    """R9, of the same kind: what the first refusal has seen does not become the second write's condition."""

    async def main() -> None:
        r = await rig(rule("nothing", None))
        await elsewhere(r, 5, b"K", key="o", fence_key="K")
        for _ in range(2):
            error = await refusal(r.put(6, b"M" * size, key="o", fence_key="M"))
            assert error.reason is Reason.KEY_MISMATCH
            assert r.data("o") == b"K"

    run(main())


def test_what_another_key_has_seen_of_a_higher_token_is_no_condition() -> None:
    """G4 under `rekey`, of the same kind: the head that M has looked at bears K's 9; K's 5 does not replace it."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await elsewhere(r, 9, b"K", key="o", fence_key="K")
        r.upstream.faults.append(Fault.REFUSED_403)
        assert (await r.delete(1, key="o", fence_key="M")).status == 403
        assert (await refusal(r.put(5, b"old", key="o", fence_key="K"))).reason is Reason.STALE_TOKEN
        assert r.data("o") == b"K"

    run(main())


def test_rekey_lets_an_object_move() -> None:
    """R9: with `rekey` the next key takes the object over, and then it is its own."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await r.put(5, b"K", key="o", fence_key="K")
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200
        assert r.data("o") == b"M"
        assert await r.store.owner(BUCKET, "o") == "M"

    run(main())


def test_a_move_waits_for_the_other_keys_unsettled_send() -> None:
    """R9: K's send on the object is in doubt; M's waits, is told to come again, and passes when it is settled."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(5, b"K", key="o", fence_key="K"))
        error = await refusal(r.put(1, b"M", key="o", fence_key="M"))
        assert error.reason is Reason.HANDOVER_PENDING
        assert r.data("o") is None
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200

    run(main())


def test_who_waits_for_another_key_is_told_which() -> None:
    """R9: an operator finds the send in doubt by it, and can settle it there."""

    async def main() -> None:
        r = await rig(rule("loose/**", None, rekey=True), timing=Timing(handover_wait_s=0.1), capabilities=DEAF)
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(5, b"K", "loose/o", fence_key="k"))
        error = await refusal(r.put(1, b"M", "loose/o", fence_key="m"))
        assert error.reason is Reason.HANDOVER_PENDING
        assert "A write of 'k' on this object" in error.message
        assert len(await r.fences.settle("k", None, "the store was wiped")) == 1
        assert (await r.put(1, b"M", "loose/o", fence_key="m")).status == 200

    run(main())


def test_of_two_keys_that_claim_at_once_one_is_refused() -> None:
    """R9 also where the upstream honours no condition: K and M meet on an unowned object."""

    async def main() -> None:
        r = await rig(rule("nothing", None), capabilities=DEAF)
        r.upstream.faults = [Fault.SILENT]
        tasks = [asyncio.create_task(r.put(5, key.encode(), key="o", fence_key=key)) for key in ("K", "M")]
        await r.upstream.reached.wait()
        await asyncio.sleep(0)
        r.upstream.silent.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Exception)]
        assert [error.reason for error in refused] == [Reason.KEY_MISMATCH]
        assert len(r.upstream.sent) == 1

    run(main())


def test_after_a_crash_an_object_that_may_move_waits() -> None:
    """R9: M would take the object over, and K's doubt from before the crash is known to nobody."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await r.put(1, b"M", key="other", fence_key="M")
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(5, b"K", key="o", fence_key="K"))
        await r.store.stop(clean=False)
        r = await rig(rule("**", None, rekey=True), store=r.store, upstream=r.upstream)
        assert (await refusal(r.put(1, b"M", key="o", fence_key="M"))).reason is Reason.HANDOVER_PENDING
        await asyncio.sleep(30)
        assert (await r.put(1, b"M", key="o", fence_key="M")).status == 200

    run(main())


def test_a_rule_names_the_key_whatever_the_object_says() -> None:
    """R9: an object that another key wrote moves under the rule's."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 5, b"K", fence_key="K")
        assert (await r.put(1, Payload(b"x" * 100))).status == 200

    run(main())


@pytest.mark.parametrize("what", ["put", "tags"])
def test_where_nothing_else_would_find_out_the_object_is_asked_whose_it_is(what) -> None:
    """R9: no condition protects these writes, and the store knows nothing of the object."""

    async def main() -> None:
        r = await rig(rule("nothing", None), capabilities=DEAF)
        await elsewhere(r, 5, b"K", key="o", fence_key="K")
        query = "?tagging" if what == "tags" else ""
        assert (await refusal(r.put(6, b"M", key="o", fence_key="M", query=query))).reason is Reason.KEY_MISMATCH
        assert r.upstream.sent == []

    run(main())


def test_a_write_without_token_neither_owns_nor_moves_an_object() -> None:
    """R9: what nobody fenced it leaves unowned; what K owns it may not replace, not even where objects may move."""

    async def main() -> None:
        r = await rig(rule("**", None, rekey=True))
        await r.put(0, b"plain", key="free")
        assert await r.store.owner(BUCKET, "free") is None
        await r.put(5, b"K", key="o", fence_key="K")
        assert (await refusal(r.put(0, b"plain", key="o"))).reason is Reason.TOKEN_REQUIRED
        assert r.data("o") == b"K"

    run(main())


def test_an_owner_that_appears_between_look_and_claim_is_found() -> None:
    """R9: K has asked who owns the object, a gateway on the same database claims it for M, K's claim finds M."""

    async def main() -> None:
        r = await rig(rule("nothing", None), capabilities=DEAF)
        owner = r.store.owner

        async def slow_owner(bucket, object_key):
            found = await owner(bucket, object_key)
            if found is None:
                await r.store.claim(BUCKET, "o", "M", instead_of=None)
            return found

        r.store.owner = slow_owner
        assert (await refusal(r.put(5, b"K", key="o", fence_key="K"))).reason is Reason.KEY_MISMATCH
        assert r.data("o") is None

    run(main())
