"""S3's payload checksums: the algorithms of `x-amz-checksum-*`, computed as the payload comes.

Source: S3 user guide, "Checking object integrity": values are the base64 of the big-endian checksum or digest.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from awscrt import checksums as crt


class Running(Protocol):
    """A checksum over the bytes so far."""

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""
        ...

    def digest(self) -> bytes:
        """The checksum of all bytes so far, big-endian. Asked once, at the end."""
        ...


class _Crc:
    __slots__ = ("_size", "_step", "_value")

    def __init__(self, step: Callable[[bytes, int], int], size: int) -> None:
        self._step = step
        self._size = size
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


class _XxHash:
    __slots__ = ("_hash", "update")

    def __init__(self, hash_: crt.XXHash) -> None:
        self._hash = hash_
        self.update = hash_.update

    def digest(self) -> bytes:
        return bytes(self._hash.finalize())


@dataclass(frozen=True, slots=True)
class _Algorithm:
    size: int
    """Length of the checksum in bytes."""
    start: Callable[[], Running]


# A copy of an empty hash costs a third of a new one.
_ALGORITHMS = {
    "crc32": _Algorithm(4, lambda: _Crc(zlib.crc32, 4)),
    "crc32c": _Algorithm(4, lambda: _Crc(crt.crc32c, 4)),
    "crc64nvme": _Algorithm(8, lambda: _Crc(crt.crc64nvme, 8)),
    "md5": _Algorithm(16, hashlib.md5(usedforsecurity=False).copy),
    "sha1": _Algorithm(20, hashlib.sha1(usedforsecurity=False).copy),
    "sha256": _Algorithm(32, hashlib.sha256().copy),
    "sha512": _Algorithm(64, hashlib.sha512().copy),
    "xxhash64": _Algorithm(8, lambda: _XxHash(crt.XXHash.new_xxhash64())),
    "xxhash3": _Algorithm(8, lambda: _XxHash(crt.XXHash.new_xxhash3_64())),
    "xxhash128": _Algorithm(16, lambda: _XxHash(crt.XXHash.new_xxhash3_128())),
}

ALGORITHMS = frozenset(_ALGORITHMS)
"""Names as they end a header name: `x-amz-checksum-<algorithm>`."""


def start(algorithm: str) -> Running:
    """A checksum of no bytes yet. `algorithm` is one of `ALGORITHMS`."""
    return _ALGORITHMS[algorithm].start()


def decode(algorithm: str, value: str) -> bytes | None:
    """The checksum that a header's base64 value stands for; None where it cannot be one of that algorithm."""
    try:
        checksum = b64decode(value, validate=True)
    except ValueError:
        return None
    return checksum if len(checksum) == _ALGORITHMS[algorithm].size else None


def encode(checksum: bytes) -> str:
    """The base64 that a header carries."""
    return b64encode(checksum).decode()


def value_length(algorithm: str) -> int:
    """How many characters `encode` gives for that algorithm."""
    return (_ALGORITHMS[algorithm].size + 2) // 3 * 4
