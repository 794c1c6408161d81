"""The frames of `aws-chunked`, taken off a body and put around one.

A frame is `<hex size>[;chunk-signature=<hex>]CRLF <data> CRLF`; one of size zero has no data and opens the
trailer: header lines, then an empty line. Sources: S3 API reference, "Transferring payload in multiple chunks"
and "Including trailing headers"; S3 user guide, "Checking object integrity". Whatever is not framed so S3
answers with IncompleteBody, and a trailer that is not what was announced with MalformedTrailerError.

Two deliberate differences to S3: data frames under 8 KiB are taken (S3 takes only the last), since other
servers take them; extensions of unsigned frames are ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import Enum, auto

from gateway.s3 import checksums
from gateway.s3.errors import S3Error
from gateway.s3.sigv4 import ChunkSigner

MAX_LINE_BYTES = 1024
"""The longest frame head or trailer line that is taken, with its line end."""

CHECKSUM_PREFIX = "x-amz-checksum-"

_SIGNED_HEAD = re.compile(rb"([0-9a-fA-F]+);chunk-signature=([0-9a-f]{64})\r\n")
_UNSIGNED_HEAD = re.compile(rb"([0-9a-fA-F]+)(?:;[^\r]*)?\r\n")


class _Expect(Enum):
    """What the next byte of the wire belongs to."""

    HEAD = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    NOTHING = auto()


def framing_fault() -> S3Error:
    """The framing is broken, or ended before its end."""
    return S3Error("IncompleteBody", "The request body terminated unexpectedly")


def length_fault(promised: int, provided: int) -> S3Error:
    """The payload is not as long as the head says."""
    return S3Error(
        "IncompleteBody",
        "You did not provide the number of bytes specified by the Content-Length HTTP header",
        NumberBytesExpected=str(promised),
        NumberBytesProvided=str(provided),
    )


def trailer_fault() -> S3Error:
    """The trailer is not what the head announced."""
    return S3Error(
        "MalformedTrailerError",
        "The request contained trailing data that was not well-formed or did not conform to our published schema.",
    )


def _signature_fault() -> S3Error:
    return S3Error(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided."
        " Check your key and signing method.",
    )


class ChunkDecoder:
    """Takes frames off, verifying each signature at the end of what it signs.

    `length` is that of the payload: the head of a frame that goes beyond it is a fault, wherever the body is cut.
    `signer` is None where frames are unsigned; `trailer` is the algorithm of the checksum that was announced,
    `sign_trailer` says that the trailer bears a signature. After an error it must not be used again."""

    def __init__(self, length: int, signer: ChunkSigner | None, trailer: str | None, *, sign_trailer: bool) -> None:
        self._length = length
        self._framed = 0
        self._signer = signer
        self._expect = _Expect.HEAD
        self._line = bytearray()
        self._left = 0
        self._claimed = ""
        self._hash = hashlib.sha256()
        self._trailer = _Trailer(signer if sign_trailer else None, trailer)

    @property
    def ended(self) -> bool:
        """True once the empty line that ends the trailer has come: all signatures are verified."""
        return self._expect is _Expect.NOTHING

    @property
    def checksum(self) -> bytes | None:
        """What the trailer says the payload's checksum is."""
        return self._trailer.checksum

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these bytes. Raises `S3Error`; then none of the bytes may be used."""
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._expect is _Expect.DATA:
                piece = data[at : at + self._left]
                at += len(piece)
                self._take_data(piece)
                pieces.append(piece)
            elif self._expect is _Expect.NOTHING:
                raise trailer_fault()
            else:
                at = self._take_line(data, at)
        return pieces

    def _take_data(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._signer is not None:
            self._hash.update(piece)
        if self._left == 0:
            self._verify_chunk()
            self._expect = _Expect.DATA_END

    def _take_line(self, data: bytes, at: int) -> int:
        """Take a line, or what has come of it; answer the position after it."""
        room = MAX_LINE_BYTES - len(self._line)
        end = data.find(b"\n", at, at + room) + 1
        if end == 0:
            if len(data) - at >= room:
                raise framing_fault()
            self._line += data[at:]
            return len(data)
        line = data[at:end]
        if self._line:
            line = bytes(self._line) + line
            self._line.clear()
        if self._expect is _Expect.HEAD:
            self._take_head(line)
        elif self._expect is _Expect.TRAILER:
            if self._trailer.take(line):
                self._expect = _Expect.NOTHING
        elif line == b"\r\n":
            self._expect = _Expect.HEAD
        else:
            raise framing_fault()
        return end

    def _take_head(self, line: bytes) -> None:
        head = (_UNSIGNED_HEAD if self._signer is None else _SIGNED_HEAD).fullmatch(line)
        if head is None:
            raise framing_fault()
        self._left = int(head[1], 16)
        self._framed += self._left
        if self._framed > self._length:
            raise length_fault(self._length, self._framed)
        if self._signer is not None:
            self._claimed = head[2].decode()
        if self._left:
            self._expect = _Expect.DATA
        else:
            self._verify_chunk()
            self._expect = _Expect.TRAILER

    def _verify_chunk(self) -> None:
        if self._signer is None:
            return
        if not hmac.compare_digest(self._signer.chunk_signature(self._hash.hexdigest()), self._claimed):
            raise _signature_fault()
        self._hash = hashlib.sha256()


class _Trailer:
    """The lines after the last frame: the announced checksum, then its signature, each exactly once.

    A line ends with CRLF, or with LF CRLF: the signature covers lines that end with LF, and some clients send
    that LF too (minio-go)."""

    def __init__(self, signer: ChunkSigner | None, algorithm: str | None) -> None:
        self._signer = signer
        self._algorithm = algorithm
        self._signed = False
        self._after_line_feed = False
        self.checksum: bytes | None = None
        self._hash = hashlib.sha256()

    def take(self, line: bytes) -> bool:
        """Take one line with its end; True when it ends the trailer. Raises `S3Error`."""
        if line == b"\r\n":
            if self._after_line_feed:
                self._after_line_feed = False
                return False
            if (self.checksum is None) != (self._algorithm is None) or self._signed != (self._signer is not None):
                raise trailer_fault()
            return True
        self._after_line_feed = not line.endswith(b"\r\n")
        name, colon, value = line.partition(b":")
        self._take_field(name.strip().lower() + colon, value.strip())
        return False

    def _take_field(self, name: bytes, value: bytes) -> None:
        if self._signed:
            raise trailer_fault()
        if name == b"x-amz-trailer-signature:" and self._signer is not None:
            signature = self._signer.trailer_signature(self._hash.hexdigest()).encode()
            if not hmac.compare_digest(signature, value):
                raise _signature_fault()
            self._signed = True
            return
        if self._algorithm is None or self.checksum is not None:
            raise trailer_fault()
        announced = CHECKSUM_PREFIX + self._algorithm
        if name != announced.encode() + b":":
            raise trailer_fault()
        self._hash.update(name + value + b"\n")
        self.checksum = checksums.decode(self._algorithm, value.decode("latin-1"))
        if self.checksum is None:
            raise S3Error("InvalidRequest", f"Value for {announced} trailing header is invalid.")


class TrailerEncoder:
    """Frames a payload of known length as STREAMING-UNSIGNED-PAYLOAD-TRAILER.

    Frames are `FRAME_BYTES` long but the last, whatever pieces the payload comes in, so that the
    Content-Length of the whole is known beforehand."""

    FRAME_BYTES = 64 * 1024

    def __init__(self, length: int, trailer_name: str) -> None:
        self._left = length
        self._left_of_frame = 0
        self._trailer_name = trailer_name

    @classmethod
    def encoded_length(cls, length: int, trailer_name: str, value_length: int) -> int:
        """Bytes on the wire for `length` bytes of payload and a trailer value of `value_length` characters."""
        frames, last = divmod(length, cls.FRAME_BYTES)
        total = frames * len(_frame(cls.FRAME_BYTES)) + length + frames * 2
        if last:
            total += len(_frame(last)) + 2
        return total + len(_closing(trailer_name, "")) + value_length

    def encode(self, piece: bytes) -> list[bytes]:
        """The piece with the frame parts that belong before, in and after it; payload is not regrouped."""
        if len(piece) > self._left:
            raise ValueError("more payload than was announced")
        parts: list[bytes] = []
        at = 0
        while at < len(piece):
            if self._left_of_frame == 0:
                self._left_of_frame = min(self._left, self.FRAME_BYTES)
                parts.append(_frame(self._left_of_frame))
            part = piece[at : at + self._left_of_frame]
            parts.append(part)
            at += len(part)
            self._left -= len(part)
            self._left_of_frame -= len(part)
            if self._left_of_frame == 0:
                parts.append(b"\r\n")
        return parts

    def closing(self, checksum_value: str) -> bytes:
        """What follows the payload: the zero frame and the trailer. Only when all payload has been framed."""
        if self._left:
            raise ValueError(f"{self._left} bytes of payload are still to come")
        return _closing(self._trailer_name, checksum_value)


def _frame(size: int) -> bytes:
    return b"%x\r\n" % size


def _closing(trailer_name: str, value: str) -> bytes:
    return f"0\r\n{trailer_name}:{value}\r\n\r\n".encode()
