"""The one place that talks to the upstream about objects: requests as they go out, bodies, and what came back.

Nothing here decides. A body is streamed to its last piece, and what is withheld goes out only after the caller's
`commit` has let it: between `commit` and the bytes lies no await.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.core.errors import Outcome
from gateway.core.write import ABSENT, Answer, ObjectState, classify
from gateway.s3.checksums import value_length
from gateway.s3.claim import STREAMING_UNSIGNED_TRAILER
from gateway.s3.fencing import object_state
from gateway.s3.forward import forwarded_headers, forwarded_query
from gateway.s3.payload import Tail, TrailerEncoder
from gateway.s3.xml import error_code, find_text, names_output
from gateway.service.refusals import cannot_look, output_elsewhere, refuse_our_own_fault, unavailable
from gateway.service.values import Body, Result, Write
from gateway.upstream.base import (
    EMPTY_SHA256,
    Upstream,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
    UpstreamResponse,
)

MAX_ANSWER_BYTES = 4 * 2**20
"""What an upstream may answer to a write; more is taken for a lost answer."""
LOOK_TIMEOUT_S = 10.0


async def result_of(response: UpstreamResponse, limit_bytes: int = MAX_ANSWER_BYTES) -> Result:
    """Read an answer whole and say what it means for its send. Raises `UpstreamLost`."""
    body = await response.read(limit_bytes)
    code = error_code(body)
    return Result(response.status, response.headers, body, classify(response.status, code), code)


def with_etag(result: Result) -> tuple[Result, str]:
    """The answer to a Complete or a copy, whose 200 may come before its outcome: a success is one whose document has an
    ETag, be it empty (Ceph RGW's Complete). Without it (white space, and then nothing) the answer is lost."""
    if result.answer is not Answer.APPLIED:
        return result, ""
    etag = find_text(result.body, "ETag")
    return (replace(result, answer=Answer.LOST) if etag is None else result), etag or ""


def request_of(
    write: Write,
    *,
    extra: tuple[tuple[str, str], ...] = (),
    without: frozenset[str] = frozenset(),
    payload_sha256: str | None = None,
    keep_md5: bool = True,
) -> UpstreamRequest:
    """The upstream's request for a write: as it came, less the fields in `without`, plus those in `extra`."""
    head = write.head
    extra = (*write.replaced, *extra)
    names = {name for name, _ in extra}
    headers = forwarded_headers(head, keep_md5=keep_md5, without=without | write.dropped | names)
    return UpstreamRequest(
        head.method, write.bucket, head.raw_key, forwarded_query(head), (*headers, *extra), payload_sha256
    )


async def read_body(write: Write) -> bytes:
    """The whole body, verified; empty where there is none. Raises `S3Error`, and `Refused` (OperationNotFenced) for
    what only the body tells: that the operation would write to another place than the fenced one."""
    data = await write.body.read() if write.body is not None else b""
    if write.operation.name == "RestoreObject" and data and names_output(data):
        raise output_elsewhere(write.key, write.token)
    return data


async def send_at_hand(upstream: Upstream, request: UpstreamRequest, data: bytes, timeout_s: float) -> Result:
    """Send a body that is at hand: calling is the commit point. Raises `UpstreamNotReached` or `UpstreamLost`."""
    return await result_of(await upstream.send(request, data, timeout_s))


async def send_bodiless(upstream: Upstream, request: UpstreamRequest, timeout_s: float) -> Result:
    """Send a request without a body that no gate has to settle. Raises `TryAgain` (UpstreamUnavailable)."""
    try:
        return await result_of(await upstream.send(request, b"", timeout_s))
    except UpstreamNotReached as error:
        raise unavailable(str(error)) from error
    except UpstreamLost as error:
        raise unavailable(str(error), Outcome.UNKNOWN) from error


async def stream(
    upstream: Upstream,
    request: UpstreamRequest,
    body: Body,
    commit: Callable[[], None],
    timeout_s: float,
    *,
    keep_trailer: bool,
) -> Result:
    """Stream a body through and withhold its tail until it is verified and `commit` has returned.

    It goes with a plain length; with `keep_trailer`, which wants an upstream that has proved to take it, as chunks
    that the body's own trailing checksum follows. Whatever goes wrong before leaves nothing upstream. Raises what
    `body` and `commit` raise, `UpstreamNotReached` (nothing happened), `UpstreamLost` (after `commit`)."""
    framing = _Framing(body) if keep_trailer and body.trailer is not None else None
    if framing is None:
        exchange = await upstream.open(request, body.length)
    else:
        exchange = await upstream.open(framing.request(request), framing.length)
    try:
        tail = Tail(body.length)
        try:
            async for pieces in body.pieces():
                for piece in tail.push(pieces):
                    await exchange.write(piece if framing is None else framing.frame(piece))
            last = tail.release()
            if framing is not None:
                last = framing.frame(last) + framing.closing()
            commit()
            exchange.commit()
            await exchange.write(last)
        except UpstreamNotReached:
            return await _early_answer(exchange.response)
        return await result_of(await exchange.response(timeout_s))
    except BaseException:
        exchange.abort()
        raise


class _Framing:
    """A payload on its way as chunks with a trailer (aws-chunked), its length on the wire known beforehand."""

    def __init__(self, body: Body) -> None:
        assert body.trailer is not None
        self._body = body
        self._name = f"x-amz-checksum-{body.trailer}"
        self._encoder = TrailerEncoder(body.length, self._name)
        self.length = TrailerEncoder.encoded_length(body.length, self._name, value_length(body.trailer))

    def request(self, request: UpstreamRequest) -> UpstreamRequest:
        # Without `content-encoding: aws-chunked`, which stores may keep on the object (measured on SeaweedFS 4.48):
        # x-amz-content-sha256 names the framing.
        added = (("x-amz-decoded-content-length", str(self._body.length)), ("x-amz-trailer", self._name))
        return replace(request, headers=(*request.headers, *added), payload_sha256=STREAMING_UNSIGNED_TRAILER)

    def frame(self, piece: bytes) -> bytes:
        return b"".join(self._encoder.encode(piece))

    def closing(self) -> bytes:
        ((_, value),) = self._body.checksum_headers()
        return self._encoder.closing(value)


async def deliver(
    upstream: Upstream,
    write: Write,
    commit: Callable[[], None],
    timeout_s: float,
    small_body_bytes: int,
    *,
    keep_trailer: bool,
) -> Result:
    """Send a write as it came, whatever the size of its body; `commit` runs when the body is verified.

    Raises what body and `commit` raise, and `TryAgain` (UpstreamUnavailable) with what is known of the outcome."""
    body = write.body
    try:
        if body is not None and write.streams(small_body_bytes):
            request = request_of(write, payload_sha256=body.sha256)
            return await stream(upstream, request, body, commit, timeout_s, keep_trailer=keep_trailer)
        data = await read_body(write)
        extra = body.checksum_headers() if body is not None else ()
        request = request_of(write, extra=extra, payload_sha256=body.sha256 if body else EMPTY_SHA256)
        commit()
        return await send_at_hand(upstream, request, data, timeout_s)
    except UpstreamNotReached as error:
        raise unavailable(str(error)) from error
    except UpstreamLost as error:
        raise unavailable(str(error), Outcome.UNKNOWN) from error


async def _early_answer(response: Callable[[float], object]) -> Result:
    """The upstream answered before it had the whole body. A refusal is passed on; a success would be a lie."""
    try:
        result = await result_of(await response(LOOK_TIMEOUT_S))  # type: ignore[misc]
    except (UpstreamLost, ValueError) as error:
        raise UpstreamNotReached(str(error)) from error
    if result.answer is not Answer.REFUSED:
        raise UpstreamNotReached(f"the upstream answered {result.status} before it had the whole body")
    return result


# A HEAD of an object that was stored with a customer's key needs that key.
_CUSTOMER_KEY = "x-amz-server-side-encryption-customer-"


async def look(upstream: Upstream, write: Write) -> tuple[ObjectState, list[tuple[str, str]]]:
    """The present state of the written object, and its head's fields. Raises what `head_of` raises."""
    headers = tuple((n, v) for n, v in write.head.headers.pairs if n.startswith(_CUSTOMER_KEY))
    request = UpstreamRequest("HEAD", write.bucket, write.head.raw_key, "", headers, EMPTY_SHA256)
    response = await head_of(upstream, request, "the object")
    state = ABSENT if response.status == 404 else object_state(response.headers)
    return state, response.headers


async def head_of(
    upstream: Upstream, request: UpstreamRequest, what: str, *, demands: bool = False
) -> UpstreamResponse:
    """The answer to a HEAD: 200, 404 where there is no such object, or, if `request` demands something of it, 412.
    Raises `TryAgain` (UpstreamUnavailable), and `S3Error` where asking again would not help."""
    try:
        response = await upstream.read(request)
        response.close()
        if response.status == 403:
            refuse_our_own_fault(await code_of_get(upstream, request))
    except (UpstreamNotReached, UpstreamLost) as error:
        raise unavailable(str(error)) from error
    if response.status not in (200, 404) and not (demands and response.status == 412):
        raise cannot_look(response.status, what)
    return response


async def code_of_get(upstream: Upstream, head: UpstreamRequest) -> str | None:
    """The error code that a GET brings where a HEAD, which has no body, brings none. Raises `UpstreamLost` or
    `UpstreamNotReached`."""
    response = await upstream.read(replace(head, method="GET", headers=(*head.headers, ("range", "bytes=0-0"))))
    try:
        return error_code(await response.read(MAX_ANSWER_BYTES)) if response.status >= 400 else None
    finally:
        response.close()


async def versioning(upstream: Upstream, bucket: str) -> str | None:
    """`Enabled` or `Suspended`, empty for a bucket that has never kept versions; None where it does not exist or nobody
    may ask. Raises `TryAgain`."""
    try:
        response = await upstream.read(UpstreamRequest("GET", bucket, "", "versioning", (), EMPTY_SHA256))
        body = await response.read(MAX_ANSWER_BYTES)
    except (UpstreamNotReached, UpstreamLost) as error:
        raise unavailable(str(error)) from error
    if response.status >= 500 and response.status != 501:
        raise unavailable(f"it answers {response.status} {error_code(body) or ''}".rstrip() + " to GetBucketVersioning")
    return (find_text(body, "Status") or "") if response.status == 200 else None
