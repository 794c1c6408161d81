"""R6: multipart uploads, bound to the key and token that began them."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Outcome, Reason
from gateway.core.keys import FencingKey, Token
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED, Claimed
from gateway.service.waits import Timing
from gateway.stores.values import Event, EventKind
from tests.service.rig import JOB, Fault, Payload, elapsed, refusal, rig
from tests.virtual_time import run


async def ready(r, token: int = 33, data: bytes = b"part") -> tuple[str, str]:
    """An upload with one part: its id, and the part's ETag."""
    upload_id = await r.create(token)
    part = await r.part(upload_id, data)
    assert part.status == 200
    return upload_id, part.header("etag")


def test_parts_and_complete_take_the_token_from_the_binding() -> None:
    """The client names no token after Create; the object bears it, and a repeated Complete succeeds again."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        first = await r.complete(upload_id, etag=etag)
        assert first.status == 200
        assert r.data() == b"part"
        assert dict(r.object().metadata)["x-amz-meta-fencing-token"] == "33"
        sent = len(r.upstream.sent)
        again = await r.complete(upload_id, etag=etag)
        assert again.status == 200
        assert len(r.upstream.sent) == sent

    run(main())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Claimed(Token(34), None), Reason.TOKEN_INVALID),
        (Claimed(Token(32), FencingKey("j")), Reason.TOKEN_INVALID),
        (Claimed(Token(33), FencingKey("other")), Reason.KEY_MISMATCH),
    ],
)
def test_a_token_or_key_that_differs_is_refused(said, reason) -> None:
    """An upload belongs to one key and one token."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        assert (await refusal(r.part(upload_id, b"x", said))).reason is reason
        assert (await refusal(r.complete(upload_id, said, etag))).reason is reason

    run(main())


def test_an_upload_without_a_binding_does_not_exist() -> None:
    """One that was begun past the gateway cannot be completed through it."""

    async def main() -> None:
        r = await rig()
        with pytest.raises(S3Error) as caught:
            await r.complete("begun-elsewhere")
        assert caught.value.code == "NoSuchUpload"

    run(main())


def test_an_overtaken_upload_is_refused_and_aborted_upstream() -> None:
    """34 takes over: parts and Complete of 33 are stale, and the dead worker's parts are gone."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        await r.put(34, b"B")
        assert (await refusal(r.part(upload_id, b"more", number=2))).reason is Reason.STALE_TOKEN
        await asyncio.sleep(1)
        assert r.upstream.uploads == {}
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.STALE_TOKEN
        assert r.data() == b"B"
        kinds = [event.kind for event in await r.store.events("j", None, 10)]
        assert EventKind.UPLOAD_REVOKED in kinds

    run(main())


def test_a_part_that_is_staging_is_interrupted() -> None:
    """R3: the part's client is told at once."""

    async def main() -> None:
        r = await rig()
        upload_id, _ = await ready(r)
        stuck = Payload(length=100)
        writing = asyncio.create_task(r.part(upload_id, stuck, number=2))
        await stuck.wanted.wait()
        await asyncio.sleep(0)
        await r.put(34, b"B")
        assert (await refusal(writing)).reason is Reason.STALE_TOKEN

    run(main())


def test_create_overtaken_before_it_is_bound_leaves_nothing() -> None:
    """The raise could not see an upload that was not yet bound; it is refused and aborted all the same."""

    async def main() -> None:
        r = await rig()
        bind = r.store.uploads.bind

        async def late_bind(upload):
            await r.put(34, b"B")
            await bind(upload)

        r.store.uploads.bind = late_bind
        assert (await refusal(r.create(33))).reason is Reason.STALE_TOKEN
        await asyncio.sleep(1)
        assert r.upstream.uploads == {}

    run(main())


def test_create_sealed_while_the_upstream_begins_it_leaves_nothing() -> None:
    """Nor could the seal; and no higher token need ever come."""

    async def main() -> None:
        r = await rig()
        send = r.upstream.send

        async def begun(*asked):
            answer = await send(*asked)
            await seal(r, 33)
            await asyncio.sleep(1)
            return answer

        r.upstream.send = begun
        assert (await refusal(r.create(33))).reason is Reason.SEALED
        await asyncio.sleep(100)
        assert r.upstream.uploads == {}

    run(main())


def test_a_complete_in_doubt_is_answered_by_the_uploads_nonce_and_settled_by_time_alone() -> None:
    """R5: all Completes of an upload share one nonce; it decides the answer and settles nothing."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=1000))
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_APPLIED]
        assert (await r.complete(upload_id, etag=etag)).status == 200
        assert r.data() == b"part"
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(300, abs=0.1)

    run(main())


def test_a_200_without_an_outcome_leaves_a_complete_in_doubt() -> None:
    """G5: white space keeps the connection alive and promises nothing."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.EMPTY_200]
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.IN_DOUBT
        assert r.fences.unsettled("j")

    run(main())


def test_a_lost_complete_that_is_sent_again_is_found_to_have_succeeded() -> None:
    """The first answer is lost and lands late; the retry's NoSuchUpload is looked into."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_LATE]
        error = await refusal(r.complete(upload_id, etag=etag))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)
        r.upstream.land()
        assert (await r.complete(upload_id, etag=etag)).status == 200
        assert r.data() == b"part"

    run(main())


def test_an_overtaken_upload_is_not_aborted_while_its_complete_is_unsettled() -> None:
    """Aborting under a Complete that may still land would tear its parts away."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=1))
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.complete(upload_id, etag=etag))
        assert (await refusal(r.put(34, b"B"))).reason is Reason.HANDOVER_PENDING
        await asyncio.sleep(100)
        assert upload_id in r.upstream.uploads
        await asyncio.sleep(250)
        assert r.upstream.uploads == {}

    run(main())


async def seal(r, token: int) -> None:
    """As a release, a completion or an operator does."""
    await r.fences.seal(FencingKey("j"), Token(token), Event("j", EventKind.SEALED, token, token))


def test_a_sealed_upload_is_refused_and_aborted_upstream() -> None:
    """Its worker is done: no higher token need ever come for its parts to cost nothing any more."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        await seal(r, 33)
        await asyncio.sleep(1)
        assert r.upstream.uploads == {}
        for call in (r.part(upload_id, b"more", number=2), r.complete(upload_id, etag=etag)):
            assert (await refusal(call)).reason is Reason.SEALED

    run(main())


def test_a_sealed_upload_is_not_aborted_while_its_complete_is_unsettled() -> None:
    """A release waits for nothing: the Complete may still land."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.complete(upload_id, etag=etag))
        await seal(r, 33)
        await asyncio.sleep(100)
        assert upload_id in r.upstream.uploads
        await asyncio.sleep(250)
        assert r.upstream.uploads == {}

    run(main())


def test_a_repeated_complete_after_the_hand_over_is_refused_with_unknown() -> None:
    """R6: it succeeded once; now the floor is another's."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r)
        await r.complete(upload_id, etag=etag)
        await r.put(34, b"B")
        error = await refusal(r.complete(upload_id, etag=etag))
        assert (error.reason, error.outcome) == (Reason.STALE_TOKEN, Outcome.UNKNOWN)
        assert r.data() == b"B"

    run(main())


def test_bindings_survive_a_restart_and_leftovers_are_aborted() -> None:
    """Overtaken before the crash, aborted after the start."""

    async def main() -> None:
        r = await rig()
        await ready(r)
        await r.store.raise_floor("j", 34)
        await r.store.stop(clean=True)
        r = await rig(store=r.store, upstream=r.upstream)
        await asyncio.sleep(1)
        assert r.upstream.uploads == {}

    run(main())


def test_an_upload_without_token_is_shut_out_by_the_first_raise() -> None:
    """Token 0 like any other: parts and Complete of it are told that a token is required."""

    async def main() -> None:
        r = await rig()
        upload_id, etag = await ready(r, token=0)
        await r.put(1, b"A")
        assert (await refusal(r.complete(upload_id, etag=etag))).reason is Reason.TOKEN_REQUIRED
        assert r.data() == b"A"

    run(main())


def test_open_uploads_are_counted_for_their_key() -> None:
    """For people: until they are completed, thrown away, or revoked and gone in the store."""

    async def main() -> None:
        r = await rig()
        done, aborted = await r.create(33), await r.create(33)
        await r.create(33)
        assert r.uploads.bindings.open_of("j") == 3
        etag = (await r.part(done, b"part")).header("etag") or ""
        await r.complete(done, etag=etag)
        write = r.write("DELETE", JOB, 0, None, query=f"?uploadId={aborted}")
        await r.uploads.abort(write, await r.uploads.bound(write, NOTHING_CLAIMED))
        assert r.uploads.bindings.open_of("j") == 1
        await r.put(34, b"B")
        await asyncio.sleep(1)
        assert r.uploads.bindings.open_of("j") == 0

    run(main())
