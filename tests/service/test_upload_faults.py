"""R6 when something fails: bindings, Completes without a clear answer, and the revoking of what is overtaken."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.core.errors import Outcome, Reason
from gateway.core.keys import FencingKey, Token, WithoutToken
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Upload, UploadState
from tests.service.between import answers_late, held
from tests.service.rig import BUCKET, JOB, Fault, elapsed, refusal, rig, rule
from tests.service.test_uploads import ready
from tests.virtual_time import run


async def abort(r, upload_id: str):
    """The client throws its upload away."""
    write = r.write("DELETE", JOB, 0, None, query=f"?uploadId={upload_id}")
    return await r.uploads.abort(write, await r.uploads.bound(write, NOTHING_CLAIMED))


def test_create_is_admitted_like_any_write() -> None:
    """R1, R3: it raises the floor, and a lower one is refused before anything is sent."""

    async def main() -> None:
        r = await rig()
        await r.create(34)
        assert await r.floor() == 34
        sent = len(r.upstream.sent)
        assert (await refusal(r.create(33))).reason is Reason.STALE_TOKEN
        assert len(r.upstream.sent) == sent

    run(main())


def test_an_upload_that_cannot_be_bound_is_not_answered_and_leaves_nothing() -> None:
    """R6: the binding is durable before the client learns the id."""

    async def main() -> None:
        r = await rig()

        async def full(upload):
            raise StoreUnavailable("disk is full")

        r.store.uploads.bind = full
        assert (await refusal(r.create(33))).reason is Reason.STORE_UNAVAILABLE
        assert r.upstream.uploads == {}

    run(main())


async def _overtaken(r) -> UploadState | None:
    """A higher token comes; answers what has become of the first upload's binding."""
    await r.put(34, b"new")
    for _ in range(20):
        await asyncio.sleep(1)
    upload = next(iter(r.store.uploads._bound.values()), None)
    return None if upload is None else upload.state


@pytest.mark.parametrize("reached", [True, False])
def test_an_upload_whose_binding_is_durable_although_the_store_failed_leaves_none(reached: bool) -> None:
    """R6: of a store that fails nobody knows whether it has done what it was asked; found by simulation. Where the
    object store cannot be told either, the upload is revoked like any."""

    async def main() -> None:
        r = await rig()
        bind = r.store.uploads.bind

        async def bound_and_failed(upload):
            await bind(upload)
            if not reached:
                r.upstream.faults.append(Fault.NOT_REACHED)
            raise StoreUnavailable("disk I/O error")

        r.store.uploads.bind = bound_and_failed
        assert (await refusal(r.create(33))).reason is Reason.STORE_UNAVAILABLE
        assert await _overtaken(r) is (None if reached else UploadState.ABORTED)
        assert r.upstream.uploads == {}
        assert r.uploads.bindings.open_of("j") == 0

    run(main())


def test_an_upload_that_could_not_be_bound_does_not_count_as_open_for_ever() -> None:
    """R6: nobody has been told of it; the store has no binding, and the object store no upload."""

    async def main() -> None:
        r = await rig()
        bind = r.store.uploads.bind

        async def full(upload):
            raise StoreUnavailable("disk is full")

        r.store.uploads.bind = full
        assert (await refusal(r.create(33))).reason is Reason.STORE_UNAVAILABLE
        r.store.uploads.bind = bind
        await asyncio.sleep(60)
        assert r.uploads.bindings.open_of("j") == 0
        await r.create(33)
        assert r.uploads.bindings.open_of("j") == 1

    run(main())


@pytest.mark.parametrize("overtaken_first", [False, True])
def test_an_upload_whose_client_goes_while_it_is_bound_is_revoked_like_any(overtaken_first) -> None:
    """R6: nobody will complete it, and its parts would cost for ever; found by simulation."""

    async def main() -> None:
        r = await rig()
        binding = held(r.store.uploads, "bind", done=True)
        client = asyncio.create_task(r.create(33))
        await binding.reached.wait()
        if overtaken_first:
            await r.put(34, b"new")
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert await _overtaken(r) is UploadState.ABORTED
        assert r.upstream.uploads == {}

    run(main())


def test_an_upload_that_a_raise_has_overtaken_which_the_store_denied_is_aborted() -> None:
    """Found by simulation (seed 9038489): the floor was durable, the gate was not told, and nobody looked at the key
    again."""

    async def main() -> None:
        r = await rig()
        await r.create(33)
        answers_late(r.store, "raise_floor", denied=True)
        assert (await refusal(r.put(34, b"new"))).reason is Reason.STORE_UNAVAILABLE
        await asyncio.sleep(60)
        assert r.upstream.uploads == {}

    run(main())


@pytest.mark.parametrize("call", ["forget", "complete"])
def test_a_fault_beside_the_revoking_does_not_end_it(call: str) -> None:
    """R6: what is overtaken later is thrown away all the same, and the log has the fault."""

    async def main() -> None:
        r = await rig()

        async def broken(*_: object) -> None:
            raise RuntimeError("a fault")

        setattr(r.store.uploads, call, broken)
        r.uploads.bindings._over["b", "o", "u"] = Upload("u", "b", "o", "j", 33, ""), "etag"
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(3600)
            await r.create(33)
            await r.put(34, b"new")
            await asyncio.sleep(60)
        assert r.upstream.uploads == {}
        assert {line["event"] for line in logs} == {"internal-error"}

    run(main())


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


def test_uploads_below_a_sealed_floor_are_aborted_once_what_is_lower_has_settled() -> None:
    """R6: the floor may be sealed before its hand-over is complete, and nobody may raise it again; found by
    simulation."""

    async def main() -> None:
        r = await rig(timing=Timing(settle_timeout_s=60))
        upload_id, _ = await ready(r)
        r.upstream.faults = [Fault.LOST_DROPPED]
        assert (await refusal(r.put(33, b"lost"))).reason is Reason.IN_DOUBT
        assert (await refusal(r.put(34, b"new"))).reason is Reason.HANDOVER_PENDING
        await r.fences.seal(FencingKey("j"), Token(34), Event("j", EventKind.SEALED, 34, 34))
        await asyncio.sleep(100)
        assert (await r.store.uploads.bound(BUCKET, JOB, upload_id)).state is UploadState.ABORTED
        assert r.upstream.uploads == {}

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


def test_an_upload_without_token_bears_no_fence() -> None:
    """R4: without a token an object goes as it came."""

    async def main() -> None:
        r = await rig(rule(without_token=WithoutToken.UNTIL_FENCED))
        upload_id, etag = await ready(r, token=0)
        await r.complete(upload_id, etag=etag)
        assert not [n for n, _ in r.object().metadata if "fencing" in n]

    run(main())


def test_an_upload_whose_key_the_rules_now_call_otherwise_is_refused() -> None:
    """R9: rule and binding differ."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        await r.store.stop(clean=True)
        r = await rig(rule(key="renamed-{job}"), store=r.store, upstream=r.upstream)
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.KEY_MISMATCH

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


def test_an_upload_that_its_client_aborts_is_forgotten() -> None:
    """Its id means nothing any more, here and upstream."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        assert (await abort(r, upload_id)).status == 204
        assert r.upstream.uploads == {}
        assert await r.store.uploads.bound(BUCKET, JOB, upload_id) is None
        with pytest.raises(S3Error) as caught:
            await r.complete(upload_id, etag=etag)
        assert caught.value.code == "NoSuchUpload"

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


def test_what_has_been_revoked_and_aborted_is_marked_and_its_client_is_told() -> None:
    """R6: the binding stays a while, so that the worker hears that it is stale and not that it never was."""

    async def main() -> None:
        r = await rig()
        upload_id, _ = await ready(r)
        await r.put(34, b"B")
        await asyncio.sleep(1)
        assert (await r.store.uploads.bound(BUCKET, JOB, upload_id)).state is UploadState.ABORTED
        sent = len(r.upstream.sent)
        await asyncio.sleep(100)
        assert len(r.upstream.sent) == sent

    run(main())


@pytest.mark.parametrize(
    ("error", "logged"), [(RuntimeError("a fault"), {"j"}), (StoreUnavailable("disk is full"), set())]
)
def test_one_upload_that_cannot_be_aborted_does_not_keep_the_others(error, logged) -> None:
    """R6: whatever stands in its way, the rest goes on, and it is tried again. A fault of the program is logged."""

    async def main() -> None:
        r = await rig()
        await r.create(33)
        await r.create(33, key="renders/k/out")
        revoke, broken = r.store.uploads.revoke, True

        async def failing(key, below):
            if key == "j" and broken:
                raise error
            return await revoke(key, below)

        r.store.uploads.revoke = failing
        with structlog.testing.capture_logs() as log:
            await r.put(34, b"B")
            await r.put(34, b"B", key="renders/k/out")
            await asyncio.sleep(1)
        assert {line["fence_key"] for line in log if line["event"] == "internal-error"} == logged
        assert [upload.key for upload in r.upstream.uploads.values()] == [JOB]
        broken = False
        await asyncio.sleep(100)
        assert r.upstream.uploads == {}

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
