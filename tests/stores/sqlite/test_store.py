"""What SqliteStore adds to the contract."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite import SqliteStore, job_statements
from gateway.stores.sqlite import store as store_module
from gateway.stores.values import Event, EventKind
from tests.stores.sqlite.wal import frames


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


def count_commits(path: Path) -> int:
    return sum(frame.commits for frame in frames(path.with_name(path.name + "-wal").read_bytes()))


async def test_callers_share_commits(path: Path) -> None:
    """The log itself shows it: 64 callers with ten raises each need about ten commits, not 640."""
    store = SqliteStore(path)
    await store.start("rules")
    before = count_commits(path)

    async def caller(number: int) -> None:
        for token in range(1, 11):
            await store.raise_floor(f"job-{number}", token)

    await asyncio.gather(*(caller(number) for number in range(64)))
    assert 10 <= count_commits(path) - before <= 20
    await store.stop(clean=True)


async def test_a_check_writes_each_time(path: Path) -> None:
    """It proves that the disk takes writes, so it may not be left out as a change of nothing."""
    store = SqliteStore(path)
    await store.start("rules")
    for _ in range(3):
        before = count_commits(path)
        await store.check()
        assert count_commits(path) == before + 1
    await store.stop(clean=True)


async def test_a_check_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not answer in time is unavailable."""
    monkeypatch.setattr(store_module, "CHECK_TIMEOUT_S", 0.0)
    store = SqliteStore(path)
    await store.start("rules")
    with pytest.raises(StoreUnavailable, match="within 0 s"):
        await store.check()
    await store.stop(clean=True)


async def test_a_revocation_that_finds_nothing_writes_nothing(path: Path) -> None:
    """Most hand-overs find no open upload; they cost no commit."""
    store = SqliteStore(path)
    await store.start("rules")
    before = count_commits(path)
    assert await store.uploads.revoke("job", 34) == []
    assert count_commits(path) == before
    await store.stop(clean=True)


async def test_what_waits_at_a_stop_is_written(path: Path) -> None:
    """Raises under way and lazy writes alike are durable before the store is closed."""
    store = SqliteStore(path)
    await store.start("rules")
    raises = [asyncio.create_task(store.raise_floor(f"job-{number}", 5)) for number in range(10)]
    await asyncio.sleep(0)
    store.record(Event("job-1", EventKind.REFUSED, 1, 5))
    await store.stop(clean=True)
    assert [(await one).floor for one in raises] == [5] * 10
    store = SqliteStore(path)
    assert (await store.start("rules")).clean
    assert len(await store.events("job-1", None, 10)) == 1
    assert (await store.fence("job-9")).floor == 5
    await store.stop(clean=True)


async def test_serials_go_on_after_a_restart(path: Path) -> None:
    """A cursor of the run before still works."""
    serials = []
    for _ in range(2):
        store = SqliteStore(path)
        await store.start("rules")
        store.record(Event("job", EventKind.REFUSED, 1, 1))
        await store.check()
        serials.append((await store.events("job", None, 1))[0].serial)
        await store.stop(clean=True)
    assert serials[0] < serials[1]


async def test_a_start_that_fails_at_its_end_keeps_nothing_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the jobs cannot be read, the database is free for another try."""
    store = SqliteStore(path)
    with monkeypatch.context() as broken:
        broken.setattr(job_statements, "HIGHEST_SERIAL", "SELECT nothing")
        with pytest.raises(StoreUnavailable, match="nothing"):
            await store.start("rules")
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.fence("job")
    again = SqliteStore(path)
    await again.start("rules")
    await again.stop(clean=True)


async def test_what_is_forgotten_holds_up_no_raise(path: Path) -> None:
    """After a week's stop there may be millions of rows: they go little by little, and others' commits come between."""
    store = SqliteStore(path, clock=lambda: 1.0)
    await store.start("rules")
    await store.stop(clean=True)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
            "INSERT INTO upload SELECT 'b', 'o', 'upload-' || i, 'job', 1, '', 'completed', 'e', i / 5001.0 FROM n;"
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
            "INSERT INTO repeatable SELECT 'scope', 'call-' || i, 1, i / 5001.0 FROM n"
        )
    await store.start("rules")
    for forget in (store.uploads.forget, store.forget_grants):
        before = count_commits(path)
        forgetting = asyncio.create_task(forget(0.5))
        await asyncio.sleep(0)
        await store.raise_floor(f"{forget.__name__}", 1)
        assert not forgetting.done()
        assert await forgetting == 2500
        assert count_commits(path) - before >= 3
        assert await forget(2.0) == 2500
    await store.stop(clean=True)
