"""The file: made, locked, migrated, damaged."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import sqlite3
from pathlib import Path

import pytest

from gateway.core.job import Job
from gateway.stores.base import StoreLocked, StoreUnavailable
from gateway.stores.sqlite import SqliteStore, database
from gateway.stores.sqlite.backup import restore
from gateway.stores.sqlite.database import connect_reader, connect_writer
from gateway.stores.sqlite.migrations import MIGRATIONS, script
from tests.stores.sqlite.conftest import Spawn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


async def start_and_stop(path: Path, *, clean: bool = True) -> None:
    store = SqliteStore(path)
    await store.start("rules")
    await store.raise_floor("job", 33)
    await store.stop(clean=clean)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_what_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    """Directories get mode 700, and the database, its log and its lock 600."""
    path = tmp_path / "one" / "two" / "gateway.db"
    store = SqliteStore(path)
    await store.start("rules")
    assert [mode(directory) for directory in (path.parent, path.parent.parent)] == [0o700, 0o700]
    files = {file.name: mode(file) for file in path.parent.iterdir()}
    names = ("gateway.db", "gateway.db-shm", "gateway.db-wal", "gateway.db.lock")
    assert files == dict.fromkeys(names, 0o600)
    await store.stop(clean=True)


async def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    """Only what the store makes is its own to protect."""
    tmp_path.chmod(0o750)
    await start_and_stop(tmp_path / "gateway.db")
    assert mode(tmp_path) == 0o750


async def test_an_empty_file_is_a_new_database(path: Path) -> None:
    """It has never served, so its first start is clean."""
    path.touch()
    store = SqliteStore(path)
    assert (await store.start("rules")).clean
    await store.stop(clean=True)


async def test_commits_reach_the_disk(path: Path) -> None:
    """The log is synced at every commit, which WAL alone does not do."""
    connection = await connect_writer(path)
    assert list(await connection.execute_fetchall("PRAGMA synchronous")) == [(2,)]
    assert list(await connection.execute_fetchall("PRAGMA journal_mode")) == [("wal",)]
    await connection.close()


async def test_a_log_that_a_reader_has_kept_long_is_short_again_after_it(path: Path) -> None:
    """A backup of a large file, or a look from outside, keeps what was there when it began: all that is written
    meanwhile stays in the log. When it is over the disk has its room back, and not only at the next stop."""
    store = SqliteStore(path)
    await store.start("rules")
    await store.raise_floor("job", 1)
    log = path.with_name(path.name + "-wal")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT floor FROM fence").fetchall() == [(1,)]
        for number in range(10):
            await asyncio.gather(*(store.jobs.submit(Job(f"{number}-{n}", "q", payload="x" * 10**6)) for n in range(8)))
        assert log.stat().st_size > 8 * 10**7
    for token in range(2, 5):
        await store.raise_floor("job", token)
    size = log.stat().st_size
    await store.stop(clean=True)
    assert size < 7 * 10**7


async def test_the_reader_cannot_write(path: Path) -> None:
    """One connection writes; the other could not if it wanted."""
    await start_and_stop(path)
    reader = await connect_reader(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await reader.execute("DELETE FROM fence")
    await reader.close()


@pytest.mark.parametrize("name", ["100%.db", "a b#c?.db", "käse.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    """Names that mean something in an address are names like others."""
    await start_and_stop(tmp_path / name)
    assert (tmp_path / name).stat().st_size > 0
    store = SqliteStore(tmp_path / name)
    await store.start("rules")
    assert (await store.fence("job")).floor == 33
    await store.stop(clean=True)


# --- the lock -----------------------------------------------------------------------------------------------


async def test_another_process_is_named(path: Path, spawn: Spawn) -> None:
    """A second opener is refused, told who has the database, and changes nothing for the first."""
    child = await spawn("hold", path)
    assert child.stdout is not None
    await child.stdout.readline()
    with pytest.raises(StoreLocked, match=rf"gateway\.db is in use by process {child.pid}, started 20"):
        await SqliteStore(path).start("rules")
    assert child.returncode is None


async def test_a_killed_process_holds_no_lock(path: Path, spawn: Spawn) -> None:
    """The lock goes with its process, and the next start knows how that ended."""
    child = await spawn("hold", path)
    assert child.stdout is not None
    await child.stdout.readline()
    child.kill()
    await child.wait()
    store = SqliteStore(path)
    assert not (await store.start("rules")).clean
    await store.stop(clean=True)


async def test_one_process_opens_it_once(path: Path) -> None:
    """Two stores in one process exclude each other too; a stop lets the next one in."""
    first = SqliteStore(path)
    await first.start("rules")
    with pytest.raises(StoreLocked, match=re.escape(f"process {os.getpid()},")):
        await SqliteStore(path).start("rules")
    await first.stop(clean=True)
    await start_and_stop(path)


async def test_a_link_to_a_database_in_use_is_in_use_too(path: Path, tmp_path: Path) -> None:
    """The lock is one of the file, whatever it is called: two gateways on one database would each believe their own."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    store = SqliteStore(path)
    await store.start("rules")
    with pytest.raises(StoreLocked, match=r"link\.db is in use"):
        await SqliteStore(link).start("rules")
    await store.stop(clean=True)


async def test_a_lock_file_that_somebody_has_removed_lets_nobody_in(path: Path) -> None:
    """It looks like one that a dead process has left, and is soon removed by hand: the database itself is locked too,
    also against a restore over it, and by whatever second name it has."""
    store = SqliteStore(path)
    await store.start("rules")
    await store.backup(path.with_name("backup.db"))
    path.with_name("gateway.db.lock").unlink()
    second = path.with_name("second.db")
    second.hardlink_to(path)
    for name in (path, second):
        with pytest.raises(StoreLocked, match=rf"{name.name} is in use by another process"):
            await SqliteStore(name).start("rules")
        with pytest.raises(StoreLocked):
            restore(path.with_name("backup.db"), name, 0.0, force=True)
    await store.stop(clean=True)
    await start_and_stop(path)


# --- what it will not open ----------------------------------------------------------------------------------


async def refused(path: Path) -> str:
    """The message of a start that fails, twice: it has neither kept the lock nor changed the file."""
    before = path.read_bytes()
    messages = []
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            await SqliteStore(path).start("rules")
        assert not isinstance(caught.value, StoreLocked)
        messages.append(str(caught.value))
    assert path.read_bytes() == before
    assert messages[0] == messages[1]
    return messages[0]


async def test_a_newer_schema_is_left_alone(path: Path) -> None:
    """A database that a later release has written is refused, and the message says what to run."""
    await start_and_stop(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    assert f"has schema 999, this gateway knows {len(MIGRATIONS)}: run the release that wrote it" in await refused(path)


@pytest.mark.parametrize("version", [0, 3, 999, -1])
async def test_another_programs_database_is_left_alone(path: Path, version: int) -> None:
    """A file that holds other tables was named by mistake, whatever its program counts in `user_version`."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE song (title)")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    assert "another program" in await refused(path)


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    """Never made anew in silence: the floors would be lost."""
    path.write_bytes(b"floors: none" * 1000)
    assert "damaged: keep the file, and put the latest backup" in await refused(path)


def damage(path: Path) -> None:
    """Overwrite the page at which the floors begin."""
    content = bytearray(path.read_bytes())
    connection = sqlite3.connect(path)
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'fence'")
    ((size,),) = connection.execute("PRAGMA page_size")
    connection.close()
    content[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(content)


async def test_damage_shows_at_the_start_after_a_crash(path: Path) -> None:
    """After an unclean end the file is checked before anything is served from it."""
    await start_and_stop(path, clean=False)
    damage(path)
    assert "damaged" in await refused(path)


async def test_damage_found_while_serving_fails_closed(path: Path) -> None:
    """A page that cannot be read makes the read and the raise StoreUnavailable, with what to do."""
    await start_and_stop(path)
    damage(path)
    store = SqliteStore(path)
    await store.start("rules")
    for call in (store.fence("job"), store.raise_floor("job", 34)):
        with pytest.raises(StoreUnavailable, match="damaged"):
            await call
    await store.stop(clean=False)


# --- what happens to its files while it runs ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["gateway.db", "gateway.db-wal"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_a_file_that_has_gone_takes_no_floors(path: Path, name: str, replaced: bool) -> None:
    """What would be written to a removed file is gone with the process: nothing is raised, readiness is off and says
    which file, and the stop tells that it leaves no mark. Put back, the very file takes floors again."""
    file, aside = path.with_name(name), path.with_name("aside")
    store = SqliteStore(path)
    await store.start("rules")
    await store.raise_floor("job", 33)
    file.rename(aside)
    if replaced:
        file.write_bytes(aside.read_bytes())
    for call in (store.check(), store.raise_floor("job", 34)):
        with pytest.raises(StoreUnavailable, match=f"{name} has been removed or replaced while the gateway runs"):
            await call
    assert (await store.fence("job")).floor == 33
    aside.replace(file)
    await store.check()
    assert (await store.raise_floor("job", 34)).floor == 34
    await store.stop(clean=True)


async def test_another_program_that_writes_is_told_as_such(path: Path) -> None:
    """A shell in a transaction keeps floors from rising: readiness says that, and not that the disk hangs; when the
    other is done all goes on."""
    store = SqliteStore(path)
    await store.start("rules")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another program writes to the database: .*database is locked"):
            await store.check()
    await store.check()
    await store.stop(clean=True)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "mounted read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "another user's"),
        (OSError(errno.EIO, "Input/output error"), "the database cannot be used"),
    ],
)
async def test_what_the_system_refuses_is_told_with_what_to_do(
    path: Path, error: OSError, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words as where SQLite finds it out, and the system's own behind them."""

    def refuse(_: Path) -> None:
        raise error

    monkeypatch.setattr("gateway.stores.sqlite.store.make_file", refuse)
    with pytest.raises(StoreUnavailable, match=f"{advice}.*{error.strerror}"):
        await SqliteStore(path).start("rules")


async def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """What is in the way is named, not a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file"):
        await SqliteStore(tmp_path / "file" / "gateway.db").start("rules")


async def test_an_old_sqlite_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without RETURNING is refused by its version, not by a syntax error."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreUnavailable, match="too old"):
        await SqliteStore(path).start("rules")


async def test_a_database_of_the_first_schema_learns_who_it_is(path: Path) -> None:
    """An upgrade keeps the floors, gives an identity that stays, and starts as cleanly as it was left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(script(1))
        connection.execute("INSERT INTO meta VALUES ('rules_digest', 'rules'), ('clean', 'yes')")
        connection.execute("INSERT INTO fence VALUES ('job', 34, 34, 0, 0, 0)")
    found = []
    for _ in range(2):
        store = SqliteStore(path)
        assert (await store.start("rules")).clean
        assert (await store.fence("job")).floor == 34
        found.append((store.authority.database, store.authority.generation))
        await store.stop(clean=True)
    assert found[0] == found[1]
    assert len(found[0][0]) == 32
    assert found[0][1] == 0


async def test_a_failed_migration_leaves_the_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is whole or not at all: the next attempt begins where this one did."""
    await start_and_stop(path)
    steps = (*MIGRATIONS, "CREATE TABLE half (x); CREATE TABLE fence (x);")
    monkeypatch.setattr(database, "MIGRATIONS", steps)
    monkeypatch.setattr("gateway.stores.sqlite.migrations.MIGRATIONS", steps)
    assert "fence already exists" in await refused(path)
    monkeypatch.undo()
    await start_and_stop(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    connection.close()
