"""A store in memory that keeps versions: off, enabled or suspended, and switched at any moment.

Rules: S3 user guide, "Retaining multiple versions of objects with S3 Versioning" and the pages below it. What SeaweedFS
4.48 does otherwise has been measured (decision 0016).
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote
from xml.sax.saxutils import escape

from gateway.s3.errors import S3Error
from gateway.upstream.memory import (
    MemoryResponse,
    MemoryUpstream,
    StoredObject,
    _answer,
    _Call,
    _elements,
    _precondition,
    _text,
    _xml_answer,
)

NULL = "null"
"""The id of what was written while no versions were kept; an object has at most one of that id."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object. `stored` None: a delete marker."""

    id: str
    stored: StoredObject | None


class VersionedStore(MemoryUpstream):
    """One bucket, whose current versions `buckets` shows. Where that is a delete marker, there is no object."""

    def __init__(self, bucket: str, *, seaweedfs: bool) -> None:
        super().__init__(bucket)
        self.versioning = ""
        """As GetBucketVersioning says it: `Enabled`, `Suspended`, or empty for a bucket that has never kept any."""
        self.versions: dict[str, list[Version]] = {}
        """Of each object the oldest first."""
        self._bucket = bucket
        self._seaweedfs = seaweedfs
        self._ids = 0

    def refuses_itself(self, key: str) -> bool:
        """Whether no condition of a PUT can hold: where versions are kept no longer, SeaweedFS demands that it does
        both of the version shown and of the version `null`."""
        null = next((version.stored for version in self.versions.get(key, ()) if version.id == NULL), None)
        shown = self.buckets[self._bucket].get(key)
        return self._seaweedfs and self.versioning == "Suspended" and shown is not null

    # --- what changes

    def _keep(self, key: str, stored: StoredObject | None) -> None:
        """A new current version."""
        self._ids += 1
        version = Version(f"version-{self._ids}" if self.versioning == "Enabled" else NULL, stored)
        self.versions[key] = [*(older for older in self.versions.get(key, ()) if older.id != version.id), version]

    def _put(
        self, call: _Call, data: bytes, metadata: tuple[tuple[str, str], ...], etag: str | None = None
    ) -> StoredObject:
        stored = super()._put(call, data, metadata, etag)
        self._keep(call.key, stored)
        return stored

    def _remove(self, bucket: str, key: str) -> None:
        super()._remove(bucket, key)
        if self.versioning:
            self._keep(key, None)
        else:
            self.versions.pop(key, None)

    def _remove_version(self, bucket: str, key: str, version_id: str) -> None:
        """For good; what was current before it is so again."""
        left = [version for version in self.versions.get(key, ()) if version.id != version_id]
        self.versions[key] = left
        if left and left[-1].stored is not None:
            self.buckets[bucket][key] = left[-1].stored
        else:
            self.buckets[bucket].pop(key, None)

    def _check_write(self, call: _Call) -> None:
        super()._check_write(call)
        plain = call.method == "PUT" and "x-amz-copy-source" not in call.headers
        if plain and call.headers.keys() & {"if-match", "if-none-match"} and self.refuses_itself(call.key):
            raise _precondition("If-Match")

    # --- how it is asked for

    def _dispatch(self, call: _Call) -> MemoryResponse:
        if call.key and "versionId" in call.query:
            if call.method != "DELETE":
                return self._named(self._get(call), call.query["versionId"])
            self._remove_version(call.bucket, call.key, call.query["versionId"])
            return self._named(_answer(204), call.query["versionId"])
        answer = super()._dispatch(call)
        stages = "uploads" in call.query or "partNumber" in call.query or (call.method == "DELETE" and call.query)
        if not call.key or not self.versioning or stages:
            return answer
        current = self.versions[call.key][-1]
        silent = self._seaweedfs and current.id == NULL and call.method in ("PUT", "POST")
        return answer if silent else self._named(answer, current.id)

    @staticmethod
    def _named(answer: MemoryResponse, version_id: str) -> MemoryResponse:
        answer.headers.append(("x-amz-version-id", version_id))
        return answer

    def _bucket_call(self, call: _Call) -> MemoryResponse:
        if call.method == "GET" and "versioning" in call.query:
            return _xml_answer(
                "VersioningConfiguration", f"<Status>{self.versioning}</Status>" if self.versioning else ""
            )
        return super()._bucket_call(call)

    def _object(self, call: _Call) -> StoredObject:
        version_id = call.query.get("versionId")
        return super()._object(call) if version_id is None else self._version(call.key, version_id)

    def _source(self, call: _Call) -> StoredObject:
        place, _, version_id = call.headers["x-amz-copy-source"].partition("?versionId=")
        return self._version(unquote(place.partition("/")[2]), version_id) if version_id else super()._source(call)

    def _version(self, key: str, version_id: str) -> StoredObject:
        for version in self.versions.get(key, ()):
            if version.id == version_id and version.stored is not None:
                return version.stored
        raise S3Error("NoSuchVersion", "The specified version does not exist.", 404, Key=key, VersionId=version_id)

    def _delete_objects(self, call: _Call) -> MemoryResponse:
        deleted = ""
        for asked in _elements(call.body, "Object"):
            key, version_id = _text(asked, "Key"), asked.get("VersionId")
            if version_id is None:
                self._remove(call.bucket, key)
            else:
                self._remove_version(call.bucket, key, version_id)
            named = "" if version_id is None else f"<VersionId>{version_id}</VersionId>"
            deleted += f"<Deleted><Key>{escape(key)}</Key>{named}</Deleted>"
        return _xml_answer("DeleteResult", deleted)
