"""What is there after kill -9, and after the power has failed at any byte of the log."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.stores.sqlite import SqliteStore
from gateway.stores.values import Event, EventKind
from tests.stores.sqlite.conftest import Spawn
from tests.stores.sqlite.wal import frames

KEYS = [f"job-{number}" for number in range(8)]
ROUNDS = 30


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_acknowledged_floor_is_lost_by_a_kill(tmp_path: Path, spawn: Spawn, seed: int) -> None:
    """A gateway is killed amid its raises, three times over: each floor it had acknowledged is there."""
    path = tmp_path / "gateway.db"
    acknowledged: dict[str, int] = {}
    for run in range(3):
        child = await spawn("raise", path, seed + 100 * run)
        assert child.stdout is not None
        assert (await child.stdout.readline()).decode() == f"start {run == 0}\n"
        said = b"".join([await child.stdout.readline() for _ in range(200 + 97 * seed)])
        child.kill()
        # What was acknowledged before the end is still in the pipe.
        said += await child.stdout.read()
        for line in said.decode().splitlines():
            key, floor = line.split()
            acknowledged[key] = max(int(floor), acknowledged.get(key, 0))
        await child.wait()
    store = SqliteStore(path)
    start = await store.start("rules")
    assert (start.clean, start.reason) == (False, "the last run did not stop cleanly")
    assert len(acknowledged) == 50
    for key, least in acknowledged.items():
        assert (await store.fence(key)).floor >= least
        newest = (await store.events(key, None, 1))[0]
        assert newest.token == (await store.fence(key)).floor
    await store.stop(clean=True)


async def test_a_process_that_has_not_closed_its_database_ends(tmp_path: Path, spawn: Spawn) -> None:
    """A gateway that a fault has ended would have stayed for ever, serving nothing, and nobody would have started it
    again; so would a test run. The next start is unclean, as after a kill."""
    child = await spawn("leave", tmp_path / "gateway.db")
    async with asyncio.timeout(20):
        assert await child.wait() == 0
    store = SqliteStore(tmp_path / "gateway.db")
    assert not (await store.start("rules")).clean
    await store.stop(clean=True)


@dataclass
class Recording:
    """A database as it lay on the disk, its log, and how long the log was when each round was answered."""

    database: bytes
    log: bytes
    answered_at: list[int]


@pytest.fixture
async def recording(tmp_path: Path) -> Recording:
    """Rounds of raises of all keys at once, each round one transaction with a line of history for each key."""
    path = tmp_path / "recorded.db"
    log = tmp_path / "recorded.db-wal"
    store = SqliteStore(path)
    await store.start("rules")
    answered_at = [log.stat().st_size]
    for token in range(1, ROUNDS + 1):
        raises = (store.raise_floor(key, token, Event(key, EventKind.RAISED, token, token)) for key in KEYS)
        await asyncio.gather(*raises)
        answered_at.append(log.stat().st_size)
    recording = Recording(path.read_bytes(), log.read_bytes(), answered_at)
    await store.stop(clean=False)
    return recording


def recovered_round(path: Path, recording: Recording, log: bytes) -> int:
    """The round that a database with this log shows, when the machine is up again; it must be a whole one."""
    path.write_bytes(recording.database)
    path.with_name(path.name + "-wal").write_bytes(log)
    connection = sqlite3.connect(path)
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'fence'").fetchone()
        if tables == (0,):
            return -1  # the power failed before the first start was over
        floors = dict(connection.execute("SELECT key, floor FROM fence"))
        history = dict(connection.execute("SELECT key, max(token) FROM event GROUP BY key"))
        assert floors == history
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        if not floors:
            return 0
        assert sorted(floors) == KEYS
        (token,) = set(floors.values())
        return int(token)
    finally:
        connection.close()


@pytest.mark.parametrize("tail", ["missing", "zeros"])
def test_a_power_loss_keeps_what_was_answered(recording: Recording, tmp_path: Path, tail: str) -> None:
    """Cut at the ends of all frames and inside them, the log gives whole rounds, and each that was answered."""
    log = recording.log
    ends = frames(log)
    assert sum(frame.commits for frame in ends) >= ROUNDS
    cuts = sorted({cut for frame in ends for cut in (frame.start, frame.start + 12, frame.end - 100)})
    last = -1
    for number, cut in enumerate([*cuts, len(log)]):
        rest = b"" if tail == "missing" else bytes(len(log) - cut)
        shown = recovered_round(tmp_path / f"cut-{number}.db", recording, log[:cut] + rest)
        answered = sum(size <= cut for size in recording.answered_at) - 1
        assert answered <= shown <= ROUNDS
        assert shown >= last, "a longer log shows an older state"
        last = shown
    assert last == ROUNDS


async def test_a_store_starts_uncleanly_after_a_power_loss(recording: Recording, tmp_path: Path) -> None:
    """The mark of the clean stop before is gone from every cut, so each start says that it is unclean."""
    for cut in recording.answered_at[::10]:
        path = tmp_path / f"cut-{cut}.db"
        path.write_bytes(recording.database)
        path.with_name(path.name + "-wal").write_bytes(recording.log[:cut])
        store = SqliteStore(path)
        assert not (await store.start("rules")).clean
        raised = await store.raise_floor(KEYS[0], ROUNDS + 1)
        assert raised.floor == ROUNDS + 1
        await store.stop(clean=True)


async def test_each_answer_is_in_the_files_when_it_is_given(tmp_path: Path) -> None:
    """Copied at the very moment of each answer, database and log show the floor that was answered."""
    path = tmp_path / "gateway.db"
    store = SqliteStore(path)
    await store.start("rules")

    async def raise_and_look(number: int) -> None:
        for token in range(1, 6):
            await store.raise_floor(f"job-{number}", token)
            copy = tmp_path / f"copy-{number}-{token}.db"
            copy.write_bytes(path.read_bytes())
            log = path.with_name(path.name + "-wal").read_bytes()
            copy.with_name(copy.name + "-wal").write_bytes(log)
            connection = sqlite3.connect(copy)
            rows = connection.execute("SELECT floor FROM fence WHERE key = ?", (f"job-{number}",))
            assert rows.fetchone()[0] >= token
            connection.close()

    await asyncio.gather(*(raise_and_look(number) for number in range(8)))
    await store.stop(clean=True)
