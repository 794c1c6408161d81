"""R6 where a call does not get through: what its client is told, and what is known of the upload afterwards."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, Token
from gateway.s3.fencing import NOTHING_CLAIMED
from gateway.stores.values import GrantWanted
from gateway.upstream.base import UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.service.job_desk import BreakableStore
from tests.service.rig import JOB, Fault, refusal, rig
from tests.service.test_upload_faults import abort
from tests.service.test_uploads import ready
from tests.virtual_time import VirtualClock, run


def test_an_upload_whose_abort_does_not_get_through_keeps_no_other_of_its_key() -> None:
    """R6: of two that are overtaken, one is thrown away at once, the other when it is tried again."""

    async def main() -> None:
        r = await rig()
        stuck, _ = [await r.create(33) for _ in range(2)]
        send, away = r.upstream.send, True

        async def sent(request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
            if away and stuck in request.raw_query:
                raise UpstreamNotReached("connection refused")
            return await send(request, body, timeout_s)

        r.upstream.send = sent  # type: ignore[method-assign]
        await r.fences.found(FencingKey("j"), Token(34), "on an object")
        await asyncio.sleep(1)
        assert list(r.upstream.uploads) == [stuck]
        away = False
        await asyncio.sleep(60)
        assert r.upstream.uploads == {}

    run(main())


def test_what_overtakes_an_upload_without_waiting_hands_over_with_its_revocation() -> None:
    """R6: a grant that nobody confirms; the upload is thrown away, and the completed floor is on record."""

    async def main() -> None:
        r = await rig()
        await r.create(33)
        await r.fences.grant(FencingKey("j"), lambda: r.store.grant("j", GrantWanted("A", 30, "grant")))
        await asyncio.sleep(1)
        assert r.upstream.uploads == {}
        fence = await r.store.fence("j")
        assert (fence.floor, fence.completed_floor) == (34, 34)

    run(main())


def test_an_upload_call_whose_database_fails_says_try_again() -> None:
    """The binding cannot be read, or not be closed: the client is told so, and sends the request again."""

    async def main() -> None:
        r = await rig(store=BreakableStore(clock=VirtualClock().wall))
        upload_id, etag = await ready(r)
        write = r.write("DELETE", JOB, 0, None, query=f"?uploadId={upload_id}")
        upload = await r.uploads.bound(write, NOTHING_CLAIMED)
        r.store.broken = True
        for call in (r.complete(upload_id, etag=etag), r.uploads.abort(write, upload)):
            assert (await refusal(call)).reason is Reason.STORE_UNAVAILABLE

    run(main())


@pytest.mark.parametrize("fault", [Fault.NOT_REACHED, Fault.LOST_DROPPED], ids=lambda fault: fault.name)
def test_an_upload_call_that_does_not_get_through_says_try_again(fault) -> None:
    """Create and Abort have no visible effect: nothing of them is in doubt."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [fault]
        assert (await refusal(r.create(33))).reason is Reason.UPSTREAM_UNAVAILABLE
        upload_id = await r.create(33)
        r.upstream.faults = [fault]
        assert (await refusal(abort(r, upload_id))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert r.fences.unsettled() == []

    run(main())


def test_a_complete_in_doubt_forgets_what_was_known_of_the_object() -> None:
    """R4: it may have replaced the object. A write that streams, and cannot be sent twice, looks before it is sent."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"before")
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_LATE]
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.IN_DOUBT
        r.upstream.land()
        assert (await r.put(33, b"x" * 100)).status == 200

    run(main())
