"""R5 after a restart: what an earlier run has sent, and who waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import Reason
from gateway.service.waits import Timing
from gateway.stores.values import Start
from tests.service.rig import JOB, Fault, elapsed, refusal, rig
from tests.virtual_time import run


async def _crashed(r, *, fault: Fault) -> None:
    """Token 33 has written; a further send of it is in doubt when the process ends without a word."""
    await r.put(33, b"A")
    r.upstream.faults = [fault]
    await refusal(r.put(33, b"A2"))
    await r.store.stop(clean=False)


def test_after_an_unclean_start_the_completed_floor_goes_on_and_a_higher_token_waits() -> None:
    """R5: 33 writes at once; 34 waits out one settle time-out from the start."""

    async def main() -> None:
        r = await rig()
        await _crashed(r, fault=Fault.LOST_LATE)
        r = await rig(store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=60))
        _, seconds = await elapsed(r.put(33, b"A3"))
        assert seconds == 0
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_after_a_clean_stop_nobody_waits() -> None:
    """R5: a clean mark says that nothing is unsettled."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await r.store.stop(clean=True)
        r = await rig(store=r.store, upstream=r.upstream)
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_a_crash_between_raise_and_hand_over_is_remembered() -> None:
    """Counterexample (completed floor): 34 was raised and not completed; after the crash even 34 waits."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=1))
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.put(33, b"A"))
        assert (await refusal(r.put(34, b"B"))).reason is Reason.HANDOVER_PENDING
        await r.store.stop(clean=False)
        r = await rig(store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=60))
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(30, abs=0.1)
        assert r.data() == b"B"
        assert (await refusal(r.put(33, b"A"))).reason is Reason.STALE_TOKEN

    run(main())


def test_keys_with_open_uploads_wait_for_the_longer_timeout() -> None:
    """R5: a Complete may land later than a PUT; only keys with open bindings wait for it."""

    async def main() -> None:
        r = await rig()
        await r.create(33)
        await r.put(33, b"x", key="renders/other/out")
        await r.store.stop(clean=False)
        r = await rig(store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=1000))
        _, seconds = await elapsed(r.put(34, b"B", key="renders/other/out"))
        assert seconds == pytest.approx(30, abs=0.1)
        _, seconds = await elapsed(r.put(34, b"B", key=JOB))
        assert seconds == pytest.approx(270, abs=0.1)

    run(main())


def test_where_nobody_knows_what_was_under_way_all_keys_wait_for_the_longer_timeout() -> None:
    """R5: a restored database does not know which Completes and copies were sent since its backup was made."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await r.put(1, b"J", key="free", fence_key="J")
        await r.store.stop(clean=False)
        start = r.store.start

        async def restored(rules_digest: str) -> Start:
            return replace(await start(rules_digest), bindings_known=False)

        r.store.start = restored
        r = await rig(store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=1000))
        _, seconds = await elapsed(r.put(33, b"A2"))
        assert seconds == 0
        assert (await refusal(r.put(1, b"J", key="moves", fence_key="J"))).reason is Reason.HANDOVER_PENDING
        assert r.fences.earlier_run.unsettled
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(300, abs=0.1)
        assert (await r.put(1, b"J", key="moves", fence_key="J")).status == 200

    run(main())


def test_a_stop_while_an_earlier_run_is_unsettled_is_not_clean() -> None:
    """R5: what the crashed run sent may still land after a second, orderly run has come and gone."""

    async def main() -> None:
        r = await rig()
        await _crashed(r, fault=Fault.LOST_LATE)
        r = await rig(store=r.store, upstream=r.upstream)
        assert r.fences.earlier_run.unsettled
        await asyncio.sleep(31)
        assert not r.fences.earlier_run.unsettled

    run(main())
