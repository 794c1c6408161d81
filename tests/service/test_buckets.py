"""DeleteBucket, before a store that does not look whether a bucket is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.errors import Outcome, Reason
from gateway.core.names import RECORD_KEY
from gateway.s3.errors import S3Error
from gateway.service.buckets import delete_bucket
from gateway.service.values import Result
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.service.between import held
from tests.service.record_desk import gateway, record
from tests.service.rig import BUCKET, JOB, Fault, FaultyUpstream, Rig, refusal
from tests.virtual_time import run

DELETE = UpstreamRequest("DELETE", BUCKET, "", "", ())


class Careless(FaultyUpstream):
    """Deletes a bucket with all that is in it. `between` is done when it is about to."""

    between: Callable[[], Awaitable[None]] | None = None

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if (request.method, request.raw_key) == ("DELETE", ""):
            if self.between is not None:
                await self.between()
            if not self.faults:
                self.buckets[BUCKET].clear()
        return await super().send(request, body, timeout_s)


async def delete(r: Rig) -> Result:
    return await delete_bucket(r.writes, DELETE)


@pytest.mark.parametrize("fenced_before", ["auto", False])
def test_no_write_is_answered_that_goes_with_its_bucket(fenced_before) -> None:
    """G5: between the look and the store's answer nothing fenced passes its commit point; when that is over the bucket
    is gone, or, where it could not be deleted, takes writes again."""

    async def main() -> None:
        upstream = Careless(BUCKET)
        r = await gateway(upstream, fenced_before=fenced_before)
        refused = []

        async def write() -> None:
            refused.append(await refusal(r.put(34, b"a")))
            upstream.faults = [Fault.REFUSED_403]

        upstream.between = write
        assert (await delete(r)).status == 403
        assert [(error.reason, error.outcome) for error in refused] == [(Reason.STATE_MOVED, Outcome.NOT_APPLIED)]
        assert (await r.put(34, b"b")).status == 200
        with pytest.raises(S3Error, match="not empty"):
            await delete(r)
        assert r.data() == b"b"
        await r.writes.close()

    run(main())


def test_a_write_that_is_being_answered_keeps_its_bucket() -> None:
    """Nobody knows yet whether the store has it; one that is in doubt, whose client has been told so, keeps it not."""

    async def main() -> None:
        upstream = Careless(BUCKET)
        r = await gateway(upstream, fenced_before=False)
        upstream.faults, upstream.silent = [Fault.SILENT], asyncio.Event()
        upstream.reached.clear()
        write = asyncio.create_task(r.put(34, b"a", key="renders/a/o"))
        await upstream.reached.wait()
        error = await refusal(delete(r))
        assert (error.reason, error.outcome) == (Reason.STATE_MOVED, Outcome.NOT_APPLIED)
        upstream.silent.set()
        assert (await write).status == 200
        assert r.data("renders/a/o") == b"a"
        upstream.buckets[BUCKET].clear()
        upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(34, b"a", key=JOB))
        assert (await delete(r)).status == 204
        await r.writes.close()

    run(main())


@pytest.mark.parametrize("how", ["answer lost", "client gone"])
def test_a_bucket_that_could_not_be_deleted_bears_its_record_again(how: str) -> None:
    """The record goes before the bucket. Whatever ends that on the way, another database must find whose the bucket
    is: without a record it would take it for nobody's, and not know its floors."""

    async def main() -> None:
        upstream = Careless(BUCKET)
        r = await gateway(upstream)
        await r.put(34, b"a")
        del upstream.buckets[BUCKET][JOB]
        before = record(upstream)
        if how == "answer lost":
            upstream.faults = [Fault.LOST_APPLIED]
            assert (await refusal(delete(r))).reason is Reason.UPSTREAM_UNAVAILABLE
        else:
            taken = held(upstream, "send", done=True)
            client = asyncio.create_task(delete(r))
            await taken.reached.wait()
            assert RECORD_KEY not in upstream.buckets[BUCKET]
            client.cancel()
            await asyncio.wait([client])
        assert record(upstream) == before
        await r.writes.close()

    run(main())
