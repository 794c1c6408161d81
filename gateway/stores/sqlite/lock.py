"""The lock that gives a database to one process: `flock` on a file beside it.

Not SQLite's own exclusive mode: that shuts out our reader too, and names nobody. The kernel frees the lock
when the process ends, however it ends. The file is never removed: a lock on a removed file locks nobody out.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from gateway.stores.base import StoreLocked


class FileLock:
    """Held from `acquire` to `release`, or to the end of the process; the same by whatever links the database is
    reached."""

    def __init__(self, database: Path) -> None:
        real = database.resolve()
        self._database = database
        self._path = real.with_name(real.name + ".lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock and sign it; StoreLocked names who has it. OSError where the file cannot be had."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()}, started {_now()}".encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(file, 200, 0).decode(errors="replace") or "another process"
            os.close(file)
            raise StoreLocked(
                f"{self._database} is in use by {holder}: stop it first, or give this gateway a database of its own"
            ) from error
        except OSError:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
