"""The lock that gives a database to one process: `flock` on a file beside it.

Not SQLite's own exclusive mode: that shuts out our reader too, and names nobody. The kernel frees the lock
when the process ends, however it ends. The file is never removed: a lock on a removed file locks nobody out. People
remove it all the same, so a byte of the database is locked too, far beyond those that SQLite locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from datetime import UTC, datetime
from pathlib import Path

from gateway.stores.base import StoreLocked

_BYTE = 2**62


class FileLock:
    """Held from `acquire` to `release`, or to the end of the process; the same by whatever links the database is
    reached."""

    def __init__(self, database: Path) -> None:
        real = database.resolve()
        self._database = database
        self._path = real.with_name(real.name + ".lock")
        self._file: int | None = None
        self._data: int | None = None

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

    def acquire_database(self) -> None:
        """After `acquire`, and before SQLite opens the file, which has been made: StoreLocked where another process has
        it all the same. OSError."""
        data = os.open(self._database, os.O_RDWR | os.O_CLOEXEC)
        try:
            _lock_byte(data)
        except OSError as error:
            os.close(data)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreLocked(
                    f"{self._database} is in use by another process, and {self._path} is not locked: it has been "
                    "removed, or the database has two names. Find that process and stop it first"
                ) from error
            raise
        self._data = data

    def release(self) -> None:
        """Give the lock back, when SQLite has closed the file: a process that closes one loses what SQLite has locked
        of it. Harmless when it is not held."""
        for file in (self._data, self._file):
            if file is not None:
                os.close(file)
        self._data = self._file = None


def _lock_byte(file: int) -> None:
    """The lock is the open file's, not the process's (fcntl_locking(2), open file description locks). Raises OSError,
    EAGAIN or EACCES where another has it; a kernel that knows no such locks leaves it to the file beside."""
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        return
    # struct flock: type, whence, start, length, process
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _BYTE, 1, 0)
    try:
        fcntl.fcntl(file, command, wanted)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
