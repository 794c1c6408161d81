"""The gateway's own object in a bucket: refused to clients, and out of the way when the bucket is deleted."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote, unquote

from gateway.core.errors import Reason, Refused
from gateway.core.names import RECORD_KEY, names_record
from gateway.core.write import Answer
from gateway.s3.errors import S3Error
from gateway.s3.operations import Operation
from gateway.s3.request import RequestHead
from gateway.service.copies import SOURCE, copy_source
from gateway.service.listings import holds_more, record_versions
from gateway.service.record import NoBucket, Seen
from gateway.service.refusals import bucket_moves
from gateway.service.sending import send_bodiless
from gateway.service.values import Result
from gateway.service.writes import Writes
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamRequest


def refuse_record(operation: Operation, head: RequestHead) -> None:
    """Raises `Refused` for a request that names the bucket's record, as its object or as the source of a copy."""
    if head.key is not None:
        refuse_record_key(head.key)
    if operation.header == SOURCE:
        _, raw_key, _ = copy_source(head.headers.get(SOURCE) or "")
        refuse_record_key(unquote(raw_key))


def refuse_record_key(object_key: str) -> None:
    """Raises `Refused` (KeyDenied) for the key of the bucket's record."""
    if names_record(object_key):
        raise Refused(
            Reason.KEY_DENIED,
            f"{RECORD_KEY} is the gateway's own: it says which database rules the bucket. No client may read, write or "
            "delete it.",
        )


async def delete_bucket(writes: Writes, request: UpstreamRequest) -> Result:
    """DeleteBucket: a bucket that holds the record alone is empty to its owner. Whether it holds more is looked at
    here, and nothing fenced is written meanwhile: SeaweedFS 4.48 deletes a bucket with all objects that have versions.
    Raises `TryAgain`, `S3Error` (BucketNotEmpty)."""
    bucket = request.bucket
    assert bucket is not None
    with writes.records.being_deleted(bucket):
        if any(send.bucket == bucket and send.phase == "committing" for send in writes.fences.unsettled()):
            raise bucket_moves(f"A write in bucket {bucket} is just being made. The bucket was not deleted.")
        return await _delete_bucket(writes, bucket, request)


async def _delete_bucket(writes: Writes, bucket: str, request: UpstreamRequest) -> Result:
    records, upstream, timeout_s = writes.records, writes.upstream, writes.fences.timing.commit_timeout_s
    seen: Seen | None = None
    deletes: list[UpstreamRequest] = []
    with suppress(NoBucket):
        seen = await records.objects.read(bucket)
        if await holds_more(upstream, bucket):
            raise S3Error("BucketNotEmpty", "The bucket you tried to delete is not empty", 409, BucketName=bucket)
        deletes = await _deletes_of_record(upstream, bucket, seen)
    result: Result | None = None
    try:
        for one in deletes:
            await send_bodiless(upstream, one, timeout_s)
        result = await send_bodiless(upstream, request, timeout_s)
    finally:
        gone = result is not None and (result.answer is Answer.APPLIED or result.code == "NoSuchBucket")
        if gone:
            await records.bucket_is_gone(bucket)
        elif seen is not None:
            await records.put_back(bucket, seen)
    return result


async def _deletes_of_record(upstream: Upstream, bucket: str, seen: Seen | None) -> list[UpstreamRequest]:
    """What takes the record away, with all versions of it. Raises `TryAgain`."""
    versions = await record_versions(upstream, bucket)
    if seen is None and not versions:
        return []
    queries = [f"versionId={quote(version, safe='')}" for version in versions] or [""]
    return [UpstreamRequest("DELETE", bucket, RECORD_KEY, query, (), EMPTY_SHA256) for query in queries]
