"""Backups of a database in use, and what becomes of them."""

from __future__ import annotations

import contextlib
import resource
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.job import Job
from gateway.stores.base import StoreLocked, StoreUnavailable
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite.backup import DatabaseThere, contents_of, restore, write_backup
from gateway.stores.sqlite.migrations import script
from gateway.stores.values import RESTORED, Event, EventKind, GrantWanted, Ruling

NOW = 1_700_000_000.0
MADE = "2023-11-14T22:13:20Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
async def backup(path: Path, tmp_path: Path) -> Path:
    """A backup that knows the floor 34 and two buckets, made while its database was in use; that went on to 40."""
    store = SqliteStore(path, clock=lambda: NOW)
    await store.start("rules")
    await store.raise_floor("job", 34)
    await store.rule("a")
    await store.rule("b")
    file = tmp_path / "backup.db"
    await store.backup(file)
    await store.raise_floor("job", 40)
    await store.raise_floor("later", 5)
    await store.raise_generation(6)
    await store.stop(clean=True)
    return file


async def test_a_backup_of_a_database_in_use_holds_what_is_committed(backup: Path) -> None:
    """One whole file, for its owner's eyes, that needs no log beside it."""
    contents = contents_of(backup)
    assert (contents.made, contents.keys, contents.generation, contents.buckets) == (MADE, 1, 0, ("a", "b"))
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert [p.name for p in backup.parent.glob("backup.db*")] == ["backup.db"]


async def test_a_backup_never_replaces_a_file(path: Path, backup: Path) -> None:
    """The last good one is not lost to a mistyped name."""
    before = backup.read_bytes()
    with pytest.raises(FileExistsError):
        write_backup(path, backup, NOW)
    assert backup.read_bytes() == before


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "met on the way"])
async def test_a_backup_for_which_there_is_no_room_takes_none(
    path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It is made beside the database: a disk that it filled would let nothing fenced through."""
    store = SqliteStore(path)
    await store.start("rules")
    await store.jobs.submit(Job("large", "q", payload="x" * 10**6))
    if known:
        usage = shutil.disk_usage(path.parent)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * 10**6))
    with no_file_beyond(10**9 if known else 10**5), pytest.raises(StoreUnavailable) as error:
        await store.backup(path.with_name("second.db"))
    await store.stop(clean=True)
    assert not known or "a backup needs 3" in str(error.value)
    assert [file.name for file in path.parent.glob("second.db*")] == []


async def test_a_restored_database_is_another(backup: Path, tmp_path: Path) -> None:
    """It has the floors, another identity, the next generation, no earlier runs; it rules no bucket, is not clean."""
    target = tmp_path / "elsewhere" / "gateway.db"
    with contextlib.closing(sqlite3.connect(backup)) as connection:
        ((database,),) = connection.execute("SELECT value FROM meta WHERE name = 'database'")
        ((run,),) = connection.execute("SELECT id FROM run")
    restored = restore(backup, target, NOW, force=False)
    assert (restored.contents.keys, restored.raised, restored.kept) == (1, None, None)
    store = SqliteStore(target)
    start = await store.start("rules")
    assert not start.clean
    assert not start.bindings_known
    assert start.reason == f"the database has been restored from a backup of {MADE}"
    assert (await store.fence("job")).floor == 34
    assert store.authority.database != database
    assert store.authority.generation == 1
    assert not await store.knows_run(run)
    assert await store.rulings() == [Ruling("a", RESTORED), Ruling("b", RESTORED)]
    first = store.authority
    await store.stop(clean=True)
    assert (await store.start("rules")).clean
    assert (store.authority.database, store.authority.generation) == (first.database, 1)
    await store.stop(clean=True)


async def test_a_restored_database_knows_no_bindings_until_its_first_clean_stop(backup: Path) -> None:
    """R5: what was sent since the backup was made may land as late as a Complete, also after another crash."""
    store = SqliteStore(backup)
    for _ in range(2):
        assert not (await store.start("rules")).bindings_known
        await store.stop(clean=False)
    assert not (await store.start("rules")).bindings_known
    await store.stop(clean=True)
    assert (await store.start("rules")).bindings_known
    await store.stop(clean=False)
    assert (await store.start("rules")).bindings_known
    await store.stop(clean=True)


async def test_a_backup_put_in_place_by_hand_is_another_too(backup: Path) -> None:
    """The mark is in the file: who copies it instead of restoring it gets past nothing."""
    store = SqliteStore(backup)
    assert not (await store.start("rules")).clean
    assert store.authority.generation == 1
    assert await store.ruling("a") == Ruling("a", RESTORED)
    await store.stop(clean=True)


async def test_a_database_in_use_is_never_replaced(path: Path, backup: Path) -> None:
    """Not even by force."""
    store = SqliteStore(path)
    await store.start("rules")
    for force in (False, True):
        with pytest.raises(StoreLocked, match="in use by process"):
            restore(backup, path, NOW, force=force)
    assert (await store.fence("job")).floor == 40
    await store.stop(clean=True)


async def test_a_database_is_replaced_by_force_alone_and_no_floor_falls(path: Path, backup: Path) -> None:
    """What the replaced one knew higher, or alone, is taken over; it is kept beside, and the generation is above it."""
    with pytest.raises(DatabaseThere, match="exists, with 2 keys"):
        restore(backup, path, NOW, force=False)
    restored = restore(backup, path, NOW, force=True)
    assert restored.raised == 2
    assert restored.kept is not None
    assert contents_of(restored.kept).keys == 2
    store = SqliteStore(path)
    await store.start("rules")
    assert (await store.fence("job")).floor == 40
    assert (await store.fence("later")).floor == 5
    assert store.authority.generation == 8
    await store.stop(clean=True)


async def leased(store: SqliteStore, key: str, holder: str) -> int:
    return (await store.grant(key, GrantWanted(holder, 30.0, f"{holder}'s request"))).token


async def test_a_restored_database_holds_no_lease_and_repeats_no_token(path: Path, tmp_path: Path) -> None:
    """Of what has been granted since the backup it knows nothing: its leases are sealed, also one that nobody took over
    since, the highest token that was granted stays known (R10), and the next is of another generation."""
    store = SqliteStore(path)
    await store.start("rules")
    assert await leased(store, "job", "A") == 1
    await store.raise_floor("elsewhere", 7)
    await store.backup(tmp_path / "backup.db")
    await store.seal("job", 1)
    assert await leased(store, "job", "B") == 2
    await store.stop(clean=True)
    restored = SqliteStore(tmp_path / "backup.db")
    await restored.start("rules")
    fence = await restored.fence("job")
    assert (fence.held, fence.floor, fence.sealed_token, fence.granted_token) == (None, 1, 1, 1)
    assert await restored.leases(None, 9) == []
    assert (await restored.fence("elsewhere")).sealed_token == 0
    assert await leased(restored, "job", "C") == 2**40 + 1
    await restored.stop(clean=True)


async def test_what_a_replaced_database_knew_of_leases_is_taken_over(path: Path, tmp_path: Path) -> None:
    """Where its floor is the one that holds; where the backup's is higher, the backup's."""
    store = SqliteStore(path)
    await store.start("rules")
    for holder in "ABC":
        token = await leased(store, "job", holder)
        await store.seal("job", token)
    await store.backup(tmp_path / "backup.db")
    await leased(store, "job", "D")
    await leased(store, "later", "E")
    await store.stop(clean=True)
    restore(tmp_path / "backup.db", path, NOW, force=True)
    store = SqliteStore(path)
    await store.start("rules")
    for key, holder, token in (("job", "D", 4), ("later", "E", 1)):
        fence = await store.fence(key)
        assert fence.grant is not None
        assert (fence.grant.holder, fence.grant.token, fence.floor, fence.held) == (holder, token, token, None)
    await store.stop(clean=True)


async def test_a_database_from_before_leases_is_taken_over(path: Path, backup: Path) -> None:
    """It has floors alone."""
    path.unlink()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(script(1) + script(2))
        connection.execute("INSERT INTO fence VALUES ('job', 99, 0, 0, 0, 0)")
    assert restore(backup, path, NOW, force=True).raised == 1
    store = SqliteStore(path)
    await store.start("rules")
    fence = await store.fence("job")
    assert (fence.floor, fence.grant) == (99, None)
    await store.stop(clean=True)


async def test_a_damaged_database_is_replaced_and_told(path: Path, backup: Path) -> None:
    """Its floors cannot be taken over: the answer says so, and why."""
    path.write_bytes(b"SQLite format 3\x00" + b"\x07" * 9000)
    restored = restore(backup, path, NOW, force=True)
    assert restored.raised is None
    assert "cannot be read" in (restored.unreadable or "")
    store = SqliteStore(path)
    await store.start("rules")
    assert (await store.fence("job")).floor == 34
    await store.stop(clean=True)


@contextlib.contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """As on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def add_fences(path: Path, keys: int) -> None:
    """So many more, at the floor 7."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO fence (key, floor, completed_floor, sealed_token, shadow_floor, raised_at) "
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "SELECT 'a-longer-key-' || i, 7, 0, 0, 0, 0 FROM n",
            (keys,),
        )


async def test_a_database_of_many_keys_is_taken_over_in_a_moment(path: Path, backup: Path) -> None:
    """Each key is looked for once, not among all the others (minutes for these, days for a million)."""
    add_fences(path, 100_000)
    begun_s = time.process_time()
    assert restore(backup, path, NOW, force=True).raised == 100_002
    assert time.process_time() - begun_s < 30


async def test_a_disk_too_full_for_the_floors_is_no_damaged_database(path: Path, backup: Path) -> None:
    """What the replaced database knew could be read, and cannot be kept: nothing is replaced, and no floor falls."""
    add_fences(path, 20_000)
    with no_file_beyond(300_000), pytest.raises(StoreUnavailable):
        restore(backup, path, NOW, force=True)
    assert contents_of(path).keys == 20_002
    assert contents_of(path).made == ""
    assert [p.name for p in path.parent.glob("gateway.db*re*")] == []


async def test_a_restore_that_is_killed_leaves_one_of_the_two(
    path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new database takes the place, the old one has it: a gateway that is started finds no empty place."""

    class Killed(BaseException):
        pass

    def replace(self: Path, target: Path) -> None:
        if target == path:
            raise Killed
        self.rename(target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Killed):
        restore(backup, path, NOW, force=True)
    assert (contents_of(path).made, contents_of(path).keys) == ("", 2)


async def test_each_database_that_is_replaced_is_kept(path: Path, backup: Path) -> None:
    """Also two of one second."""
    first, second = (restore(backup, path, NOW, force=True).kept for _ in range(2))
    assert first is not None
    assert second is not None
    assert (contents_of(first).made, contents_of(second).made) == ("", MADE)


async def leave_the_log_alone(path: Path) -> None:
    """A gateway is killed whose database has been removed: what is left of it is the log, with a floor of 50 in it."""
    store = SqliteStore(path)
    await store.start("rules")
    await store.raise_floor("job", 50)
    log = path.with_name(path.name + "-wal").read_bytes()
    await store.stop(clean=True)
    for file in path.parent.glob("gateway.db*"):
        file.unlink()
    path.with_name(path.name + "-wal").write_bytes(log)


async def test_what_is_restored_takes_nothing_from_the_log_of_a_database_that_is_gone(path: Path, backup: Path) -> None:
    """SQLite reads any log that has the right name: the backup would pass for the database that the log was of, and be
    half of each. The log is kept beside."""
    await leave_the_log_alone(path)
    log = path.with_name("gateway.db-wal").read_bytes()
    restore(backup, path, NOW, force=False)
    store = SqliteStore(path)
    start = await store.start("rules")
    floor = (await store.fence("job")).floor
    await store.stop(clean=True)
    assert "has been restored from a backup" in start.reason
    assert floor == 34
    (kept,) = path.parent.glob("gateway.db.replaced-*")
    assert kept.name.endswith("-wal")
    assert kept.read_bytes() == log


@pytest.mark.parametrize("by_hand", [True, False], ids=["a copy by hand", "nothing"])
async def test_a_log_of_another_database_is_neither_taken_nor_thrown_away(
    path: Path, backup: Path, by_hand: bool
) -> None:
    """A backup is copied, or nothing, to where a database has been, of which the log is left: no start with that."""
    copy = backup.read_bytes()
    await leave_the_log_alone(path)
    log = path.with_name("gateway.db-wal")
    before = log.read_bytes()
    if by_hand:
        path.write_bytes(copy)
    with pytest.raises(StoreUnavailable, match=r"gateway.db-wal is the log of a database that is not there"):
        await SqliteStore(path).start("rules")
    assert log.read_bytes() == before
    log.rename(path.with_name("away"))
    store = SqliteStore(path)
    await store.start("rules")
    floor = (await store.fence("job")).floor
    await store.stop(clean=True)
    assert floor == (34 if by_hand else 0)


async def test_what_is_restored_through_a_link_is_what_the_link_names(path: Path, backup: Path, tmp_path: Path) -> None:
    """The link stays one, and the database behind it is replaced, unless it is in use."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    store = SqliteStore(path)
    await store.start("rules")
    with pytest.raises(StoreLocked):
        restore(backup, link, NOW, force=True)
    await store.stop(clean=True)
    restored = restore(backup, link, NOW, force=True)
    assert link.is_symlink()
    assert contents_of(path).made == MADE
    assert restored.kept is not None
    assert restored.kept.parent == path.parent


async def test_a_directory_that_cannot_be_made_is_no_database_that_is_there(path: Path, backup: Path) -> None:
    """Whoever would say `--force` then would be told the same again."""
    with pytest.raises(OSError) as raised:
        restore(backup, path / "below" / "gateway.db", NOW, force=False)
    assert not isinstance(raised.value, DatabaseThere)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
async def test_what_is_no_backup_is_refused(path: Path, tmp_path: Path, content: bytes) -> None:
    """Before anything is touched."""
    file = tmp_path / "backup.db"
    file.write_bytes(content)
    with pytest.raises(StoreUnavailable):
        restore(file, path, NOW, force=True)
    assert not path.exists()


async def test_a_copy_of_a_stopped_database_can_be_restored(path: Path, backup: Path, tmp_path: Path) -> None:
    """A plain copy of the file is as good as a backup, and as little the same database."""
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    restore(copy, tmp_path / "new.db", NOW, force=False)
    store = SqliteStore(tmp_path / "new.db")
    assert "restored" in (await store.start("rules")).reason
    assert (await store.fence("job")).floor == 40
    assert store.authority.generation == 8
    await store.stop(clean=True)


async def test_what_a_killed_gateway_left_in_the_log_is_taken_over(path: Path, backup: Path, tmp_path: Path) -> None:
    """Its last floors are in the write-ahead log alone; replaced by force, they are not lost."""
    store = SqliteStore(path)
    await store.start("rules")
    await store.raise_floor("job", 50)
    killed = tmp_path / "killed" / "gateway.db"
    killed.parent.mkdir()
    for suffix in ("", "-wal"):
        Path(f"{killed}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    await store.stop(clean=True)
    assert restore(backup, killed, NOW, force=True).raised == 2
    store = SqliteStore(killed)
    await store.start("rules")
    assert (await store.fence("job")).floor == 50
    await store.stop(clean=True)


async def test_what_waits_to_be_announced_is_lost_by_no_restore(path: Path, tmp_path: Path) -> None:
    """What waited at the backup waits again, and what the replaced database had in its outbox besides; nothing twice,
    each key in its order."""
    store = SqliteStore(path, clock=lambda: NOW)
    await store.start("rules")
    store.outbox.announce(lambda _: ["hook"], lambda _: None)

    async def raises(*tokens: int) -> None:
        for token in tokens:
            await store.raise_floor("job", token, Event("job", EventKind.RAISED, token, 0))

    await raises(1, 2)
    await store.backup(tmp_path / "backup.db")
    store.outbox.done((await store.outbox.waiting("hook", 0, 1))[0])
    await raises(3, 4)
    await store.stop(clean=True)
    restore(tmp_path / "backup.db", path, NOW, force=True)
    await store.start("rules")
    assert [row.event.token for row in await store.outbox.waiting("hook", 0, 10)] == [1, 2, 3, 4]
    await store.stop(clean=True)
