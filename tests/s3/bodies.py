"""Bodies as clients send them, framed and signed here without the code under test."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gateway.s3.errors import S3Error
from gateway.s3.payload import PayloadDecoder, PayloadMode, Tail, payload_spec
from gateway.s3.request import Headers
from gateway.s3.sigv4 import ChunkSigner

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
AMZ_DATE = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"


@dataclass(frozen=True)
class Signing:
    """Who signs, when, in which scope, and the signature of the head."""

    secret: str = SECRET
    amz_date: str = AMZ_DATE
    scope: str = SCOPE
    seed: str = SEED

    def key(self) -> bytes:
        derived = b"AWS4" + self.secret.encode()
        for part in self.scope.split("/"):
            derived = hmac.digest(derived, part.encode(), "sha256")
        return derived

    def sign(self, previous: str, kind: str, *covered: bytes) -> str:
        hashes = "\n".join(hashlib.sha256(part).hexdigest() for part in covered)
        text = f"AWS4-HMAC-SHA256-{kind}\n{self.amz_date}\n{self.scope}\n{previous}\n{hashes}"
        return hmac.new(self.key(), text.encode(), "sha256").hexdigest()


def key() -> bytes:
    return Signing().key()


def crc32(payload: bytes) -> str:
    return b64encode(zlib.crc32(payload).to_bytes(4, "big")).decode()


def split(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data cut at those places; a place that comes twice, or lies beyond, gives an empty piece."""
    edges = [0, *sorted(places), max(len(data), *places, 0)]
    return [data[start:end] for start, end in pairwise(edges)]


def unsigned_chunks(chunks: Iterable[bytes], trailer: str | None = None) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"
    return framed + (f"{trailer}\r\n".encode() if trailer else b"") + b"\r\n"


def signed_chunks(
    chunks: Iterable[bytes], trailer: str | None = None, line_end: bytes = b"\r\n", signing: Signing | None = None
) -> bytes:
    signing = signing or Signing()
    framed, previous = b"", signing.seed
    for chunk in (*chunks, b""):
        previous = signing.sign(previous, "PAYLOAD", b"", chunk)
        framed += b"%x;chunk-signature=%b\r\n" % (len(chunk), previous.encode())
        framed += chunk + b"\r\n" if chunk else b""
    if trailer is not None:
        signature = signing.sign(previous, "TRAILER", f"{trailer}\n".encode())
        framed += trailer.encode() + line_end + f"x-amz-trailer-signature:{signature}\r\n".encode()
    return framed + b"\r\n"


@dataclass(frozen=True)
class Upload:
    """A request's head, as far as it speaks of the body, and the body."""

    headers: tuple[tuple[str, str], ...]
    payload_hash: str
    body: bytes

    def decoder(self) -> PayloadDecoder:
        spec = payload_spec(Headers(self.headers), self.payload_hash)
        return PayloadDecoder(spec, ChunkSigner(key(), AMZ_DATE, SCOPE, SEED) if spec.mode.signed_chunks else None)


def upload(
    mode: PayloadMode,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    chunk: int = 5,
    body: bytes | None = None,
) -> Upload:
    """A right upload in that mode; `headers` come on top of its own, `body` replaces the framed one."""
    trailer = f"x-amz-checksum-crc32:{crc32(payload)}"
    pieces = split(payload, chunk)
    framed = {
        PayloadMode.SIGNED_HASH: lambda: payload,
        PayloadMode.UNSIGNED: lambda: payload,
        PayloadMode.SIGNED_CHUNKS: lambda: signed_chunks(pieces),
        PayloadMode.SIGNED_CHUNKS_TRAILER: lambda: signed_chunks(pieces, trailer),
        PayloadMode.UNSIGNED_CHUNKS_TRAILER: lambda: unsigned_chunks(pieces, trailer),
    }[mode]()
    fields = {"content-length": str(len(framed if body is None else body))}
    if mode.chunked:
        fields |= {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(payload))}
    if mode.trailer:
        fields["x-amz-trailer"] = "x-amz-checksum-crc32"
    fields |= headers or {}
    payload_hash = hashlib.sha256(payload).hexdigest() if mode is PayloadMode.SIGNED_HASH else mode.value
    return Upload(tuple(fields.items()), payload_hash, framed if body is None else body)


@dataclass(frozen=True)
class Passage:
    """What became of a body that went the gateway's way."""

    staged: bytes
    """What had gone upstream before the commit point."""
    tail: bytes
    fault: S3Error | None


def pass_through(sent: Upload, cuts: Iterable[bytes]) -> Passage:
    """Feed the pieces, withhold the tail, release it only when all is verified."""
    decoder, staged = sent.decoder(), b""
    tail = Tail(decoder.spec.length)
    try:
        for piece in cuts:
            staged += b"".join(tail.push(decoder.feed(piece)))
        decoder.finish()
    except S3Error as fault:
        return Passage(staged, b"", fault)
    return Passage(staged, tail.release(), None)
