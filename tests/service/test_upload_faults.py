"""R6 when something fails: what binds an upload, and the revoking of what is overtaken."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, Token, WithoutToken
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED
from gateway.service.waits import Timing
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Upload, UploadState
from tests.service.between import answers_late, held
from tests.service.rig import BUCKET, JOB, Fault, refusal, rig, rule
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
