"""The file: made, opened, migrated, and asked how the last run ended."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite

from gateway.stores.base import StoreUnavailable
from gateway.stores.rules import next_generation
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.migrations import MIGRATIONS, script
from gateway.stores.values import RESTORED, Authority, Start

_CLEAN = "clean"
_RULES_DIGEST = "rules_digest"
_BINDINGS_UNKNOWN = "bindings_unknown"
"""From the start of a restored database until its first clean stop."""
_DATABASE, _GENERATION = "database", "generation"
BACKUP = "backup"
"""In a file that is a backup, and has not been started yet: when it was made."""
_OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING."""
BUSY_TIMEOUT_S = 2.0
"""So long the writer waits for another program that writes to the file: less than a check may take, which would blame
the disk."""

_PRAGMAS = (
    # Of a new file. A floor's row has some hundred bytes, and each raise of another key writes a whole page to the log.
    "page_size = 2048",
    "journal_mode = WAL",
    # With NORMAL the last commits may be lost when the power fails (https://sqlite.org/pragma.html).
    "synchronous = FULL",
    # In pages: the log grows to 32 MB. The longer it is, the more commits share a page that is carried over.
    "wal_autocheckpoint = 16000",
    # In bytes: what the log has grown to while somebody read for long goes back to the disk, and not only at the stop.
    "journal_size_limit = 67108864",
    "cache_size = -65536",
)


def unavailable(error: BaseException) -> StoreUnavailable:
    """What to tell a person about `error`."""
    if isinstance(error, StoreUnavailable):
        return error
    code, number = getattr(error, "sqlite_errorname", ""), getattr(error, "errno", None)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        advice = (
            "the database is damaged: keep the file, and put the latest backup in its place "
            "(docs/operating.md tells what that means for the floors)"
        )
    elif code.startswith("SQLITE_FULL") or number == errno.ENOSPC:
        advice = "the disk is full: make room, and a gateway that runs goes on by itself"
    elif code.startswith("SQLITE_BUSY"):
        advice = "another program writes to the database: find it and end it, and a gateway that runs goes on by itself"
    elif code.startswith("SQLITE_READONLY") or number in (errno.EROFS, errno.EACCES):
        advice = (
            "the database cannot be written: is its file system mounted read-only, or are its files another user's?"
        )
    else:
        advice = "the database cannot be used"
    wrapped = StoreUnavailable(f"{advice} ({error or type(error).__name__})")
    wrapped.__cause__ = error
    return wrapped


def make_file(path: Path) -> None:
    """Make the database's directory (mode 700) and an empty file (mode 600) where they are missing."""
    make_directory(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    sync_directory(path.parent)


def refuse_stray_log(path: Path) -> None:
    """Before the file is opened: StoreUnavailable where the log beside it cannot be its own, since it is empty or has
    never been in use (https://sqlite.org/fileformat2.html#file_format_version_numbers). SQLite would make one database
    of both, or throw the log away. OSError."""
    real = path.resolve()
    log = real.with_name(real.name + "-wal")
    with real.open("rb") as file:
        version = file.read(20)[18:]
    if version in (b"", b"\x01\x01") and log.exists() and log.stat().st_size:
        raise StoreUnavailable(
            f"{log} is the log of a database that is not there: put that one back, or move the log away "
            "(docs/operating.md, the database is lost)"
        )


def make_directory(path: Path) -> None:
    """Make `path` and what is missing above it, durably, for this user alone."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make what has been made, renamed or removed in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def connect_writer(path: Path) -> aiosqlite.Connection:
    """The connection that writes; transactions begin and end as it is told, never by themselves."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
    connection = await _connection(path, timeout=BUSY_TIMEOUT_S)
    try:
        version = await _schema_version(connection, path)
        for pragma in _PRAGMAS:
            # Fetched to the end: a statement that is still running makes the next COMMIT fail.
            await connection.execute_fetchall(f"PRAGMA {pragma}")
        for step in range(version + 1, len(MIGRATIONS) + 1):
            await connection.executescript(script(step))
    except BaseException:
        await connection.close()
        raise
    return connection


def in_place(path: Path) -> Callable[[], None]:
    """Tells whether an open database can still be found by who opens it next: SQLite goes on writing to files that
    have been removed or replaced, and what it writes is gone with the process. What is answered raises
    `StoreUnavailable` where one has been; it looks at names, which are in memory, and waits for no disk."""
    real = path.resolve()
    opened = [(file, os.stat(file)) for file in (real, real.with_name(real.name + "-wal"))]

    def look() -> None:
        for file, then in opened:
            try:
                same = os.path.samestat(os.stat(file), then)
            except OSError:
                same = False
            if not same:
                raise StoreUnavailable(
                    f"{file} has been removed or replaced while the gateway runs: put the very file back, or stop the "
                    "gateway (docs/operating.md, the database is lost)"
                )

    return look


async def connect_reader(path: Path) -> aiosqlite.Connection:
    """A connection that only reads, and so sees what is committed, never what is being written.

    It cannot checkpoint either: two connections that do can lose commits in SQLite before 3.51.3
    (https://sqlite.org/wal.html)."""
    return await _connection(read_only(path), uri=True)


def _connection(database: Path | str, **options: Any) -> aiosqlite.Connection:
    """To be awaited. Its thread does not outlive the program: else one that a fault has ended would stay for ever."""
    connection = aiosqlite.connect(database, isolation_level=None, **options)
    connection._thread.daemon = True
    return connection


def read_only(path: Path) -> str:
    """The URI of a database that is only to be read."""
    return f"{path.absolute().as_uri()}?mode=ro"


async def _scalar(connection: aiosqlite.Connection, statement: str) -> int | str:
    ((value,),) = await connection.execute_fetchall(statement)
    return value  # type: ignore[no-any-return]


async def _schema_version(connection: aiosqlite.Connection, path: Path) -> int:
    """0 for a new file; StoreUnavailable, and the file untouched, for one that is not ours to open."""
    version = int(await _scalar(connection, "PRAGMA user_version"))
    tables = {name for (name,) in await connection.execute_fetchall(sql.TABLES)}
    if not tables >= {"meta", "fence"} if version else tables:
        raise StoreUnavailable(f"{path} is a database of another program: name another file")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"{path} has schema {version}, this gateway knows {len(MIGRATIONS)}: run the release that wrote it, "
            "or a newer one"
        )
    return version


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has begun."""

    start: Start
    authority: Authority


async def begin_run(connection: aiosqlite.Connection, rules_digest: str) -> Run:
    """Read how the last run ended, check the file if it ended badly, and durably begin a new run."""
    meta: dict[str, str] = dict(await connection.execute_fetchall(sql.META))  # type: ignore[arg-type]
    reasons = []
    has_served = _RULES_DIGEST in meta
    if has_served and _CLEAN not in meta:
        reasons.append("the last run did not stop cleanly")
        await _check_integrity(connection)
    if has_served and meta[_RULES_DIGEST] != rules_digest:
        reasons.append("the fencing rules have changed")
    await connection.execute(sql.BEGIN)
    database, generation = meta[_DATABASE], int(meta[_GENERATION])
    known = not {BACKUP, _BINDINGS_UNKNOWN} & meta.keys()
    if BACKUP in meta:
        reasons = [f"the database has been restored from a backup of {meta[BACKUP]}"]
        generation = next_generation(generation, 0)
        database = await _become_another(connection, generation)
    await connection.execute(sql.REMOVE_META, {"name": _CLEAN})
    await connection.execute(sql.WRITE_META, {"name": _RULES_DIGEST, "value": rules_digest})
    run = str(await _scalar(connection, sql.ADD_RUN))
    await connection.execute(sql.COMMIT)
    start = Start(clean=not reasons, reason="; ".join(reasons), bindings_known=known)
    return Run(start, Authority(database, generation, run))


async def _become_another(connection: aiosqlite.Connection, generation: int) -> str:
    """A restored database is not the one that wrote the buckets' records: it rules nothing until it has rebuilt. Nor
    does it know who has been granted what since its backup, so no lease in it is held. Answers its new identity."""
    await write_generation(connection, generation)
    await connection.execute(sql.FORGET_RUNS)
    await connection.execute(sql.CLAIM_ALL, (RESTORED,))
    await connection.execute(sql.END_LEASES)
    await connection.execute(sql.REMOVE_META, {"name": BACKUP})
    await connection.execute(sql.WRITE_META, {"name": _BINDINGS_UNKNOWN, "value": "yes"})
    return str(await _scalar(connection, sql.NEW_IDENTITY))


async def write_generation(connection: aiosqlite.Connection, generation: int) -> None:
    """Part of a transaction."""
    await connection.execute(sql.WRITE_META, {"name": _GENERATION, "value": str(generation)})


async def leave_clean_mark(connection: aiosqlite.Connection) -> None:
    """The last write of a run that leaves nothing unsettled."""
    await connection.execute(sql.WRITE_META, {"name": _CLEAN, "value": "yes"})
    await connection.execute(sql.REMOVE_META, {"name": _BINDINGS_UNKNOWN})


async def _check_integrity(connection: aiosqlite.Connection) -> None:
    """Raise sqlite3.DatabaseError or StoreUnavailable for a damaged file (0.15 s for a million keys)."""
    found = await _scalar(connection, "PRAGMA quick_check(1)")
    if found != "ok":
        error = sqlite3.DatabaseError(found)
        error.sqlite_errorname = "SQLITE_CORRUPT"
        raise error
