"""An S3 store in memory, for tests of what stands before it: no I/O, no clock, no chance.

It answers as real S3 does where servers differ (conditional requests: S3 user guide, "Conditional requests"), and
keeps the rule that the fence rests on: of an upload nothing is visible until its last byte has come."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from defusedxml.ElementTree import ParseError, fromstring

from gateway.s3.errors import S3Error, to_xml
from gateway.s3.request import parse_query
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest

_KEPT = frozenset(
    ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")
)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it is visible. `serial` orders all changes of the store."""

    data: bytes
    etag: str
    metadata: tuple[tuple[str, str], ...]
    serial: int


@dataclass(slots=True)
class StoredUpload:
    """A multipart upload that is under way."""

    bucket: str
    key: str
    metadata: tuple[tuple[str, str], ...]
    serial: int
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class MemoryResponse:
    """An answer whose body is there already."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n == name), None)

    async def read(self, limit_bytes: int) -> bytes:
        if len(self._body) > limit_bytes:
            raise UpstreamLost(f"the upstream's answer is longer than {limit_bytes} bytes")
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 65536):
            yield self._body[start : start + 65536]

    def close(self) -> None:
        pass


class MemoryExchange:
    """A request that is applied when its last byte is written."""

    def __init__(self, store: MemoryUpstream, request: UpstreamRequest, content_length: int) -> None:
        self._store = store
        self._request = request
        self._unsent = content_length
        self._body = bytearray()
        self._committed = False
        self._aborted = False
        self._answer: MemoryResponse | None = None

    async def write(self, data: bytes) -> None:
        if len(data) > self._unsent:
            raise ValueError(f"{len(data)} bytes written where {self._unsent} are left")
        if data and len(data) == self._unsent and not self._committed:
            raise ValueError("the bytes that complete a request need commit() before them")
        if self._aborted:
            raise (UpstreamLost if self._committed else UpstreamNotReached)("the exchange was aborted")
        self._body += data
        self._unsent -= len(data)
        if not self._unsent and self._answer is None:
            self._answer = self._store.apply(self._request, bytes(self._body))

    def commit(self) -> None:
        self._committed = True

    async def response(self, timeout_s: float) -> MemoryResponse:
        if self._answer is not None and not self._aborted:
            return self._answer
        if self._aborted:
            raise (UpstreamLost if self._committed else UpstreamNotReached)("the exchange was aborted")
        raise ValueError(f"{self._unsent} bytes of the body are still to be written")

    def abort(self) -> None:
        self._aborted = True


class MemoryUpstream:
    """The store (`gateway.upstream.base.Upstream`). `buckets` exist from the start."""

    def __init__(self, *buckets: str) -> None:
        self.buckets: dict[str, dict[str, StoredObject]] = {name: {} for name in buckets}
        self.uploads: dict[str, StoredUpload] = {}
        self._serial = 0
        self._changed: dict[tuple[str, str], tuple[str, int]] = {}  # the last put or delete of a key

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        if content_length < 1:
            raise ValueError("a request without a body has no staging: its head commits it, use send")
        return MemoryExchange(self, request, content_length)

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        return self.apply(request, body)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        return self.apply(request, body)

    async def close(self) -> None:
        pass

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        """Let a whole request take effect and answer it."""
        try:
            answer = self._dispatch(_Call(request, body))
        except S3Error as error:
            xml = to_xml(error, resource=f"/{request.bucket}/{request.raw_key}", request_id="0", host_id="0")
            headers = [("content-type", "application/xml"), ("content-length", str(len(xml)))]
            answer = MemoryResponse(error.status, headers, xml)
        if request.method == "HEAD" or answer.status in (204, 304):
            return MemoryResponse(answer.status, answer.headers, b"")
        return answer

    def _dispatch(self, call: _Call) -> MemoryResponse:
        if call.bucket == "":
            return _xml_answer(
                "ListAllMyBucketsResult",
                "<Buckets>" + "".join(f"<Bucket><Name>{n}</Name></Bucket>" for n in self.buckets) + "</Buckets>",
            )
        if call.key == "" and call.method == "PUT" and not call.query:
            self.buckets.setdefault(call.bucket, {})
            return _answer(200)
        if call.bucket not in self.buckets:
            raise S3Error("NoSuchBucket", "The specified bucket does not exist", BucketName=call.bucket)
        if call.key == "":
            return self._bucket_call(call)
        if "uploads" in call.query or "uploadId" in call.query:
            return self._upload_call(call)
        match call.method:
            case "PUT" if "x-amz-copy-source" in call.headers:
                return self._copy(call)
            case "PUT" if not call.query:
                self._check_write(call)
                return _answer(200, etag=self._put(call, call.body, call.metadata()).etag)
            case "GET" | "HEAD" if not call.query:
                return self._get(call)
            case "DELETE" if not call.query:
                return self._delete(call)
        raise S3Error("NotImplemented", "The store in memory does not know this operation")

    def _bucket_call(self, call: _Call) -> MemoryResponse:
        match call.method:
            case "HEAD":
                return _answer(200)
            case "GET" if call.query.get("list-type") == "2":
                return self._list(call)
            case "GET" if "uploads" in call.query:
                keys = [upload.key for upload in self.uploads.values() if upload.bucket == call.bucket]
                shown = "".join(f"<Upload><Key>{escape(key)}</Key></Upload>" for key in keys)
                return _xml_answer("ListMultipartUploadsResult", shown)
            case "GET" if "versioning" in call.query:
                return _xml_answer("VersioningConfiguration", "")
            case "POST" if "delete" in call.query:
                return self._delete_objects(call)
            case "DELETE":
                if self.buckets[call.bucket]:
                    raise S3Error("BucketNotEmpty", "The bucket you tried to delete is not empty", 409)
                del self.buckets[call.bucket]
                return _answer(204)
        raise S3Error("NotImplemented", "The store in memory does not know this operation")

    def _upload_call(self, call: _Call) -> MemoryResponse:
        if call.method == "POST" and "uploads" in call.query:
            self._serial += 1
            upload_id = f"upload-{self._serial}"
            self.uploads[upload_id] = StoredUpload(call.bucket, call.key, call.metadata(), self._serial)
            return _xml_answer("InitiateMultipartUploadResult", f"{call.names()}<UploadId>{upload_id}</UploadId>")
        upload_id = call.query.get("uploadId", "")
        upload = self.uploads.get(upload_id)
        if upload is None or (upload.bucket, upload.key) != (call.bucket, call.key):
            raise S3Error("NoSuchUpload", "The specified upload does not exist", UploadId=upload_id)
        match call.method:
            case "PUT":
                etag = _etag(call.body)
                upload.parts[int(call.query["partNumber"])] = (etag, call.body)
                return _answer(200, etag=etag)
            case "POST":
                return self._complete(call, upload_id, upload)
            case "DELETE":
                del self.uploads[upload_id]
                return _answer(204)
        raise S3Error("NotImplemented", "The store in memory does not know this operation")

    def _complete(self, call: _Call, upload_id: str, upload: StoredUpload) -> MemoryResponse:
        wanted = [(int(_text(p, "PartNumber")), _quoted(_text(p, "ETag"))) for p in _elements(call.body, "Part")]
        if not wanted or any(upload.parts.get(number, ("",))[0] != etag for number, etag in wanted):
            raise S3Error("InvalidPart", "One or more of the specified parts could not be found", 400)
        if wanted != sorted(wanted):
            raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order", 400)
        self._check_write(call)
        change, serial = self._changed.get((call.bucket, call.key), ("", 0))
        conflict = "delete" if "if-none-match" in call.headers else "put" if "if-match" in call.headers else None
        if change == conflict and serial > upload.serial:
            raise S3Error("ConditionalRequestConflict", "The object has changed since the upload began", 409)
        parts = [upload.parts[number] for number, _ in wanted]
        digest = hashlib.md5(b"".join(bytes.fromhex(etag.strip('"')) for etag, _ in parts), usedforsecurity=False)
        etag = f'"{digest.hexdigest()}-{len(parts)}"'
        self._put(call, b"".join(data for _, data in parts), upload.metadata, etag)
        del self.uploads[upload_id]
        return _xml_answer("CompleteMultipartUploadResult", f"{call.names()}<ETag>{escape(etag)}</ETag>")

    def _copy(self, call: _Call) -> MemoryResponse:
        source = self._source(call)
        if _quoted(call.headers.get("x-amz-copy-source-if-match", source.etag)) != source.etag:
            raise _precondition("x-amz-copy-source-If-Match")
        self._check_write(call)
        replace = call.headers.get("x-amz-metadata-directive") == "REPLACE"
        stored = self._put(call, source.data, call.metadata() if replace else source.metadata)
        return _xml_answer("CopyObjectResult", f"<ETag>{escape(stored.etag)}</ETag>")

    def _source(self, call: _Call) -> StoredObject:
        bucket, _, key = unquote(call.headers["x-amz-copy-source"].lstrip("/")).partition("/")
        source = self.buckets.get(bucket, {}).get(key)
        if source is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", Key=key)
        return source

    def _get(self, call: _Call) -> MemoryResponse:
        stored = self._object(call)
        headers = [("etag", stored.etag), ("last-modified", formatdate(stored.serial, usegmt=True))]
        if "if-match" in call.headers and _quoted(call.headers["if-match"]) != stored.etag:
            raise _precondition("If-Match")
        if "if-none-match" in call.headers and _quoted(call.headers["if-none-match"]) == stored.etag:
            return MemoryResponse(304, headers, b"")
        data, status = stored.data, 200
        headers += [*stored.metadata, ("accept-ranges", "bytes")]
        if asked := _RANGE.fullmatch(call.headers.get("range", "")):
            start, stop = _span(asked[1], asked[2], len(data))
            headers.append(("content-range", f"bytes {start}-{stop - 1}/{len(data)}"))
            data, status = data[start:stop], 206
        return MemoryResponse(status, [*headers, ("content-length", str(len(data)))], data)

    def _delete(self, call: _Call) -> MemoryResponse:
        if "if-none-match" in call.headers:
            raise S3Error("NotImplemented", "A header you provided implies functionality that is not implemented")
        if "if-match" in call.headers:
            stored = self._object(call)
            if call.headers["if-match"] != "*" and _quoted(call.headers["if-match"]) != stored.etag:
                raise _precondition("If-Match")
        self._remove(call.bucket, call.key)
        return _answer(204)

    def _delete_objects(self, call: _Call) -> MemoryResponse:
        keys = [_text(element, "Key") for element in _elements(call.body, "Object")]
        for key in keys:
            self._remove(call.bucket, key)
        return _xml_answer("DeleteResult", "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys))

    def _list(self, call: _Call) -> MemoryResponse:
        prefix, limit = call.query.get("prefix", ""), int(call.query.get("max-keys", "1000"))
        after = call.query.get("continuation-token") or call.query.get("start-after", "")
        objects = self.buckets[call.bucket]
        keys = sorted((k for k in objects if k.startswith(prefix) and k > after), key=str.encode)
        shown, more = keys[:limit], len(keys) > limit
        coded = quote if call.query.get("encoding-type") == "url" else escape
        body = f"<Name>{call.bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(shown)}</KeyCount>"
        body += f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
        if more and shown:
            body += f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>"
        for key in shown:
            stored = objects[key]
            body += f"<Contents><Key>{coded(key)}</Key><ETag>{escape(stored.etag)}</ETag>"
            body += f"<Size>{len(stored.data)}</Size></Contents>"
        return _xml_answer("ListBucketResult", body)

    def _check_write(self, call: _Call) -> None:
        """The conditions that S3 takes on PUT, Copy and Complete; others it does not implement."""
        present = self.buckets[call.bucket].get(call.key)
        match, none_match = call.headers.get("if-match"), call.headers.get("if-none-match")
        if (none_match or "*") != "*" or match == "*" or (match and none_match):
            raise S3Error("NotImplemented", "A header you provided implies functionality that is not implemented")
        if none_match and present is not None:
            raise _precondition("If-None-Match")
        if match and present is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", Key=call.key)
        if match and present is not None and _quoted(match) != present.etag:
            raise _precondition("If-Match")

    def _object(self, call: _Call) -> StoredObject:
        stored = self.buckets[call.bucket].get(call.key)
        if stored is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", Key=call.key)
        return stored

    def _put(
        self, call: _Call, data: bytes, metadata: tuple[tuple[str, str], ...], etag: str | None = None
    ) -> StoredObject:
        self._serial += 1
        self._changed[call.bucket, call.key] = ("put", self._serial)
        stored = StoredObject(data, etag or _etag(data), metadata, self._serial)
        self.buckets[call.bucket][call.key] = stored
        return stored

    def _remove(self, bucket: str, key: str) -> None:
        if self.buckets[bucket].pop(key, None) is not None:
            self._serial += 1
            self._changed[bucket, key] = ("delete", self._serial)


class _Call:
    """A request with its names decoded."""

    def __init__(self, request: UpstreamRequest, body: bytes) -> None:
        self.method = request.method
        self.bucket = request.bucket or ""
        self.key = unquote(request.raw_key)
        self.query = {n: v for n, v in parse_query(request.raw_query) if n != "x-id"}  # the name the SDKs add
        self.headers = dict(request.headers)
        self.body = body

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple((n, v) for n, v in self.headers.items() if n in _KEPT or n.startswith("x-amz-meta-"))

    def names(self) -> str:
        return f"<Bucket>{self.bucket}</Bucket><Key>{escape(self.key)}</Key>"


def _answer(status: int, **headers: str) -> MemoryResponse:
    return MemoryResponse(status, [*headers.items(), ("content-length", "0")], b"")


def _xml_answer(root: str, content: str) -> MemoryResponse:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} {_NAMESPACE}>{content}</{root}>'.encode()
    return MemoryResponse(200, [("content-type", "application/xml"), ("content-length", str(len(body)))], body)


def _elements(body: bytes, name: str) -> list[dict[str, str]]:
    """The children of every element of that name, whatever its namespace."""
    try:
        root = fromstring(body)
    except ParseError as error:
        raise S3Error("MalformedXML", "The XML you provided was not well-formed") from error
    return [
        {child.tag.rpartition("}")[2]: child.text or "" for child in element}
        for element in root.iter()
        if element.tag.rpartition("}")[2] == name
    ]


def _text(element: dict[str, str], name: str) -> str:
    if name not in element:
        raise S3Error("MalformedXML", "The XML you provided did not validate against our published schema")
    return element[name]


def _span(first: str, last: str, size: int) -> tuple[int, int]:
    """Start and stop of a byte range (RFC 9110, 14.1.2)."""
    start = int(first) if first else max(0, size - int(last or "0"))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= size or start >= stop:
        raise S3Error("InvalidRange", "The requested range is not satisfiable", 416)
    return start, stop


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _quoted(etag: str) -> str:
    return etag if etag.startswith('"') else f'"{etag}"'


def _precondition(condition: str) -> S3Error:
    message = "At least one of the pre-conditions you specified did not hold"
    return S3Error("PreconditionFailed", message, Condition=condition)
