"""Two stores in memory: one that knows nothing of a client's framing, one that keeps checksums."""

from __future__ import annotations

from gateway.s3.claim import STREAMING_UNSIGNED_TRAILER
from gateway.s3.errors import S3Error, to_xml
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream

FRAMING = frozenset({"transfer-encoding", "x-amz-decoded-content-length", "x-amz-trailer", "expect", "te", "trailer"})
PREFIX = "x-amz-checksum-"


def refusal(code: str, message: str) -> MemoryResponse:
    """An error as the store answers it."""
    error = S3Error(code, message)
    xml = to_xml(error, resource="/", request_id="0", host_id="0")
    return MemoryResponse(error.status, [("content-length", str(len(xml)))], xml)


class Strict(MemoryUpstream):
    """Knows plain bodies with a Content-Length alone: whatever else a request says of its framing is 501."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        named = dict(request.headers)
        streaming = (request.payload_sha256 or "").startswith("STREAMING-")
        if streaming or FRAMING & named.keys() or "aws-chunked" in named.get("content-encoding", ""):
            return refusal("NotImplemented", "The store knows no chunks and no trailers")
        return super().apply(request, body)


class Keeping(MemoryUpstream):
    """Unpacks unsigned chunks and keeps the checksums of some algorithms, sent before or behind a body; refuses other
    trailers and ignores other headers, as SeaweedFS does."""

    def __init__(self, *buckets: str, algorithms: tuple[str, ...]) -> None:
        super().__init__(*buckets)
        self._known = tuple(PREFIX + algorithm for algorithm in algorithms)
        self.kept: dict[tuple[str | None, str], tuple[str, str]] = {}
        """Name and value of each object's checksum."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        named, place = dict(request.headers), (request.bucket, request.raw_key)
        if request.method in ("GET", "HEAD"):
            answer = super().apply(request, body)
            if place in self.kept and answer.status == 200 and "x-amz-checksum-mode" in named:
                answer.headers.append(self.kept[place])
            return answer
        found = [(name, named[name]) for name in self._known if name in named]
        if request.payload_sha256 == STREAMING_UNSIGNED_TRAILER:
            body, name, value = unpacked(body)
            if name not in self._known or named["x-amz-trailer"] != name:
                return refusal("InvalidRequest", "The store does not know this trailer")
            found.append((name, value))
        answer = super().apply(request, body)
        if answer.status == 200:
            self.kept.pop(place, None)
            if found:
                self.kept[place] = found[0]
        return answer


def unpacked(body: bytes) -> tuple[bytes, str, str]:
    """The payload of unsigned chunks, the name and the value of their trailer."""
    payload = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            name, _, value = body.decode().rstrip("\r\n").partition(":")
            return payload, name, value
        payload += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
