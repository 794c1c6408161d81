"""Multipart uploads (R6): an upload belongs to the key and token that created it, and to nobody else.

Creation binds the upload id, durably, before the client learns it. Parts and Complete take key and token from the
binding. When the floor rises past it, the upload is revoked, and aborted upstream once nothing of it can land any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import structlog

from gateway.core.errors import FenceError, Malformed, Outcome, Reason, Refused
from gateway.core.keys import FencingKey, Token, key_in_metadata
from gateway.core.write import Answer, ObjectState, Verdict, judge
from gateway.s3.errors import S3Error
from gateway.s3.fencing import Claimed, object_metadata
from gateway.s3.xml import find_text, render_complete_result
from gateway.service.earlier_run import Bound
from gateway.service.objects import ObjectEntry
from gateway.service.passages import LiveGate, Passage
from gateway.service.refusals import in_doubt, no_such_upload, store_unavailable, unavailable
from gateway.service.sending import deliver, look, request_of, result_of, send_at_hand, with_etag
from gateway.service.values import Result, Write
from gateway.service.writes import Writes
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Upload, UploadState
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamNotReached, UpstreamRequest

_log = structlog.get_logger(__name__)

_Place = tuple[str, str, str]
"""Bucket, object and upload id."""
REVOKE_RETRY_S = 30.0
FORGET_EVERY_S = 3600.0


class Uploads:
    """Bindings, and what happens under them."""

    def __init__(self, writes: Writes, *, kept_s: float = 7 * 86400) -> None:
        self._writes = writes
        self._fences = writes.fences
        self._store = writes.fences.store
        self._upstream = writes.upstream
        self._kept_s = kept_s
        self._open: dict[str, set[_Place]] = {}
        """The uploads of a key that are open or still to be aborted."""
        self._wanted: set[str] = set()
        self._earlier_copies: list[Upload] = []
        """Copies that an earlier run had under way when it ended; forgotten when they can no longer land."""
        self._under_way: Counter[_Place] = Counter()
        """How many Completes of an upload may still land."""
        self._over: dict[_Place, tuple[Upload, str | None]] = {}
        """Uploads finished by a Complete, with its ETag, or thrown away, and the store has not been told: another
        Complete may land."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> frozenset[Bound]:
        """Read the open bindings, go on revoking; answers what they bind. Raises `StoreUnavailable`."""
        after: tuple[str, str, str] | None = None
        bound: set[Bound] = set()
        while page := await self._store.open_uploads(after, 1000):
            for upload in page:
                if upload.state is not UploadState.COPYING:
                    self._begun(upload)
            self._earlier_copies += [upload for upload in page if upload.state is UploadState.COPYING]
            bound.update((upload.fence_key, upload.bucket, upload.object_key) for upload in page)
            last = page[-1]
            after = last.bucket, last.object_key, last.upload_id
        self._wanted = set(self._open)
        self._wake.set()
        self._fences.on_progress = self._overtaken
        self._task = asyncio.create_task(self._revoke_for_ever())
        return frozenset(bound)

    def open_of(self, key: str) -> int:
        """How many uploads of a key are open, or still to be aborted."""
        return len(self._open.get(key, ()))

    async def stop(self) -> None:
        """End the revoking; what is left is taken up at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- the operations

    async def create(self, write: Write) -> Result:
        """CreateMultipartUpload: bound durably before it is answered."""
        async with self._writes.admitted(write) as (live, _):
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
            # Noted before: whether it is bound is not known where the store fails, or the client goes away.
            self._begun(upload)
            try:
                await self._store.bind_upload(upload)
            except StoreUnavailable as error:
                if await self._abort(upload):
                    self._ended(upload)
                    self._over[_place(upload)] = upload, None  # it may have been bound all the same
                    self._wake.set()
                raise store_unavailable(error) from error
            finally:
                if live.gate.overtaken(write.token):
                    # Since its admission: what raised the floor, or sealed it, could not see this upload.
                    self._overtaken(write.key)
            live.gate.refuse_overtaken(write.token)
            return result

    async def bound(self, write: Write, claimed: Claimed) -> Upload:
        """The binding of the upload that `write` names; `write` takes its key and token.

        Raises `S3Error` (NoSuchUpload), `Malformed` where the request names others, `TryAgain`."""
        upload_id = write.head.param("uploadId") or ""
        try:
            upload = await self._store.upload(write.bucket, write.object_key, upload_id)
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
            request = request_of(write, payload_sha256=write.body.sha256 if write.body else EMPTY_SHA256)
            with self._passage(write, live, entry) as passage:
                passage.commit()
                self._under_way[_place(upload)] += 1
                passage.on_settled = partial(self._settled, upload)
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
            await self._forget(upload)
            if upload.state in (UploadState.OPEN, UploadState.REVOKED):
                self._ended(upload)
        if result.code == "NoSuchUpload" and upload.state in (UploadState.REVOKED, UploadState.ABORTED):
            return Result(204, [], b"")  # it has been thrown away: the gateway was there before
        return result

    async def _forget(self, upload: Upload) -> None:
        """Forget what has been thrown away; while a Complete of it may land, only noted. Raises `TryAgain`."""
        if self._may_land(upload):
            self._over.setdefault(_place(upload), (upload, None))
            return
        try:
            await self._store.close_upload(upload)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    # --- Complete's answers

    def _settle(self, passage: Passage, result: Result | None) -> None:
        if result is None or result.answer is Answer.LOST:
            passage.lost()
        elif result.answer is Answer.REFUSED:
            passage.refused()
        else:
            passage.applied()

    async def _unclear(self, write: Write, live: LiveGate, upload: Upload, result: Result | None) -> Result:
        """No success came back. All Completes of an upload share one nonce: if the object bears it, one of them has
        succeeded, which decides the answer and settles nothing."""
        gone = result is not None and result.code == "NoSuchUpload"
        lost = result is None or result.answer is Answer.LOST
        if upload.nonce and (gone or lost):
            try:
                state, headers = await look(self._upstream, write)
            except (FenceError, S3Error):
                if not lost:
                    raise
            else:
                if judge(state, write.key, write.token, upload.nonce) is Verdict.OURS:
                    version = dict(headers).get("x-amz-version-id")
                    kept = [] if version is None else [("x-amz-version-id", version)]
                    return await self._completed(upload, _success(upload, state.etag or "", kept), state.etag or "")
        if result is None or lost:
            seen = "no answer" if result is None else f"status {result.status} {result.code or ''}".strip()
            raise in_doubt(write, live.gate.floor, seen)
        return result

    async def _completed(self, upload: Upload, result: Result, etag: str) -> Result:
        if self._over.get(_place(upload), (upload, None))[1] is None:
            self._over[_place(upload)] = upload, etag
            self._ended(upload)
        await self._record_over()
        return result

    def _settled(self, upload: Upload) -> None:
        """One Complete of the upload can land no more."""
        place = _place(upload)
        self._under_way[place] -= 1
        if not self._under_way[place]:
            del self._under_way[place]
            self._wake.set()

    def _may_land(self, upload: Upload) -> bool:
        """Whether a Complete of the upload may still take effect, also one that an earlier run has sent."""
        left_s = self._fences.earlier_run.object_settles_in_s(upload.bucket, upload.object_key)
        return _place(upload) in self._under_way or left_s is not None

    async def _record_over(self) -> None:
        """Record what is over once nothing of it can land: until then its binding tells an unclean start to wait.
        A store may let two Completes of one upload win (measured on SeaweedFS)."""
        for place, (upload, etag) in list(self._over.items()):
            if self._may_land(upload):
                continue
            # Where it fails, it is tried again later: the object is there, or gone, all the same.
            with suppress(StoreUnavailable):
                if etag is None:
                    await self._store.close_upload(upload)
                else:
                    await self._store.complete_upload(upload, etag)
                self._over.pop(place, None)

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

    # --- revocation

    def _overtaken(self, key: FencingKey) -> None:
        if key in self._open:
            self._wanted.add(key)
            self._wake.set()

    async def _revoke_for_ever(self) -> None:
        now = asyncio.get_running_loop().time
        forget_at, copies_settle_at = now(), now() + self._fences.timing.settle_timeout_assembly_s
        while True:
            try:
                async with asyncio.timeout(REVOKE_RETRY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            wanted, self._wanted = self._wanted, set()
            for key in wanted:
                try:
                    if not await self._revoke(FencingKey(key)):
                        self._wanted.add(key)
                except (FenceError, StoreUnavailable):
                    self._wanted.add(key)
                except Exception:  # whatever stands in one upload's way must not end the revoking of all others
                    _log.exception("internal-error", fence_key=key)
                    self._wanted.add(key)
            forget = now() >= forget_at
            if forget:
                forget_at = now() + FORGET_EVERY_S
            try:
                await self._record_over()
                await self._tidy(copies=now() >= copies_settle_at, bindings=forget)
            except Exception:
                _log.exception("internal-error")

    async def _tidy(self, *, copies: bool, bindings: bool) -> None:
        """Forget the marks of an earlier run's copies, and the bindings that have been kept for long."""
        with suppress(StoreUnavailable):
            while copies and self._earlier_copies:
                await self._store.close_upload(self._earlier_copies[-1])
                self._earlier_copies.pop()
            if bindings:
                await self._store.forget_uploads(self._writes.clock.wall() - self._kept_s)

    async def _revoke(self, key: FencingKey) -> bool:
        """Revoke what is below the key's floor, or sealed; True when nothing of it is left to abort."""
        floor = (await self._fences.state(key)).floor
        below = await self._fences.ended_below(key)
        if below is None:
            return False
        done = True
        for upload in await self._store.revoke_uploads(key, below):
            if not await self._abort(upload):
                done = False
                continue
            await self._store.mark_aborted(upload)
            self._ended(upload)
            self._store.record(
                Event(key, EventKind.UPLOAD_REVOKED, upload.token, floor, f"{upload.bucket}/{upload.object_key}")
            )
        return done

    async def _abort(self, upload: Upload) -> bool:
        """Abort upstream; True when the upload is gone."""
        query = "uploadId=" + quote(upload.upload_id, safe="")
        request = UpstreamRequest("DELETE", upload.bucket, quote(upload.object_key, safe="/~"), query, (), EMPTY_SHA256)
        try:
            result = await self._staged(request)
        except FenceError:
            return False
        return result.answer is Answer.APPLIED or result.status == 404

    # --- small parts

    def _begun(self, upload: Upload) -> None:
        self._open.setdefault(upload.fence_key, set()).add(_place(upload))

    def _ended(self, upload: Upload) -> None:
        places = self._open.get(upload.fence_key, set())
        places.discard(_place(upload))
        if not places:
            self._open.pop(upload.fence_key, None)

    async def _staged(self, request: UpstreamRequest) -> Result:
        """A request without a visible effect, its answer read whole. Raises `TryAgain` (UpstreamUnavailable)."""
        try:
            return await result_of(
                await self._upstream.send(request, b"", self._fences.timing.commit_timeout_assembly_s)
            )
        except UpstreamNotReached as error:
            raise unavailable(str(error)) from error
        except UpstreamLost as error:
            raise unavailable(str(error), Outcome.UNKNOWN) from error

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


def _place(upload: Upload) -> _Place:
    return upload.bucket, upload.object_key, upload.upload_id


def _success(upload: Upload, etag: str, headers: list[tuple[str, str]]) -> Result:
    body = render_complete_result(upload.bucket, upload.object_key, etag)
    return Result(200, [*headers, ("content-type", "application/xml")], body)


def _state(upload: Upload, etag: str, version: str | None) -> ObjectState | None:
    if not etag:
        return None
    key = key_in_metadata(upload.fence_key) if upload.token else None
    return ObjectState(etag, key, upload.token, upload.nonce, version not in (None, "null"))
