"""The ports that the embedded store listens at, all on loopback."""

from __future__ import annotations

import errno
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LOWEST_PORT, HIGHEST_PORT = 11000, 22000
"""With their gRPC twins (+ 10000) below Linux's ephemeral ports, which outgoing connections take."""
GRPC_OFFSET = 10000


@dataclass(frozen=True, slots=True)
class Ports:
    """The four HTTP ports; each has a gRPC twin at + 10000."""

    master: int
    volume: int
    filer: int
    s3: int

    @classmethod
    def reserve(cls) -> Ports:
        """Four ports that are free now, and their twins. Another process may still be quicker."""
        found: set[int] = set()
        while len(found) < 4:
            port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
            if _is_free(port) and _is_free(port + GRPC_OFFSET):
                found.add(port)
        return cls(*found)

    def are_free(self) -> bool:
        return all(_is_free(p) and _is_free(p + GRPC_OFFSET) for p in asdict(self).values())

    def remove_sockets(self) -> None:
        """Remove the sockets that SeaweedFS opens beside each gRPC port, always in /tmp, and leaves behind; where that
        cannot be, it has its own words for it."""
        for role, port in asdict(self).items():
            path = Path(f"/tmp/seaweedfs-{role}-grpc-{port + GRPC_OFFSET}.sock")  # noqa: S108 - its choice
            with suppress(OSError):
                path.unlink()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what lingers from the last run is no hindrance
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
