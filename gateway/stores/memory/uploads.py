"""The bindings of uploads without a disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.stores.values import Upload, UploadState

_UploadId = tuple[str, str, str]


class MemoryUploads:
    """Implements `gateway.stores.base.UploadStore`. `require_running` raises StoreUnavailable while the store is
    closed; `clock` gives wall-clock time in seconds since the epoch."""

    def __init__(self, require_running: Callable[[], None], clock: Callable[[], float]) -> None:
        self._require_running = require_running
        self._clock = clock
        self._bound: dict[_UploadId, Upload] = {}

    async def bind(self, upload: Upload) -> None:
        self._require_running()
        if _id_of(upload) in self._bound:
            raise ValueError(f"upload {upload.upload_id!r} of {upload.bucket}/{upload.object_key} is bound")
        self._put(upload)

    async def bound(self, bucket: str, object_key: str, upload_id: str) -> Upload | None:
        self._require_running()
        return self._bound.get((bucket, object_key, upload_id))

    async def complete(self, upload: Upload, etag: str) -> None:
        if bound := self._own(upload):
            self._put(replace(bound, state=UploadState.COMPLETED, etag=etag))

    async def mark_aborted(self, upload: Upload) -> None:
        bound = self._own(upload)
        if bound is not None and bound.state is UploadState.REVOKED:
            self._put(replace(bound, state=UploadState.ABORTED))

    async def close(self, upload: Upload) -> None:
        if self._own(upload):
            del self._bound[_id_of(upload)]

    async def revoke(self, key: str, below: int) -> list[Upload]:
        for upload in self._listed(UploadState.OPEN):
            if upload.fence_key == key and upload.token < below:
                self._put(replace(upload, state=UploadState.REVOKED))
        return [upload for upload in self._listed(UploadState.REVOKED) if upload.fence_key == key]

    async def unfinished(self, after: _UploadId | None, limit: int) -> list[Upload]:
        uploads = self._listed(UploadState.OPEN, UploadState.COPYING, UploadState.REVOKED)
        return [upload for upload in uploads if after is None or _id_of(upload) > after][:limit]

    async def forget(self, before: float) -> int:
        old = [
            upload for upload in self._listed(UploadState.COMPLETED, UploadState.ABORTED) if upload.changed_at < before
        ]
        for upload in old:
            del self._bound[_id_of(upload)]
        return len(old)

    def _put(self, upload: Upload) -> None:
        self._bound[_id_of(upload)] = replace(upload, changed_at=self._clock())

    def _own(self, upload: Upload) -> Upload | None:
        """The binding, if it is of the same token."""
        self._require_running()
        bound = self._bound.get(_id_of(upload))
        return bound if bound is not None and bound.token == upload.token else None

    def _listed(self, *states: UploadState) -> list[Upload]:
        self._require_running()
        uploads = sorted(self._bound.items())
        return [upload for _, upload in uploads if upload.state in states]


def _id_of(upload: Upload) -> _UploadId:
    return (upload.bucket, upload.object_key, upload.upload_id)
