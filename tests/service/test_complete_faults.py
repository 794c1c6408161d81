"""A Complete that fails, whose answer is lost, or that comes twice: what it is answered, and what is kept of its
binding (G5, R5, R6)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Outcome, Reason
from gateway.s3.errors import S3Error
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import UploadState
from tests.service.rig import BUCKET, JOB, Fault, elapsed, refusal, rig
from tests.service.test_upload_faults import abort
from tests.service.test_uploads import ready
from tests.virtual_time import run


def test_a_completion_that_could_not_be_recorded_is_recorded_later() -> None:
    """R6: a repeated Complete is then answered again, and no start has to wait for the upload; found by simulation."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        complete = r.store.uploads.complete

        async def full(upload, etag):
            r.store.uploads.complete = complete
            raise StoreUnavailable("disk is full")

        r.store.uploads.complete = full
        assert (await r.complete(upload_id, etag=etag)).status == 200
        for _ in range(40):
            await asyncio.sleep(1)
        assert (await r.store.uploads.bound(BUCKET, JOB, upload_id)).state is UploadState.COMPLETED

    run(main())


def test_two_completes_that_both_succeed_end_one_upload() -> None:
    """R6: another upload of the key is still revoked when it is overtaken; found by simulation."""

    async def main() -> None:
        r = await rig()
        await r.create(33, key="renders/j/other")
        upload_id, etag = await ready(r)
        read, looking, look_on = r.upstream.read, asyncio.Event(), asyncio.Event()

        async def slow(request, body=b""):
            if not request.raw_key.endswith("/"):
                looking.set()
                await look_on.wait()
            return await read(request, body)

        r.upstream.faults, r.upstream.read = [Fault.SILENT], slow
        r.upstream.reached.clear()
        first = asyncio.create_task(r.complete(upload_id, etag=etag))
        await r.upstream.reached.wait()
        assert (await r.complete(upload_id, etag=etag)).status == 200
        r.upstream.silent.set()
        await looking.wait()
        await asyncio.sleep(1)
        assert (await r.store.uploads.bound(BUCKET, JOB, upload_id)).state is UploadState.COMPLETED
        look_on.set()
        assert (await first).status == 200
        assert r.uploads.bindings.open_of("j") == 1
        await r.put(34, b"new")
        await asyncio.sleep(100)
        assert r.upstream.uploads == {}

    run(main())


@pytest.mark.parametrize("fault", [Fault.REFUSED_403, Fault.NOT_REACHED], ids=lambda fault: fault.name)
def test_a_complete_that_is_refused_or_not_sent_leaves_no_doubt(fault) -> None:
    """R5: final; the next token does not wait 300 s."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        r.upstream.faults = [fault]
        if fault is Fault.NOT_REACHED:
            assert (await refusal(r.complete(upload_id, etag=etag))).outcome is Outcome.NOT_APPLIED
        else:
            assert (await r.complete(upload_id, etag=etag)).code == "AccessDenied"
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == 0

    run(main())


def test_an_object_that_was_there_before_does_not_answer_for_a_complete() -> None:
    """G5: the answer is lost, what the object bears is another write's nonce."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_DROPPED]
        error = await refusal(r.complete(upload_id, etag=etag))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)
        assert r.data() == b"A"

    run(main())


@pytest.mark.parametrize("status", [400, 500])
def test_a_look_that_fails_takes_no_doubt_from_a_complete(status) -> None:
    """G5: the answer is lost and a HEAD is refused: `Unknown`."""

    async def main() -> None:
        from gateway.upstream.memory import MemoryResponse

        r = await rig()
        upload_id, etag = await ready(r)
        read = r.upstream.read

        async def failing(request, body=b""):
            of_folder = request.raw_key.endswith("/")
            return await read(request, body) if of_folder else MemoryResponse(status, [], b"")

        r.upstream.read = failing
        r.upstream.faults = [Fault.LOST_DROPPED]
        error = await refusal(r.complete(upload_id, etag=etag))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)

    run(main())


@pytest.mark.parametrize("crashed_before", [False, True])
def test_an_upload_aborted_while_its_complete_may_land_is_remembered_over_a_crash(crashed_before) -> None:
    """R5: SDKs abort after a Complete whose answer is lost. What the store has begun to assemble may still appear, and
    a start that is not clean waits for it as long; afterwards the id means nothing any more."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_LATE]
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.IN_DOUBT
        if crashed_before:
            await r.uploads.bindings.stop()
            await r.store.stop(clean=False)
            r = await rig(store=r.store, upstream=r.upstream)
        assert (await abort(r, upload_id)).status == 204
        await r.uploads.bindings.stop()
        await r.store.stop(clean=False)
        r = await rig(store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=1000))
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(300, abs=0.1)
        await asyncio.sleep(1)
        assert await r.store.uploads.unfinished(None, 10) == []

    run(main())


def test_an_upload_aborted_while_its_complete_may_land_is_forgotten_once_it_cannot() -> None:
    """Its id means nothing any more; a Complete that turns out to have succeeded is answered so all the same."""

    async def main() -> None:
        r = await rig()
        lost, etag = await ready(r)
        landed, etag_2 = await ready(r)
        for upload_id, part in ((lost, etag), (landed, etag_2)):
            r.upstream.faults = [Fault.LOST_LATE]
            await refusal(r.complete(upload_id, etag=part))
        r.upstream.late.pop(0)
        r.upstream.land()
        assert (await abort(r, lost)).status == 204
        assert (await abort(r, landed)).code == "NoSuchUpload"
        assert (await r.complete(landed, etag=etag_2)).status == 200
        await asyncio.sleep(400)
        assert await r.store.uploads.bound(BUCKET, JOB, lost) is None
        assert (await r.store.uploads.bound(BUCKET, JOB, landed)).state is UploadState.COMPLETED
        assert (await abort(r, landed)).code == "NoSuchUpload"
        assert (await r.complete(landed, etag=etag_2)).status == 200

    run(main())


def test_the_binding_of_a_completed_upload_is_kept_for_days_and_not_for_ever() -> None:
    """R6: a repeated Complete is answered while the binding is kept."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        await r.complete(upload_id, etag=etag)
        await asyncio.sleep(6 * 86400)
        assert (await r.complete(upload_id, etag=etag)).status == 200
        await asyncio.sleep(2 * 86400)
        with pytest.raises(S3Error) as caught:
            await r.complete(upload_id, etag=etag)
        assert caught.value.code == "NoSuchUpload"

    run(main())
