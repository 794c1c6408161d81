"""The bindings of uploads in the SQLite store, behind a bounded cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import aiosqlite

from gateway.stores.rules import require_text, require_token
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.cache import ReadThrough
from gateway.stores.sqlite.rows import execute, forget_before
from gateway.stores.sqlite.writer import Writer
from gateway.stores.values import Upload, UploadState

_UploadId = tuple[str, str, str]


class SqliteUploads:
    """Implements `gateway.stores.base.UploadStore`. `fetch` reads what is committed."""

    def __init__(
        self,
        writer: Callable[[], Writer],
        fetch: Callable[[str, sql.Values], Awaitable[list[sql.Row]]],
        clock: Callable[[], float],
        cache_size: int,
    ) -> None:
        self._writer = writer
        self._fetch = fetch
        self._clock = clock
        self._cache: ReadThrough[_UploadId, Upload | None] = ReadThrough(cache_size)

    async def bind(self, upload: Upload) -> None:
        for text in (*_id_of(upload), upload.fence_key, upload.nonce):
            require_text(text)
        require_token(upload.token)
        row = sql.row_of_upload(replace(upload, changed_at=self._clock()))
        this = _id_of(upload)
        bound = await self._writer().change_rows(
            partial(execute, sql.BIND_UPLOAD, row), lambda _: self._cache.forget(this)
        )
        if not bound:
            raise ValueError(f"upload {upload.upload_id!r} of {upload.bucket}/{upload.object_key} is bound")

    async def bound(self, bucket: str, object_key: str, upload_id: str) -> Upload | None:
        this = (bucket, object_key, upload_id)
        return await self._cache.read(this, partial(self._load, this))

    async def complete(self, upload: Upload, etag: str) -> None:
        values = _values_of(upload) | {"etag": require_text(etag), "at": self._clock()}
        await self._change(sql.COMPLETE_UPLOAD, upload, values)

    async def mark_aborted(self, upload: Upload) -> None:
        await self._change(sql.MARK_ABORTED, upload, _values_of(upload) | {"at": self._clock()})

    async def close(self, upload: Upload) -> None:
        await self._change(sql.CLOSE_UPLOAD, upload, _values_of(upload))

    async def revoke(self, key: str, below: int) -> list[Upload]:
        values = {"key": require_text(key), "below": require_token(below), "at": self._clock()}
        overtaken = [sql.upload_of(row) for row in await self._fetch(sql.OVERTAKEN_UPLOADS, values)]
        if all(upload.state is UploadState.REVOKED for upload in overtaken):
            return overtaken  # nothing to write: most hand-overs find no open upload

        async def revoke(connection: aiosqlite.Connection) -> list[Upload]:
            await connection.execute(sql.REVOKE_UPLOADS, values)
            return [sql.upload_of(row) for row in await execute(sql.OVERTAKEN_UPLOADS, values, connection)]

        def committed(revoked: list[Upload]) -> None:
            for upload in revoked:
                self._cache.forget(_id_of(upload))

        return await self._writer().change_rows(revoke, committed)

    async def unfinished(self, after: tuple[str, str, str] | None, limit: int) -> list[Upload]:
        bucket, object_key, upload_id = after or ("", "", "")
        values = {"bucket": bucket, "object_key": object_key, "upload_id": upload_id, "limit": limit}
        return [sql.upload_of(row) for row in await self._fetch(sql.OPEN_UPLOADS, values)]

    async def forget(self, before: float) -> int:
        def committed(forgotten: list[sql.Row]) -> None:
            for bucket, object_key, upload_id in forgotten:
                self._cache.forget((bucket, object_key, upload_id))

        return await forget_before(self._writer(), sql.FORGET_UPLOADS, before, committed)

    def clear_cache(self) -> None:
        """Have all be read anew: nobody knows what a transaction that failed has changed."""
        self._cache.clear()

    async def _change(self, statement: str, upload: Upload, values: Mapping[str, object]) -> None:
        this = _id_of(upload)
        await self._writer().change_rows(partial(execute, statement, values), lambda _: self._cache.forget(this))

    async def _load(self, this: _UploadId) -> Upload | None:
        for row in await self._fetch(sql.UPLOAD, this):
            return sql.upload_of(row)
        return None


def _id_of(upload: Upload) -> _UploadId:
    return (upload.bucket, upload.object_key, upload.upload_id)


def _values_of(upload: Upload) -> dict[str, object]:
    return {
        "bucket": upload.bucket,
        "object_key": upload.object_key,
        "upload_id": upload.upload_id,
        "token": upload.token,
    }
