"""Where the frames of a write-ahead log end (https://sqlite.org/fileformat2.html#walformat)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24


@dataclass(frozen=True)
class Frame:
    start: int
    end: int
    commits: bool
    """Whether it is the last of a transaction."""


def frames(log: bytes) -> list[Frame]:
    """The frames of `log`, of its current salt, in order; a torn one at the end is left out."""
    page_bytes, _, salt = struct.unpack(">8xII8s8x", log[:_HEADER_BYTES])
    size = _FRAME_HEADER_BYTES + page_bytes
    found = []
    for start in range(_HEADER_BYTES, len(log) - size + 1, size):
        _, database_pages, frame_salt = struct.unpack(">II8s", log[start : start + 16])
        if frame_salt != salt:
            break
        found.append(Frame(start, start + size, database_pages != 0))
    return found
