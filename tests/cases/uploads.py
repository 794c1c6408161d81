"""Uploads in every way in which S3's clients send a body: the mode of its payload, and its framing in HTTP."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from dataclasses import dataclass, replace
from enum import Enum

from gateway.s3 import checksums
from gateway.s3.claim import STREAMING_SIGNED, STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER, UNSIGNED_PAYLOAD
from gateway.s3.payload import PayloadDecoder, payload_spec
from gateway.s3.request import Headers
from gateway.s3.sigv4 import ChunkSigner, presign, signing_key
from tests.conftest import REGION
from tests.s3.bodies import cut, split, unsigned_chunks
from tests.server.rig import CREDENTIALS, HOST, Answer, Pairs, Wire, raw, signed


class Mode(Enum):
    """How the payload is sent and signed; by the value of `x-amz-content-sha256`, which PLAIN does not send at all."""

    HEX = "hex"
    UNSIGNED = UNSIGNED_PAYLOAD
    SIGNED_CHUNKS = STREAMING_SIGNED
    SIGNED_TRAILER = STREAMING_SIGNED_TRAILER
    UNSIGNED_TRAILER = STREAMING_UNSIGNED_TRAILER
    PLAIN = "by a presigned URL"

    @property
    def chunked(self) -> bool:
        return self.value.startswith("STREAMING-")

    @property
    def signs_chunks(self) -> bool:
        return self in (Mode.SIGNED_CHUNKS, Mode.SIGNED_TRAILER)

    @property
    def trailer(self) -> bool:
        return self in (Mode.SIGNED_TRAILER, Mode.UNSIGNED_TRAILER)


class Framing(Enum):
    """How HTTP frames the body, and whether its sender waits for `100 Continue`."""

    LENGTH = "content-length"
    CHUNKED = "chunked"
    EXPECT = "content-length, Expect"
    EXPECT_CHUNKED = "chunked, Expect"

    @property
    def chunked(self) -> bool:
        return self in (Framing.CHUNKED, Framing.EXPECT_CHUNKED)

    @property
    def expects(self) -> bool:
        return self in (Framing.EXPECT, Framing.EXPECT_CHUNKED)


@dataclass(frozen=True)
class Upload:
    """A PUT: its head, and its body before the framing of HTTP."""

    head: bytes
    body: bytes
    framing: Framing = Framing.LENGTH

    def framed(self, *cuts: int) -> bytes:
        """The body as it goes over the wire; with chunked transfer coding, in chunks that end at `cuts` too."""
        if not self.framing.chunked:
            return self.body
        return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in cut(self.body, cuts) if p) + b"0\r\n\r\n"

    def decoder(self) -> PayloadDecoder:
        """What the gateway would read the body by, made from the head alone."""
        lines = [line.partition(b": ") for line in self.head.split(b"\r\n")[1:] if line]
        headers = Headers.of_raw((name, value) for name, _, value in lines)
        spec = payload_spec(headers, headers.get("x-amz-content-sha256") or UNSIGNED_PAYLOAD)
        signer = _chunk_signer(self.head, headers.get("x-amz-date") or "") if spec.mode.signed_chunks else None
        return PayloadDecoder(spec, signer)

    def with_body(self, body: bytes) -> Upload:
        """The same head before another body, which chunked transfer coding alone allows."""
        return replace(self, body=body)


def checksum(algorithm: str, payload: bytes) -> str:
    """The value of `x-amz-checksum-<algorithm>`."""
    running = checksums.start(algorithm)
    running.update(payload)
    return b64encode(running.digest()).decode()


def upload(
    target: str,
    payload: bytes,
    mode: Mode,
    framing: Framing = Framing.LENGTH,
    *,
    fields: Pairs = (),
    algorithm: str = "crc32",
    value: str | None = None,
    chunk: int = 65536,
    decoded: int | None = None,
    trailer: bytes | None = None,
    method: str = "PUT",
    now: float | None = None,
) -> Upload:
    """A right upload, but for what is given: another trailing checksum (`value`), another trailer (whole lines, where
    chunks are unsigned), another decoded length."""
    name = f"x-amz-checksum-{algorithm}"
    line = f"{name}:{checksum(algorithm, payload) if value is None else value}"
    own: list[tuple[str, str]] = list(fields)
    if mode.chunked:
        own.append(("content-encoding", "aws-chunked"))
    if mode.chunked or framing.chunked:
        own.append(("x-amz-decoded-content-length", str(len(payload) if decoded is None else decoded)))
    if mode.trailer:
        own.append(("x-amz-trailer", name))
    pieces = split(payload, chunk)
    if mode.signs_chunks:
        # What is signed does not change the length of what is sent.
        length = len(_signed(pieces, ChunkSigner(b"", "", "", ""), line if mode.trailer else None))
    elif mode is Mode.UNSIGNED_TRAILER:
        body = unsigned_chunks(pieces, line)
        if trailer is not None:
            body = unsigned_chunks(pieces)[:-2] + trailer + b"\r\n"
        length = len(body)
    else:
        body, length = payload, len(payload)
    http = [("expect", "100-continue")] if framing.expects else []
    http.append(("transfer-encoding", "chunked") if framing.chunked else ("content-length", str(length)))
    now = time.time() if now is None else now
    if mode is Mode.PLAIN:
        head = _presigned(method, target, own, http, now)
    else:
        payload_hash = hashlib.sha256(payload).hexdigest() if mode is Mode.HEX else mode.value
        head = signed(method, target, own, payload=payload_hash, unsigned=http, now=now)
    if mode.signs_chunks:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(int(now)))
        body = _signed(pieces, _chunk_signer(head, stamp), line if mode.trailer else None)
    return Upload(head, body, framing)


def _presigned(method: str, target: str, own: Pairs, http: Pairs, now: float) -> bytes:
    path, _, query = target.partition("?")
    query = presign(method, HOST, path, query, own, expires_s=60, credentials=CREDENTIALS, region=REGION, now=now)
    return raw(f"{method} {path}?{query} HTTP/1.1", [("host", HOST), *own, *http])


def _chunk_signer(head: bytes, stamp: str) -> ChunkSigner:
    seed = head.partition(b"Signature=")[2][:64].decode()
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    return ChunkSigner(signing_key(CREDENTIALS.secret_key, stamp[:8], REGION, "s3"), stamp, scope, seed)


def _signed(pieces: list[bytes], signer: ChunkSigner, trailer: str | None) -> bytes:
    parts = []
    for piece in (*pieces, b""):
        signature = signer.chunk_signature(hashlib.sha256(piece).hexdigest()).encode()
        parts.append(b"%x;chunk-signature=%b\r\n" % (len(piece), signature) + (piece + b"\r\n" if piece else b""))
    if trailer is not None:
        signature = signer.trailer_signature(hashlib.sha256(trailer.encode() + b"\n").hexdigest()).encode()
        parts.append(trailer.encode() + b"\r\nx-amz-trailer-signature:" + signature + b"\r\n")
    return b"".join(parts) + b"\r\n"


async def converse(wire: Wire, sent: Upload, *cuts: int) -> Answer:
    """Send an upload on this connection, its body only when it is asked for where it waits, and read the answer."""
    if not sent.framing.expects:
        await wire.send(sent.head + sent.framed(*cuts))
        return await wire.answer("PUT")
    await wire.send(sent.head)
    first = await wire.answer("PUT")
    if first.status != 100:
        return first
    await wire.send(sent.framed(*cuts))
    return await wire.answer("PUT")
