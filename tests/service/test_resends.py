"""R4, R5: what is sent again and what is not, in whose turn, under which nonce, and what a lost answer leaves."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import FenceError, Outcome, Reason
from gateway.s3.errors import S3Error
from gateway.service.waits import Timing
from gateway.service.writes import MAX_RESENDS
from gateway.upstream.base import UpstreamLost
from gateway.upstream.memory import MemoryResponse
from tests.service.rig import BUCKET, DEAF, JOB, Fault, Payload, elapsed, refusal, rig
from tests.service.sent import conditions, elsewhere, nonces, on_look, versions
from tests.virtual_time import run


def test_each_send_has_a_nonce_of_its_own() -> None:
    """Counterexample of R4: a nonce that a resend shares could settle a send that has not landed."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await elsewhere(r, 33, b"other")
        await r.put(33, b"A2")
        assert len(nonces(r)) == 3
        assert len(set(nonces(r))) == 3

    run(main())


def test_a_refusal_of_what_was_applied_is_seen_through() -> None:
    """R4: some servers apply a request, try it again and answer 412: the nonce on the object tells."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.APPLIED_412]
        result = await r.put(33, b"A")
        assert (result.status, result.header("etag")) == (200, r.object().etag)
        assert len(r.upstream.sent) == 1

    run(main())


def test_a_refusal_that_cannot_be_looked_into_leaves_the_outcome_unknown() -> None:
    """G5: what was refused may have been applied; found by simulation."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.APPLIED_412]

        async def lost(request, body=b""):
            raise UpstreamLost("reset")

        r.upstream.read = lost
        assert (await refusal(r.put(33, b"A"))).outcome is Outcome.UNKNOWN
        assert r.data() == b"A"

    run(main())


def test_an_object_that_never_stands_still_is_given_up() -> None:
    """R4: after so many resends the client is told that the state moves."""

    async def main() -> None:
        r = await rig()
        count = 0

        async def change() -> None:
            nonlocal count
            count += 1
            await elsewhere(r, 33, b"other%d" % count)

        on_look(r, change)
        await elsewhere(r, 33, b"other")
        assert (await refusal(r.put(33, b"A"))).reason is Reason.STATE_MOVED
        assert len(r.upstream.sent) == MAX_RESENDS

    run(main())


def test_in_a_versioned_bucket_nothing_is_sent_again() -> None:
    """R4: a second send could leave a second version."""

    async def main() -> None:
        r = await rig()
        versions(r)
        await elsewhere(r, 33, b"other")
        assert (await refusal(r.put(33, b"A"))).reason is Reason.STATE_MOVED
        assert len(r.upstream.sent) == 1

    run(main())


def test_a_delete_whose_object_has_gone_meanwhile_is_done() -> None:
    """R4: remembered, gone past the gateway: its condition fails, the look shows it gone, nothing more is sent."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        del r.upstream.buckets[BUCKET][JOB]
        assert (await r.delete(33)).status == 204
        assert len(r.upstream.sent) == 2

    run(main())


def test_of_two_deletes_at_once_neither_demands_absence() -> None:
    """R4: S3 knows no `If-None-Match` on a DELETE; the second fails its `If-Match` and finds the object gone."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag
        r.upstream.faults = [Fault.SILENT]
        first, second = asyncio.create_task(r.delete(33)), asyncio.create_task(r.delete(33))
        await asyncio.sleep(1)
        r.upstream.silent.set()
        assert [result.status for result in await asyncio.gather(first, second)] == [204, 204]
        assert conditions(r)[1:] == [("if-match", etag)] * 2

    run(main())


def test_a_delete_of_nothing_in_a_versioned_bucket_is_sent_and_bears_no_condition() -> None:
    """R4: there it leaves its mark, and absence cannot be demanded."""

    async def main() -> None:
        r = await rig()
        versions(r)
        assert (await r.delete(33)).status == 204
        assert [request.method for request in r.upstream.sent] == ["DELETE"]
        assert conditions(r) == []

    run(main())


def test_a_delete_of_one_version_goes_as_it_came() -> None:
    """R7: fenced, but no condition fits it, and the object may still be there afterwards."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        r.upstream.apply = lambda request, body: MemoryResponse(204, [], b"")
        assert (await r.delete(33, query="?versionId=v1")).status == 204
        assert conditions(r) == [("if-none-match", "*")]  # the PUT's
        assert r.writes.objects.pin(BUCKET, JOB).state is None

    run(main())


def test_an_object_that_cannot_be_looked_at_is_not_taken_for_absent() -> None:
    """R4: a DELETE is not answered 204 because a HEAD failed."""

    async def main() -> None:
        r = await rig()
        await elsewhere(r, 33, b"A")
        for status in (500, None):

            async def failing(request, body=b"", status=status):
                if status is None:
                    raise UpstreamLost("reset")
                return MemoryResponse(status, [], b"")

            r.upstream.read = failing
            assert (await refusal(r.delete(33))).reason is Reason.UPSTREAM_UNAVAILABLE
        assert r.data() == b"A"

    run(main())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("AccessDenied", "AccessDenied"),
        ("InvalidAccessKeyId", Reason.UPSTREAM_UNAVAILABLE),
        ("ExpiredToken", Reason.UPSTREAM_UNAVAILABLE),
        (None, "AccessDenied"),
    ],
)
@pytest.mark.parametrize("what", ["object", "source"])
def test_an_object_that_nobody_may_look_at_is_forbidden(code, told, what) -> None:
    """A HEAD does not say why, so a GET is asked: final where the store forbids it, to be tried again where the
    gateway's own credentials are at fault."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        asked = []

        async def forbidding(request, body=b""):
            asked.append((request.method, dict(request.headers).get("range")))
            document = b"" if request.method == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
            if code is None and request.method == "GET":
                return MemoryResponse(206, [], b"A")
            return MemoryResponse(403, [], document)

        r.upstream.read = forbidding
        if what == "object":
            await elsewhere(r, 33, b"B")
            write = r.delete(33)
        else:
            fields = [("x-amz-copy-source", f"{BUCKET}/{JOB}")]
            write = r.writes.fenced(r.write("PUT", "renders/k/copy", 7, None, headers=fields))
        with pytest.raises((FenceError, S3Error)) as caught:
            await write
        assert told in (getattr(caught.value, "code", None), getattr(caught.value, "reason", None))
        assert asked == [("HEAD", None), ("GET", "bytes=0-0")]
        assert "s3:ListBucket" in str(caught.value) or told is Reason.UPSTREAM_UNAVAILABLE

    run(main())


def test_a_write_without_token_goes_as_it_came() -> None:
    """R4: no condition, no metadata, no look in its way."""

    async def main() -> None:
        r = await rig()
        await r.put(0, b"A")
        await r.put(0, b"A2")
        await r.delete(0)
        await r.delete(0)
        assert len(r.upstream.sent) == 4
        assert (conditions(r), nonces(r)) == ([], [])

    run(main())


def test_a_body_at_hand_waits_for_the_one_before_and_takes_its_state() -> None:
    """R4: from commit point to answer one at a time; the next is conditioned on what the one before left."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        r.upstream.faults = [Fault.SILENT]
        first = asyncio.create_task(r.put(33, b"A2"))
        await asyncio.sleep(1)
        second = asyncio.create_task(r.put(33, b"A3"))
        await asyncio.sleep(1)
        assert len(r.upstream.sent) == 2
        r.upstream.silent.set()
        await asyncio.gather(first, second)
        assert len(r.upstream.sent) == 3
        assert r.data() == b"A3"

    run(main())


def test_a_turn_that_does_not_come_is_503() -> None:
    """R4: at most handover_wait_s behind another write of the object."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.SILENT]
        first = asyncio.create_task(r.put(33, b"A"))
        await asyncio.sleep(1)
        error, seconds = await elapsed(refusal(r.put(33, b"A2")))
        assert (error.reason, error.outcome) == (Reason.STATE_MOVED, Outcome.NOT_APPLIED)
        assert seconds == pytest.approx(20, abs=0.1)
        r.upstream.silent.set()
        await first

    run(main())


def test_a_doubt_holds_nothing() -> None:
    """R4: the next body of the same token goes at once."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        _, seconds = await elapsed(r.put(33, b"A2"))
        assert seconds == 0

    run(main())


def test_a_verified_trailing_checksum_stays_on_the_object() -> None:
    """G5: what the client sent as a trailer goes upstream as a header."""

    class Summed(Payload):
        def checksum_headers(self):
            return (("x-amz-checksum-crc32", "AAAAAA=="),)

    async def main() -> None:
        r = await rig()
        await r.put(33, Summed(b"A"))
        assert ("x-amz-checksum-crc32", "AAAAAA==") in r.upstream.sent[0].headers

    run(main())


def test_a_customers_key_opens_the_object_for_the_look() -> None:
    """A HEAD of what was stored with the customer's key needs that key."""

    async def main() -> None:
        r = await rig()
        looks = []
        read = r.upstream.read

        async def reading(request, body=b""):
            looks.append(dict(request.headers))
            return await read(request, body)

        r.upstream.read = reading
        name = "x-amz-server-side-encryption-customer-key"
        await r.put(33, Payload(b"x" * 100), headers=((name, "secret"),))
        assert looks == [{name: "secret"}]

    run(main())


@pytest.mark.parametrize("fault", [Fault.ERROR_IN_200, Fault.LOST_DROPPED], ids=lambda fault: fault.name)
@pytest.mark.parametrize("status", [400, 500])
def test_a_look_that_fails_takes_no_doubt_away(fault, status) -> None:
    """G5: the send is in doubt; whatever a HEAD says but its nonce, the client is told `Unknown`."""

    async def main() -> None:
        r = await rig()

        async def failing(request, body=b""):
            return MemoryResponse(status, [], b"")

        r.upstream.read = failing
        r.upstream.faults = [fault]
        error = await refusal(r.put(33, b"A"))
        assert (error.reason, error.outcome) == (Reason.IN_DOUBT, Outcome.UNKNOWN)
        await asyncio.sleep(31)
        assert not r.fences.unsettled("j")

    run(main())


def test_a_copy_in_doubt_holds_the_hand_over_for_the_longer_timeout() -> None:
    """R5: a copy may take minutes."""

    async def main() -> None:
        r = await rig(capabilities=DEAF, timing=Timing(handover_wait_s=1000))
        await r.put(1, b"S", key="renders/s/o")
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.copy(33, JOB, source=f"{BUCKET}/renders/s/o"))
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(300, abs=0.1)

    run(main())
