"""What one side has answered so far, for the requests that follow and for telling its ids from the other side's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import parse_qs, unquote

from gateway.core.names import RECORD_KEY
from tests.differential.wire import Answer

_IDS = re.compile(rb"<(?:VersionId|DeleteMarkerVersionId|UploadId)>([^<]+)</")
RECORD = re.compile(
    rb"<(Contents|Version|DeleteMarker)>(?:(?!</\1>).)*<Key>%b</Key>.*?</\1>" % RECORD_KEY.encode(), re.DOTALL
)
"""What a list shows of the object that the gateway keeps in each bucket."""
_TOLD = re.compile(
    rb"<(NextContinuationToken|NextMarker|NextKeyMarker|NextVersionIdMarker|NextUploadIdMarker"
    rb"|NextPartNumberMarker|UploadId|ETag)>([^<]*)</"
)


@dataclass
class Memory:
    """One side's."""

    prefix: str = ""
    """Of keys that stand in for those which nobody has told yet."""
    uploads: list[tuple[str, str]] = field(default_factory=list)
    """Object key and id, in the order of their creation."""
    parts: dict[str, dict[int, str]] = field(default_factory=dict)
    """By upload id: part number and ETag."""
    aborted: set[str] = field(default_factory=set)
    """Ids of uploads."""
    completed: set[str] = field(default_factory=set)
    """Ids of uploads."""
    resent: set[str] = field(default_factory=set)
    """Ids of uploads of which a part has been sent twice."""
    versions: list[tuple[str, str]] = field(default_factory=list)
    """Object key and version id, in the order in which they were told."""
    etags: dict[str, str] = field(default_factory=dict)
    modified: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    ids: dict[bytes, bytes] = field(default_factory=dict)
    """This side's version and upload ids, and the names by which both sides know them."""

    def upload(self, number: int) -> tuple[str, str]:
        """Key and id of an upload; of one that does not exist while there is none."""
        return (
            self.uploads[number % len(self.uploads)] if self.uploads else (self.prefix + "unknown", "0123456789abcdef")
        )

    def version(self, number: int) -> tuple[str, str]:
        """Key and id of a version; of one that does not exist while there is none."""
        return self.versions[number % len(self.versions)] if self.versions else (self.prefix + "unversioned", "null")

    def parts_of(self, number: int) -> dict[int, str]:
        return self.parts.get(self.upload(number)[1], {})

    def learn(self, operation: str, target: str, answer: Answer) -> None:
        """Take in an answer. `target` is the path and query of its request."""
        path, _, query = target.partition("?")
        key = unquote(path).partition("/")[2].partition("/")[2]
        if answer.status >= 300:
            return
        body = RECORD.sub(b"", answer.body)
        for name in (b"x-amz-version-id", b"x-amz-copy-source-version-id"):
            self._name(answer.get(name))
        for found in _IDS.findall(body):
            self._name(found)
        for name, text in _TOLD.findall(body):
            self.told[name.decode()] = unescape(text.decode("utf-8", "replace"))
        version = answer.get(b"x-amz-version-id")
        if version not in (None, b"null"):
            self.versions.append((key, version.decode("latin-1")))
        if (etag := answer.get(b"etag")) is not None:
            self.etags[key] = etag.decode("latin-1")
        if (modified := answer.get(b"last-modified")) is not None:
            self.modified[key] = modified.decode("latin-1")
        self._learn_upload(operation, key, query, answer)

    def of_upload(self, target: str) -> frozenset[str]:
        """What has become of the upload that a request names: of `aborted`, `completed`, `resent`."""
        (upload_id,) = parse_qs(target.partition("?")[2]).get("uploadId", [""])[:1]
        return frozenset(n for n in ("aborted", "completed", "resent") if upload_id in getattr(self, n))

    def _learn_upload(self, operation: str, key: str, query: str, answer: Answer) -> None:
        if operation == "AbortMultipartUpload":
            self.aborted.update(parse_qs(query).get("uploadId", []))
        elif operation == "CompleteMultipartUpload" and answer.status == 200:
            self.completed.update(parse_qs(query).get("uploadId", []))
        elif operation == "CreateMultipartUpload" and "UploadId" in self.told:
            self.uploads.append((key, self.told["UploadId"]))
        elif operation in ("UploadPart", "UploadPartCopy"):
            named = parse_qs(query)
            number, upload_id = named.get("partNumber", ["0"])[0], named.get("uploadId", [""])[0]
            etag = answer.get(b"etag") or self.told.get("ETag", "").encode()
            if number.isdigit():
                parts = self.parts.setdefault(upload_id, {})
                if int(number) in parts:
                    self.resent.add(upload_id)
                parts[int(number)] = etag.decode("latin-1")

    def _name(self, identity: bytes | None) -> None:
        if identity not in (None, b"", b"null") and identity not in self.ids:
            self.ids[identity] = b"id-%d" % len(self.ids)

    def named(self, data: bytes) -> bytes:
        """`data` with the names in place of this side's own ids."""
        for identity, name in self.ids.items():
            if len(identity) >= 8:
                data = data.replace(identity, name)
        return data
