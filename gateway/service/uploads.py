"""Multipart uploads (R6): an upload belongs to the key and token that created it, and to nobody else.

Creation binds the upload id, durably, before the client learns it. Parts and Complete take key and token from the
binding (`Bindings`).
"""

from __future__ import annotations

from gateway.core.errors import FenceError, Malformed, Outcome, Reason, Refused
from gateway.core.keys import FencingKey, Token, key_in_metadata
from gateway.core.write import Answer, ObjectState, Verdict, judge
from gateway.s3.errors import S3Error
from gateway.s3.fencing import Claimed, object_metadata
from gateway.s3.xml import find_text, render_complete_result
from gateway.service.bindings import Bindings
from gateway.service.misreadings import folder_stands
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate, Passage
from gateway.service.refusals import folder_in_place, in_doubt, no_such_upload, store_unavailable, unavailable
from gateway.service.sending import deliver, look, request_of, send_at_hand, send_bodiless, with_etag
from gateway.service.values import Result, Write
from gateway.service.writes import Writes
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Upload, UploadState
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamNotReached, UpstreamRequest


class Uploads:
    """What is done with them."""

    def __init__(self, writes: Writes, *, kept_s: float = 7 * 86400) -> None:
        self._writes = writes
        self._fences = writes.fences
        self._store = writes.fences.store
        self._upstream = writes.upstream
        self.bindings = Bindings(writes.fences, writes.upstream, writes.clock, kept_s=kept_s)

    # --- the operations

    async def create(self, write: Write) -> Result:
        """CreateMultipartUpload: bound durably before it is answered."""
        async with self._writes.admitted(write) as (live, _):
            if await folder_stands(self._upstream, self._writes.capabilities, write):
                raise folder_in_place(write)
            nonce = self._writes.clock.nonce() if write.token else ""
            extra = object_metadata(write.key, write.token, nonce) if write.token else ()
            request = request_of(write, extra=extra, payload_sha256=EMPTY_SHA256, keep_md5=False)
            result = await self._staged(request)
            if result.answer is not Answer.APPLIED:
                return result
            upload_id = find_text(result.body, "UploadId")
            if not upload_id:
                raise unavailable("its answer to CreateMultipartUpload names no upload id")
            upload = Upload(upload_id, write.bucket, write.object_key, write.key, write.token, nonce)
            try:
                await self.bindings.bind(upload)
            finally:
                if live.gate.overtaken(write.token):
                    # Since its admission: what raised the floor, or sealed it, could not see this upload.
                    self.bindings.overtaken(write.key)
            live.gate.refuse_overtaken(write.token)
            return result

    async def bound(self, write: Write, claimed: Claimed) -> Upload:
        """The binding of the upload that `write` names; `write` takes its key and token.

        Raises `S3Error` (NoSuchUpload), `Malformed` where the request names others, `TryAgain`."""
        upload_id = write.head.param("uploadId") or ""
        try:
            upload = await self._store.uploads.bound(write.bucket, write.object_key, upload_id)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error
        if upload is None:
            raise no_such_upload(upload_id)
        take_binding(write, claimed, upload)
        return upload

    async def part(self, write: Write) -> Result:
        """UploadPart and UploadPartCopy: staged; cancelled when overtaken, but never visible by themselves."""
        async with self._writes.admitted(write) as (live, entry):
            keep_trailer = await self._writes.keeps_trailer(write)
            with self._passage(write, live, entry):
                return await deliver(
                    self._upstream,
                    write,
                    lambda: live.gate.refuse_overtaken(write.token),
                    self._fences.timing.commit_s(assembles=write.operation.assembles),
                    self._writes.small_body_bytes,
                    keep_trailer=keep_trailer,
                )

    async def complete(self, write: Write, upload: Upload) -> Result:
        """CompleteMultipartUpload: the commit point of an upload."""
        if upload.state is UploadState.COMPLETED:
            return await self._again(write, upload)
        async with self._writes.admitted(write) as (live, entry):
            data = await write.body.read() if write.body is not None else b""
            if await folder_stands(self._upstream, self._writes.capabilities, write):
                if (found := await self._found(write, upload)) is not None:
                    return found
                raise folder_in_place(write)
            request = request_of(write, payload_sha256=write.body.sha256 if write.body else EMPTY_SHA256)
            with self._passage(write, live, entry) as passage:
                passage.commit()
                passage.on_settled = self.bindings.sent(upload)
                entry.state = None
                result: Result | None = None
                etag = ""
                timeout_s = self._fences.timing.commit_s(assembles=write.operation.assembles)
                try:
                    result, etag = with_etag(await send_at_hand(self._upstream, request, data, timeout_s))
                except UpstreamNotReached as error:
                    passage.refused()
                    raise unavailable(str(error)) from error
                except UpstreamLost:
                    pass
                self._settle(passage, result)
            if result is not None and result.answer is Answer.APPLIED:
                entry.state = _state(upload, etag, result.header("x-amz-version-id"))
                return await self._completed(upload, result, etag)
            return await self._unclear(write, live, upload, result)

    async def abort(self, write: Write, upload: Upload) -> Result:
        """AbortMultipartUpload: throws away what was staged; also for an upload that has been overtaken."""
        request = request_of(write, payload_sha256=EMPTY_SHA256)
        result = await self._staged(request)
        if upload.state is UploadState.COMPLETED:
            return result  # too late; a repeated Complete is answered as before
        if result.answer is Answer.APPLIED or result.code == "NoSuchUpload":
            await self.bindings.thrown_away(upload)
        if result.code == "NoSuchUpload" and upload.state in (UploadState.REVOKED, UploadState.ABORTED):
            return Result(204, [], b"")  # it has been thrown away: the gateway was there before
        return result

    # --- Complete's answers

    def _settle(self, passage: Passage, result: Result | None) -> None:
        if result is None or result.answer is Answer.LOST:
            passage.lost()
        elif result.answer is Answer.REFUSED:
            passage.refused()
        else:
            passage.applied()

    async def _unclear(self, write: Write, live: LiveGate, upload: Upload, result: Result | None) -> Result:
        """No success came back: whether there was one all the same, the object tells."""
        gone = result is not None and result.code == "NoSuchUpload"
        lost = result is None or result.answer is Answer.LOST
        if gone or lost:
            try:
                if (found := await self._found(write, upload)) is not None:
                    return found
            except (FenceError, S3Error):
                if not lost:
                    raise
        if result is None or lost:
            seen = "no answer" if result is None else f"status {result.status} {result.code or ''}".strip()
            raise in_doubt(write, live.gate.floor, seen)
        return result

    async def _found(self, write: Write, upload: Upload) -> Result | None:
        """All Completes of an upload share one nonce: if the object bears it, one of them has succeeded, which decides
        the answer and settles nothing. Raises `FenceError` or `S3Error` where nobody can tell."""
        if not upload.nonce:
            return None
        state, headers = await look(self._upstream, write)
        if judge(state, write.key, write.token, upload.nonce) is not Verdict.OURS:
            return None
        version = dict(headers).get("x-amz-version-id")
        kept = [] if version is None else [("x-amz-version-id", version)]
        return await self._completed(upload, _success(upload, state.etag or "", kept), state.etag or "")

    async def _completed(self, upload: Upload, result: Result, etag: str) -> Result:
        await self.bindings.completed(upload, etag)
        return result

    async def _again(self, write: Write, upload: Upload) -> Result:
        """A repeated Complete answers success again while the floor is still its own."""
        try:
            live = await self._fences.admit(write.key, write.token, cause=write.cause, request_id=write.request_id)
        except Refused as error:
            error.outcome = Outcome.UNKNOWN
            raise
        self._fences.unpin(live)
        if write.body is not None:
            await write.body.read()
        return _success(upload, upload.etag or "", [])

    # --- small parts

    async def _staged(self, request: UpstreamRequest) -> Result:
        return await send_bodiless(self._upstream, request, self._fences.timing.commit_timeout_assembly_s)

    def _passage(self, write: Write, live: LiveGate, entry: ObjectEntry) -> Passage:
        return Passage(
            self._fences,
            live,
            entry,
            write.token,
            assembles=write.operation.assembles,
            request_id=write.request_id,
        )


def take_binding(write: Write, claimed: Claimed, upload: Upload) -> None:
    """Let `write` take key and token of the upload that it names. Raises `Malformed` where the request names others."""
    key = FencingKey(upload.fence_key)
    for named in (claimed.key, write.key if write.ruled else None):
        if named is not None and named != key:
            raise Malformed(
                Reason.KEY_MISMATCH,
                f"This upload was created under the fencing key {key!r}, the request names {named!r}.",
                key=key,
                token=claimed.token,
                argument=("X-Fencing-Key", named),
            )
    if claimed.token is not None and claimed.token != upload.token:
        raise Malformed(
            Reason.TOKEN_INVALID,
            f"This upload was created with token {upload.token or 'none'}, the request bears {claimed.token}. An "
            "upload belongs to one token: begin a new one.",
            key=key,
            token=claimed.token,
            argument=("X-Fencing-Token", str(claimed.token)),
        )
    write.key, write.token, write.named = key, Token(upload.token), True


def _success(upload: Upload, etag: str, headers: list[tuple[str, str]]) -> Result:
    body = render_complete_result(upload.bucket, upload.object_key, etag)
    return Result(200, [*headers, ("content-type", "application/xml")], body)


def _state(upload: Upload, etag: str, version: str | None) -> ObjectState | None:
    if not etag:
        return None
    key = key_in_metadata(upload.fence_key) if upload.token else None
    return ObjectState(etag, key, upload.token, upload.nonce, version not in (None, "null"))
