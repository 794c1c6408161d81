"""Backups: a consistent copy of a database that is in use, and a copy put in the place of a database that is not.

A backup is marked as one. Whoever starts it is another database of the next generation, which rules no bucket until it
has rebuilt the floors from the objects: a copy knows nothing of what has happened since.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite.database import BACKUP, make_directory, read_only, sync_directory, unavailable
from gateway.stores.sqlite.lock import FileLock
from gateway.stores.sqlite.migrations import JOBS_SINCE, LEASES_SINCE, MIGRATIONS, OUTBOX_SINCE, script
from gateway.stores.values import Event

LEFT_FREE_BYTES = 32 * 2**20
"""So much room a backup leaves where it is made: the database grows meanwhile, most often on the same disk."""

MOST_TOLD = 20
"""So many of the floors that were raised are told by name."""

_TELL_HIGHER = """
INSERT INTO event (key, kind, token, floor, detail, request_id, count, at)
SELECT old.key, 'found', old.floor, coalesce(mine.floor, 0), 'the database that was replaced', '', 1, ?
FROM replaced.fence AS old LEFT JOIN main.fence AS mine ON mine.key = old.key
WHERE old.floor > coalesce(mine.floor, 0)
"""
_TOLD = """
SELECT key, kind, token, floor, detail, request_id, count, at, serial FROM event
WHERE serial > ? ORDER BY key LIMIT ?
"""
_TAKE_OVER_FENCES = """
INSERT INTO fence (key, floor, completed_floor, sealed_token, shadow_floor, raised_at)
SELECT key, floor, completed_floor, sealed_token, shadow_floor, raised_at FROM replaced.fence WHERE true
ON CONFLICT (key) DO UPDATE SET
    floor = max(floor, excluded.floor), completed_floor = max(completed_floor, excluded.completed_floor),
    sealed_token = max(sealed_token, excluded.sealed_token), shadow_floor = max(shadow_floor, excluded.shadow_floor),
    raised_at = max(raised_at, excluded.raised_at)
WHERE excluded.floor > floor OR excluded.completed_floor > completed_floor
   OR excluded.sealed_token > sealed_token OR excluded.shadow_floor > shadow_floor
"""
_TAKE_OVER_LEASES = """
UPDATE fence SET (granted_token, holder, ttl_s, granted_at, grant_id, completed_token) =
    (SELECT granted_token, holder, ttl_s, granted_at, grant_id, max(completed_token, fence.completed_token)
     FROM replaced.fence AS old WHERE old.key = fence.key)
WHERE EXISTS (SELECT 1 FROM replaced.fence AS old WHERE old.key = fence.key AND old.floor = fence.floor)
"""
"""After the floors: where the old database's is the one that holds, so is all that it knew of leases, and its last
completion. That a job has been reopened since, the backup's jobs do not know."""
_TAKE_OVER_COMPLETIONS = """
INSERT INTO job (key, queue, state, priority, attempts, submitted_at, available_at, token, delivery, error,
    completed_token, holder, completed_at, outputs, result, payload)
SELECT old.key, queue, state, priority, attempts, submitted_at, available_at, token, delivery, error,
    old.completed_token, old.holder, completed_at, outputs, result, payload
FROM replaced.job AS old JOIN main.fence ON fence.key = old.key AND fence.completed_token = old.completed_token
WHERE true
ON CONFLICT (key) DO UPDATE SET
    queue = excluded.queue, state = excluded.state, priority = excluded.priority, attempts = excluded.attempts,
    submitted_at = excluded.submitted_at, available_at = excluded.available_at, token = excluded.token,
    delivery = excluded.delivery, error = excluded.error, completed_token = excluded.completed_token,
    holder = excluded.holder, completed_at = excluded.completed_at, outputs = excluded.outputs,
    result = excluded.result, payload = excluded.payload
"""
"""After the leases: job and fence agree on what is done."""
_TAKE_OVER_RULINGS = """
INSERT INTO ruling (bucket, claim, after, objects) SELECT bucket, claim, NULL, 0 FROM replaced.ruling WHERE true
ON CONFLICT DO NOTHING
"""
_TAKE_OVER_OUTBOX = """
INSERT INTO outbox (webhook, key, kind, token, floor, detail, request_id, count, at)
SELECT webhook, key, kind, token, floor, detail, request_id, count, at FROM replaced.outbox AS other
WHERE NOT EXISTS (
    SELECT 1 FROM outbox AS known WHERE known.webhook = other.webhook AND known.key = other.key
    AND known.kind = other.kind AND known.token = other.token AND known.detail = other.detail AND known.at = other.at
)
ORDER BY serial
"""
_TAKE_OVER_GENERATION = """
UPDATE meta SET value = max(CAST(value AS INTEGER),
    (SELECT CAST(value AS INTEGER) FROM replaced.meta WHERE name = 'generation'))
WHERE name = 'generation'
"""


class DatabaseThere(FileExistsError):
    """There is a database already; the message says what is in it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a database file, for people."""

    made: str
    """When the backup was made; empty where the file is none."""
    keys: int
    generation: int
    buckets: tuple[str, ...]
    """Those that the database ruled."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has done."""

    contents: Contents
    raised: int | None
    """How many floors have been raised to those of the database that was replaced; None if there was none, or if it
    could not be read."""
    found: tuple[Event, ...]
    """The first of them, by key."""
    kept: Path | None
    """Where that database lies now."""
    unreadable: str | None
    """Why it could not be read."""


def write_backup(source: Path, file: Path, now: float) -> None:
    """Copy what is committed in `source`, which may be in use, to `file`, which must not exist, and sync it. Raises
    sqlite3.Error, OSError, and `StoreUnavailable` where there is no room for it; then there is no such file."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _write_backup(source, file, now)
    except BaseException:
        _remove(file)
        raise


def _write_backup(source: Path, file: Path, now: float) -> None:
    with closing(sqlite3.connect(read_only(source), uri=True)) as connection:
        _require_room(connection, file.parent)
        # One read transaction; the writer goes on meanwhile (https://sqlite.org/lang_vacuum.html#vacuuminto).
        connection.execute("VACUUM INTO ?", (str(file),))
    _mark(file, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    _sync(file)


def _require_room(connection: sqlite3.Connection, directory: Path) -> None:
    pages, free, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    needed_bytes = (pages - free) * page_bytes + LEFT_FREE_BYTES
    room_bytes = shutil.disk_usage(directory).free
    if room_bytes < needed_bytes:
        raise StoreUnavailable(
            f"a backup needs {needed_bytes / 1e6:.0f} MB in {directory}, where {room_bytes / 1e6:.0f} MB are free: "
            "make room. Nothing has been written"
        )


def contents_of(file: Path) -> Contents:
    """Read a file whole and say what is in it. Raises `StoreUnavailable` where it is no sound database of ours."""
    if not file.is_file():
        raise StoreUnavailable(f"{file} is not a file")
    try:
        with closing(sqlite3.connect(read_only(file), uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in connection.execute(sql.TABLES)}
            if not version or "fence" not in tables:
                raise StoreUnavailable(f"{file} is not a database of this gateway")
            if version > len(MIGRATIONS):
                raise StoreUnavailable(f"{file} has schema {version}, this gateway knows {len(MIGRATIONS)}")
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreUnavailable(f"{file} is damaged ({found})")
            meta = dict(connection.execute(sql.META))
            (keys,) = connection.execute("SELECT count(*) FROM fence").fetchone()
            rulings = connection.execute(sql.RULINGS) if "ruling" in tables else ()
            buckets = tuple(bucket for bucket, *_ in rulings)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{file} cannot be read ({error})") from error
    return Contents(meta.get(BACKUP, ""), keys, int(meta.get("generation", 0)), buckets)


def restore(file: Path, target: Path, now: float, *, force: bool) -> Restored:
    """Put a copy of `file` in the place of `target`, whose gateway must not run. What is there already is replaced only
    with `force`: it is kept beside, and no floor of it is lost as far as it can be read. At any moment one of the two
    is in the place, also when this is killed.

    Raises `StoreLocked`, `StoreUnavailable`, `DatabaseThere`, `OSError`; then `target` is as it was."""
    contents = contents_of(file)
    target = target.resolve()
    make_directory(target.parent)
    lock = FileLock(target)
    lock.acquire()
    try:
        if target.exists():
            lock.acquire_database()
        if target.exists() and target.stat().st_size and not force:
            raise DatabaseThere(_in_the_way(target))
        new = target.with_name(target.name + ".restoring")
        _remove(new)
        try:
            _copy(file, new)
            _mark(new, contents.made or "an unknown moment")
            raised, found, unreadable = _take_over(target, new, now)
            _sync(new)
            kept = _keep(target, now)
            new.replace(target)
        finally:
            _remove(new)
        sync_directory(target.parent)
    except sqlite3.Error as error:
        raise unavailable(error) from error
    finally:
        lock.release()
    return Restored(contents, raised, found, kept, unreadable)


def _in_the_way(target: Path) -> str:
    try:
        there = contents_of(target)
    except StoreUnavailable as error:
        return f"{target} exists, and cannot be used: {error}"
    return f"{target} exists, with {there.keys} keys"


def _copy(source: Path, target: Path) -> None:
    """A copy of what is committed, which a bare file may hold in its log."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(read_only(source), uri=True)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def _mark(file: Path, made: str) -> None:
    """Bring a copy to the present schema, and mark it as a backup."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in range(version + 1, len(MIGRATIONS) + 1):
            connection.executescript(script(step))
        connection.execute(sql.WRITE_META, {"name": BACKUP, "value": made})


def _take_over(old: Path, new: Path, now: float) -> tuple[int | None, tuple[Event, ...], str | None]:
    """No floor falls by a restore: have `new` know what `old` knew. Answers how many floors have been raised, the first
    of them, and why `old` could not be read. Raises sqlite3.Error where what was read cannot be kept, as on a full
    disk."""
    if not old.exists() or not old.stat().st_size:
        return None, (), None
    try:
        contents_of(old)
    except StoreUnavailable as error:
        return None, (), str(error)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS replaced", (str(old),))
        (version,) = connection.execute("PRAGMA replaced.user_version").fetchone()
        connection.execute("BEGIN")
        (newest,) = connection.execute(sql.NEWEST_EVENT).fetchone()
        raised = connection.execute(_TELL_HIGHER, (now,)).rowcount
        found = tuple(map(sql.event_of, connection.execute(_TOLD, (newest, MOST_TOLD))))
        connection.execute(_TAKE_OVER_FENCES)
        if version >= LEASES_SINCE:
            connection.execute(_TAKE_OVER_LEASES)
        if version >= JOBS_SINCE:
            connection.execute(_TAKE_OVER_COMPLETIONS)
        if version >= OUTBOX_SINCE:
            connection.execute(_TAKE_OVER_OUTBOX)
        if version > 1:
            connection.execute(_TAKE_OVER_RULINGS)
            connection.execute(_TAKE_OVER_GENERATION)
        connection.execute("COMMIT")
    return raised, found, None


def _keep(target: Path, now: float) -> Path | None:
    """Give the database that is there another name beside, which it keeps when the new one takes its own. So is a log
    whose database has gone: SQLite would take it for the new one's."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    endings = chain(("",), (f"-{number}" for number in count(2)))
    names = (target.with_name(f"{target.name}.replaced-{stamp}{ending}") for ending in endings)
    kept = next(name for name in names if not any(beside.exists() for beside in _files_of(name)))
    for beside, name in zip(_files_of(target)[1:], _files_of(kept)[1:], strict=True):
        if beside.exists():  # none is of a database that could be read: it has been closed
            beside.replace(name)
    if not target.exists():
        return None
    try:
        os.link(target, kept)
    except OSError:  # a file system without links
        target.replace(kept)
    return kept


def _files_of(database: Path) -> list[Path]:
    """The database itself, and what SQLite may keep beside it."""
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def _remove(file: Path) -> None:
    for one in _files_of(file):
        one.unlink(missing_ok=True)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(file.parent)
