"""R7: DeleteObjects, decided object by object."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import FenceError, Reason
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject
from gateway.service.batches import Batches
from gateway.service.fences import Timing
from tests.service.rig import BUCKET, DEAF, Fault, elapsed, refusal, rig
from tests.virtual_time import run

HEAD = parse_head("POST", f"/{BUCKET}?delete", Headers([]))


async def delete(r, *wanted: tuple[str, int | None], quiet: bool = False) -> tuple[bytes, list[FenceError]]:
    """Delete objects, each with its token (None: no fence covers it); answers the body and the refusals."""
    refusals: list[FenceError] = []
    writes = [
        (BatchObject(key, None, (("Key", key),)), None if token is None else r.write("DELETE", key, token, None))
        for key, token in wanted
    ]
    result = await Batches(r.writes).delete(
        HEAD, BUCKET, writes, quiet=quiet, on_refusal=lambda error, _: refusals.append(error)
    )
    assert result.status == 200
    return result.body, refusals


def test_what_is_refused_is_its_own_error_and_the_rest_goes_through() -> None:
    """One stale, one with the right token, one without a fence: one request upstream."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        await r.put(0, b"3", key="plain")
        sent = len(r.upstream.sent)
        body, refusals = await delete(r, ("renders/a/o", 33), ("renders/b/o", 5), ("plain", None))
        assert [error.reason for error in refusals] == [Reason.STALE_TOKEN]
        assert b"<Error><Key>renders/a/o</Key><Code>PreconditionFailed</Code>" in body
        assert b"<Deleted><Key>renders/b/o</Key></Deleted>" in body
        assert b"<Deleted><Key>plain</Key></Deleted>" in body
        assert [r.data(key) for key in ("renders/a/o", "renders/b/o", "plain")] == [b"1", None, None]
        assert len(r.upstream.sent) == sent + 1

    run(main())


def test_all_refused_sends_nothing() -> None:
    """There is nothing left to ask the upstream for."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        sent = len(r.upstream.sent)
        _, refusals = await delete(r, ("renders/a/o", 33))
        assert len(refusals) == 1
        assert len(r.upstream.sent) == sent

    run(main())


def test_a_pending_hand_over_is_that_objects_error_and_nobody_waits() -> None:
    """A batch never holds one gate while it waits for another."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"1", key="renders/a/o"))
        (_, refusals), seconds = await elapsed(delete(r, ("renders/a/o", 34), ("renders/b/o", 1)))
        assert [error.reason for error in refusals] == [Reason.HANDOVER_PENDING]
        assert seconds == 0

    run(main())


@pytest.mark.parametrize("fault", [Fault.LOST_DROPPED, Fault.ERROR_500_DROPPED, Fault.EMPTY_200], ids=lambda f: f.name)
def test_a_lost_answer_leaves_every_object_in_doubt(fault) -> None:
    """The hand-overs of all their keys wait for the settle time-out."""

    async def main() -> None:
        r = await rig(capabilities=DEAF, timing=Timing(handover_wait_s=60))
        await r.put(5, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        r.upstream.faults = [fault]
        with pytest.raises(FenceError):
            await delete(r, ("renders/a/o", 5), ("renders/b/o", 5))
        times = [elapsed(r.put(6, b"x", key=f"renders/{job}/o")) for job in "ab"]
        for _, seconds in await asyncio.gather(*times):
            assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_quiet_names_the_errors_alone() -> None:
    """As on S3."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        body, _ = await delete(r, ("renders/a/o", 33), ("renders/b/o", 5), quiet=True)
        assert b"<Deleted>" not in body
        assert b"<Error>" in body

    run(main())
