"""Which multipart uploads are open and which are over, and the task that throws away what has been overtaken (R6).

When the floor rises past an upload's token, it is revoked, and aborted upstream once nothing of it can land any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError
from gateway.core.keys import FencingKey
from gateway.core.write import Answer
from gateway.service.earlier_run import Bound
from gateway.service.fences import Fences
from gateway.service.refusals import store_unavailable
from gateway.service.sending import send_bodiless
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Upload, UploadState
from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamRequest

_log = structlog.get_logger(__name__)

_Place = tuple[str, str, str]
"""Bucket, object and upload id."""
REVOKE_RETRY_S = 30.0
AGAIN_S = 1.0
"""After a store that could not tell the state of a key."""
FORGET_EVERY_S = 3600.0


class Bindings:
    """The uploads of one gateway, and the key and token that each belongs to."""

    def __init__(self, fences: Fences, upstream: Upstream, clock: Clock, *, kept_s: float) -> None:
        """What is over is kept for `kept_s`."""
        self._fences = fences
        self._store = fences.store
        self._upstream = upstream
        self._clock = clock
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
        while page := await self._store.uploads.unfinished(after, 1000):
            for upload in page:
                if upload.state is not UploadState.COPYING:
                    self._begun(upload)
            self._earlier_copies += [upload for upload in page if upload.state is UploadState.COPYING]
            bound.update((upload.fence_key, upload.bucket, upload.object_key) for upload in page)
            last = page[-1]
            after = last.bucket, last.object_key, last.upload_id
        self._wanted = set(self._open)
        self._wake.set()
        self._fences.on_progress, self._fences.on_doubt = self.overtaken, self._look_at
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

    async def bind(self, upload: Upload) -> None:
        """Bind what has been created, durably; where that fails it is thrown away. Raises `TryAgain`."""
        # Noted before: whether it is bound is not known where the store fails, or the client goes away.
        self._begun(upload)
        try:
            await self._store.uploads.bind(upload)
        except StoreUnavailable as error:
            if await self._abort(upload):
                self._ended(upload)
                self._over[_place(upload)] = upload, None  # it may have been bound all the same
                self._wake.set()
            raise store_unavailable(error) from error

    def sent(self, upload: Upload) -> Callable[[], None]:
        """A Complete of the upload is sent; what is answered is to be called when it can land no more."""
        self._under_way[_place(upload)] += 1
        return partial(self._settled, upload)

    async def completed(self, upload: Upload, etag: str) -> None:
        """A Complete has succeeded."""
        if self._over.get(_place(upload), (upload, None))[1] is None:
            self._over[_place(upload)] = upload, etag
            self._ended(upload)
        await self._record_over()

    async def thrown_away(self, upload: Upload) -> None:
        """It has been aborted by its worker: forget it; while a Complete of it may land, that is only noted. Raises
        `TryAgain`."""
        if self._may_land(upload):
            self._over.setdefault(_place(upload), (upload, None))
        else:
            try:
                await self._store.uploads.close(upload)
            except StoreUnavailable as error:
                raise store_unavailable(error) from error
        if upload.state in (UploadState.OPEN, UploadState.REVOKED):
            self._ended(upload)

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
                    await self._store.uploads.close(upload)
                else:
                    await self._store.uploads.complete(upload, etag)
                self._over.pop(place, None)

    def overtaken(self, key: FencingKey) -> None:
        """Its floor has risen, or been sealed: its uploads are looked at."""
        if key in self._open:
            self._look_at(key)

    def _look_at(self, key: FencingKey) -> None:
        """Also of a key without uploads, where the store has failed: to look at its floor is to learn of it."""
        self._wanted.add(key)
        self._wake.set()

    async def _revoke_for_ever(self) -> None:
        now = asyncio.get_running_loop().time
        forget_at, copies_settle_at = now(), now() + self._fences.timing.settle_timeout_assembly_s
        pause_s = REVOKE_RETRY_S
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            pause_s = REVOKE_RETRY_S
            wanted, self._wanted = self._wanted, set()
            for key in wanted:
                try:
                    if not await self._revoke(FencingKey(key)):
                        self._wanted.add(key)
                except (FenceError, StoreUnavailable):
                    self._wanted.add(key)
                    pause_s = AGAIN_S
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
                await self._store.uploads.close(self._earlier_copies[-1])
                self._earlier_copies.pop()
            if bindings:
                await self._store.uploads.forget(self._clock.wall() - self._kept_s)

    async def _revoke(self, key: FencingKey) -> bool:
        """Revoke what is below the key's floor, or sealed; True when nothing of it is left to abort."""
        floor = (await self._fences.state(key)).floor
        below = await self._fences.ended_below(key)
        if below is None:
            return False
        done = True
        for upload in await self._store.uploads.revoke(key, below):
            if not await self._abort(upload):
                done = False
                continue
            await self._store.uploads.mark_aborted(upload)
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
            result = await send_bodiless(self._upstream, request, self._fences.timing.commit_timeout_assembly_s)
        except FenceError:
            return False
        return result.answer is Answer.APPLIED or result.status == 404

    def _begun(self, upload: Upload) -> None:
        self._open.setdefault(upload.fence_key, set()).add(_place(upload))

    def _ended(self, upload: Upload) -> None:
        places = self._open.get(upload.fence_key, set())
        places.discard(_place(upload))
        if not places:
            self._open.pop(upload.fence_key, None)


def _place(upload: Upload) -> _Place:
    return upload.bucket, upload.object_key, upload.upload_id
