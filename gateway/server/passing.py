"""What no fence touches: reads, and the settings of buckets, passed on."""

from __future__ import annotations

from gateway.core.errors import Outcome, TryAgain
from gateway.s3.forward import forwarded_headers, forwarded_query
from gateway.s3.listing import LISTS, may_show_record
from gateway.s3.operations import Effect, Operation
from gateway.s3.xml import error_code
from gateway.server.call import Call
from gateway.service.buckets import delete_bucket
from gateway.service.listings import listed
from gateway.service.misreadings import refuse_versions_again
from gateway.service.refusals import refuse_our_own_fault, unavailable
from gateway.service.sending import code_of_get
from gateway.service.values import Result
from gateway.upstream.base import (
    EMPTY_SHA256,
    Upstream,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
    UpstreamResponse,
)

SMALL_ANSWER_BYTES = 65536
_PERHAPS_OUR_FAULT = (400, 403)
"""How S3 refuses a signature, be it the client's or the gateway's own."""


async def pass_through(call: Call, operation: Operation) -> None:
    """Reads, and settings of buckets: through, streaming the answer."""
    writes, head = call.services.writes, call.head
    upstream = writes.upstream
    body = call.payload(operation)
    data = await body.read() if body is not None else b""
    if operation.name == "PutBucketVersioning":
        await refuse_versions_again(upstream, writes.capabilities, head.bucket or "", data)
    request = UpstreamRequest(
        head.method,
        head.bucket,
        head.raw_key,
        forwarded_query(head),
        (*forwarded_headers(head), *(body.checksum_headers() if body is not None else ())),
        body.sha256 if body is not None and body.sha256 else (None if data else EMPTY_SHA256),
    )
    if operation.name in LISTS and may_show_record(head.raw_query):
        _send_whole(call, operation, await listed(upstream, request))
        return
    if operation.name == "DeleteBucket":
        _send_whole(call, operation, await delete_bucket(writes, request))
        return
    try:
        if operation.effect is Effect.READ:
            response = await upstream.read(request, data)
        else:
            response = await upstream.send(request, data, writes.fences.timing.commit_timeout_s)
    except UpstreamNotReached as error:
        raise unavailable(str(error)) from error
    except UpstreamLost as error:
        raise _lost(operation, error) from error
    try:
        if head.method == "HEAD" and response.status in _PERHAPS_OUR_FAULT:
            await _refuse_our_own_fault_by_get(upstream, request)
        await _stream_answer(call, operation, response)
    finally:
        response.close()


def _lost(operation: Operation, error: UpstreamLost) -> TryAgain:
    """What was read has changed nothing; a setting may be in force."""
    return unavailable(str(error), Outcome.NOT_APPLIED if operation.effect is Effect.READ else Outcome.UNKNOWN)


async def _refuse_our_own_fault_by_get(upstream: Upstream, head: UpstreamRequest) -> None:
    try:
        refuse_our_own_fault(await code_of_get(upstream, head))
    except (UpstreamNotReached, UpstreamLost) as error:
        raise unavailable(str(error)) from error


def _send_whole(call: Call, operation: Operation, result: Result) -> None:
    refuse_our_own_fault(result.code)
    call.record.reason = result.code
    call.reply.send(result.status, call.answer_headers(result.headers, operation), result.body)


async def _stream_answer(call: Call, operation: Operation, response: UpstreamResponse) -> None:
    reply = call.reply
    headers = call.answer_headers(response.headers, operation)
    text = response.header("content-length")
    length = int(text) if text is not None and text.isdecimal() else None
    if call.head.method == "HEAD" or response.status in (204, 304):
        reply.send_head(response.status, headers, length)
        return
    try:
        perhaps_our_fault = response.status in _PERHAPS_OUR_FAULT
        whole = perhaps_our_fault if length is None else length <= SMALL_ANSWER_BYTES
        if whole:
            body = await response.read(SMALL_ANSWER_BYTES)
            if response.status >= 400:
                call.record.reason = code = error_code(body)
                if perhaps_our_fault:
                    refuse_our_own_fault(code)
            reply.send(response.status, headers, body)
            return
        reply.start(response.status, headers, length)
        async for chunk in response.chunks():
            await reply.write(chunk)
        reply.end()
    except UpstreamLost as error:
        if not reply.started:
            raise _lost(operation, error) from error
        call.record.decision, call.record.reason = "failed", "UpstreamLost"
        reply.cut()
