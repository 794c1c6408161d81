"""The body's way: what a request's head promises about its payload, and whether the body keeps it.

Payload passes through as it comes; its end is withheld (`Tail`, rule R2) until the body has ended and every
promise is verified: length, SHA-256, Content-MD5, checksum, each chunk's signature, the trailer.
Sources: S3 API reference, PutObject, "Authenticating requests" and "Error responses"; S3 user guide, "Checking
object integrity"; the errors of malformed bodies as S3 has been seen to answer them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from gateway.s3 import checksums
from gateway.s3.chunked import CHECKSUM_PREFIX, ChunkDecoder, TrailerEncoder, framing_fault, length_fault
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers
from gateway.s3.sigv4 import ChunkSigner

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "PayloadDecoder",
    "PayloadMode",
    "PayloadSpec",
    "Tail",
    "TrailerEncoder",
    "payload_spec",
]

MAX_PAYLOAD_BYTES = 5 * 2**30
"""S3 user guide, "Uploading objects": the most that one PUT or one part may hold."""

_NOT_CHECKSUMS = frozenset(("x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"))


class PayloadMode(Enum):
    """How the body is sent and signed; all but SIGNED_HASH by the value of `x-amz-content-sha256`."""

    SIGNED_HASH = "<hex SHA-256>"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    def __init__(self, name: str) -> None:
        self.chunked = name.startswith("STREAMING-")
        """The body is framed as aws-chunked."""
        self.signed_chunks = name.startswith("STREAMING-AWS4-")
        """Each chunk bears a signature."""
        self.trailer = name.endswith("-TRAILER")
        """The last chunk may be followed by trailing headers."""


@dataclass(slots=True)
class PayloadSpec:
    """What the head promises about the body."""

    mode: PayloadMode
    length: int
    """Decoded payload, in bytes."""
    sha256: str | None = None
    """Lower-case hex, with SIGNED_HASH."""
    content_md5: bytes | None = None
    """16 bytes."""
    checksums: tuple[tuple[str, str], ...] = ()
    """(algorithm, base64 value) of the `x-amz-checksum-*` header; at most one."""
    trailer: str | None = None
    """The algorithm that `x-amz-trailer` announces."""
    wire_length: int | None = None
    """Content-Length; None with chunked transfer coding."""


def payload_spec(headers: Headers, payload: str, *, object_checksums: bool = False) -> PayloadSpec:
    """Read the promises. `payload` is a valid `x-amz-content-sha256`, or UNSIGNED-PAYLOAD where none is due.

    `object_checksums` is for CompleteMultipartUpload, whose checksum headers speak of the object and not of
    the body. Raises `S3Error` (400, or 411 where no length is known)."""
    mode = _MODES.get(payload, _HASH)
    length, wire_length = _lengths(headers, mode)
    trailer = _trailer(headers, mode)
    sums = () if object_checksums else _checksum_headers(headers)
    if len(sums) + (trailer is not None) > 1:
        raise _invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
    announced = headers.get("x-amz-sdk-checksum-algorithm")
    used = trailer or (sums[0][0] if sums else None)
    if announced is not None and used is not None and announced.lower() != used:
        raise _invalid("Value for x-amz-sdk-checksum-algorithm header is invalid.")
    sha256 = payload.lower() if mode is _HASH else None
    return PayloadSpec(mode, length, sha256, _content_md5(headers), sums, trailer, wire_length)


_HASH = PayloadMode.SIGNED_HASH
_MODES = {mode.value: mode for mode in PayloadMode}


def _invalid(message: str) -> S3Error:
    return S3Error("InvalidRequest", message)


def _lengths(headers: Headers, mode: PayloadMode) -> tuple[int, int | None]:
    """Of the decoded payload, and on the wire."""
    wire = headers.all("content-length")
    coding = headers.get("transfer-encoding")
    if len(wire) > 1 or (wire and coding is not None):
        raise _invalid("Content-Length must be given once, and not together with Transfer-Encoding.")
    if coding is not None and coding.strip().lower() != "chunked":
        raise S3Error("NotImplemented", "A header you provided implies functionality that is not implemented")
    wire_length = _number(wire[0]) if wire else None
    if wire and wire_length is None:
        raise _invalid("The Content-Length is not a number.")
    decoded = headers.get("x-amz-decoded-content-length")
    length = wire_length if decoded is None and not mode.chunked else _number(decoded or "")
    if length is None:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    if length > MAX_PAYLOAD_BYTES:
        raise S3Error(
            "EntityTooLarge",
            "Your proposed upload exceeds the maximum allowed size",
            ProposedSize=str(length),
            MaxSizeAllowed=str(MAX_PAYLOAD_BYTES),
        )
    return length, wire_length


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def _trailer(headers: Headers, mode: PayloadMode) -> str | None:
    names = headers.all("x-amz-trailer")
    if not names:
        return None
    name = names[0].strip().lower()
    algorithm = name.removeprefix(CHECKSUM_PREFIX)
    known = name != algorithm and algorithm in checksums.ALGORITHMS
    if len(names) > 1 or not known or not mode.trailer:
        raise _invalid("The value specified in the x-amz-trailer header is not supported")
    return algorithm


@lru_cache(maxsize=256)
def _checksum_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.startswith(CHECKSUM_PREFIX) and name not in _NOT_CHECKSUMS)


def _checksum_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """(algorithm, base64 value) of each. Raises `S3Error`."""
    sums = []
    for name in _checksum_names(headers.names):
        algorithm, value = name.removeprefix(CHECKSUM_PREFIX), headers.first[name]
        if algorithm not in checksums.ALGORITHMS:
            raise _invalid("The algorithm type you specified in x-amz-checksum- header is invalid.")
        if checksums.decode(algorithm, value) is None:
            raise _invalid(f"Value for {name} header is invalid.")
        sums.append((algorithm, value))
    return tuple(sums)


def _content_md5(headers: Headers) -> bytes | None:
    value = headers.get("content-md5")
    if value is None:
        return None
    digest = checksums.decode("md5", value)
    if digest is None:
        raise S3Error("InvalidDigest", "The Content-MD5 you specified was invalid.")
    return digest


class PayloadDecoder:
    """Gives a body's payload and verifies every promise about it, each hash computed once.

    What `feed` gives is not verified before `finish` returns: its end must be withheld till then. An error is
    final: every later call raises it again, and gives nothing."""

    def __init__(self, spec: PayloadSpec, chunk_signer: ChunkSigner | None) -> None:
        """`chunk_signer` is needed exactly where `spec.mode.signed_chunks`."""
        mode = spec.mode
        if mode.signed_chunks != (chunk_signer is not None):
            raise ValueError("a chunk signer belongs to signed chunks, and to them alone")
        self.spec = spec
        self._received = 0
        self._fault: S3Error | None = None
        self._frames = (
            ChunkDecoder(
                spec.length, chunk_signer, spec.trailer, sign_trailer=mode is PayloadMode.SIGNED_CHUNKS_TRAILER
            )
            if mode.chunked
            else None
        )
        needed = {spec.trailer} if spec.trailer is not None else set()
        if spec.sha256 is not None:
            needed.add("sha256")
        if spec.content_md5 is not None:
            needed.add("md5")
        for algorithm, _ in spec.checksums:
            needed.add(algorithm)
        self._sums = {algorithm: checksums.start(algorithm) for algorithm in needed}
        self._updates = [running.update for running in self._sums.values()]
        self.trailing_checksum: tuple[str, str] | None = None
        """(algorithm, base64) of the trailer, once `finish` has verified it."""

    @property
    def complete(self) -> bool:
        """All payload has come; the end of the body, and so its proof, may still be outstanding."""
        return self._received == self.spec.length

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these bytes of the body, in order, no piece empty. Raises `S3Error`."""
        if self._fault is not None:
            raise self._fault
        try:
            pieces = self._frames.feed(data) if self._frames is not None else [data] if data else []
            for piece in pieces:
                self._received += len(piece)
                for update in self._updates:
                    update(piece)
            if self._received > self.spec.length:
                raise length_fault(self.spec.length, self._received)
        except S3Error as fault:
            self._fault = fault
            raise
        return pieces

    def finish(self) -> None:
        """The body has ended. Raises `S3Error` unless all that was promised has come and is verified."""
        if self._fault is not None:
            raise self._fault
        try:
            self._verify()
        except S3Error as fault:
            self._fault = fault
            raise

    def _verify(self) -> None:
        spec = self.spec
        if self._frames is not None and not self._frames.ended:
            raise framing_fault()
        if not self.complete:
            raise length_fault(spec.length, self._received)
        digests = {algorithm: running.digest() for algorithm, running in self._sums.items()}
        if spec.sha256 is not None and digests["sha256"].hex() != spec.sha256:
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
                ClientComputedContentSHA256=spec.sha256,
                S3ComputedContentSHA256=digests["sha256"].hex(),
            )
        if spec.content_md5 is not None and digests["md5"] != spec.content_md5:
            raise S3Error(
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
                ExpectedDigest=checksums.encode(spec.content_md5),
                CalculatedDigest=checksums.encode(digests["md5"]),
            )
        for algorithm, value in spec.checksums:
            _verify_checksum(algorithm, checksums.decode(algorithm, value), digests)
        if spec.trailer is not None and self._frames is not None:
            _verify_checksum(spec.trailer, self._frames.checksum, digests)
            self.trailing_checksum = spec.trailer, checksums.encode(digests[spec.trailer])


def _verify_checksum(algorithm: str, claimed: bytes | None, digests: dict[str, bytes]) -> None:
    if claimed != digests[algorithm]:
        name = algorithm.upper()
        raise S3Error("BadDigest", f"The {name} you specified did not match the calculated checksum.")


class Tail:
    """Withholds the end of a payload (rule R2): what `push` has given never completes it.

    The piece with the last byte is kept whole; nothing is copied. An empty payload has no tail: there the
    commit point is sending the request."""

    def __init__(self, length: int) -> None:
        self._left = length
        self._held: bytes | None = b"" if length == 0 else None

    def push(self, pieces: Iterable[bytes]) -> list[bytes]:
        """What of these pieces may go upstream now. Raises ValueError beyond the payload's length."""
        given = [piece for piece in pieces if piece]
        left = self._left - sum(map(len, given))
        if left < 0:
            raise ValueError("more payload than was announced")
        self._left = left
        if left == 0 and given:
            self._held = given.pop()
        return given

    def release(self) -> bytes:
        """The withheld end, once. Raises ValueError before all payload has come: there is no end to give."""
        if self._held is None:
            raise ValueError(f"{self._left} bytes of payload are still to come, or the tail has been released")
        held, self._held = self._held, None
        return held
