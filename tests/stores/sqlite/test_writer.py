"""Group commit, on a real database whose COMMIT can be held or made to fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiosqlite
import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.rules import HISTORY_KEPT, raised
from gateway.stores.sqlite import statements as sql
from gateway.stores.sqlite import writer
from gateway.stores.sqlite.cache import ReadThrough
from gateway.stores.sqlite.database import connect_reader, connect_writer
from gateway.stores.sqlite.lazy import MAX_WAITING, LazyWrites
from gateway.stores.sqlite.outbox_rows import OutboxRows
from gateway.stores.sqlite.writer import Writer
from gateway.stores.values import Event, EventKind, Fence


class Connection:
    """The connection of a writer, with a hand on its COMMIT."""

    def __init__(self, real: aiosqlite.Connection) -> None:
        self.real = real
        self.commits = 0
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.fails_with: sqlite3.Error | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def execute(self, statement: str, values: Iterable[Any] | None = None) -> aiosqlite.Cursor:
        if statement == sql.COMMIT:
            self.reached.set()
            await self.released.wait()
            if self.fails_with is not None:
                raise self.fails_with
            self.commits += 1
        return await self.real.execute(statement, values)


class Bench:
    """A writer and the reader beside it."""

    def __init__(self, connection: Connection, reader: aiosqlite.Connection) -> None:
        self.connection = connection
        self.reader = reader
        self.fences: ReadThrough[str, Fence] = ReadThrough(100)
        self.lazy = LazyWrites()
        self.outbox = OutboxRows()
        self.failures: list[None] = []
        self.writer = Writer(
            connection,  # type: ignore[arg-type]
            self.fences,
            self.lazy,
            outbox=self.outbox,
            in_place=lambda: None,
            on_failure=lambda: self.failures.append(None),
            clock=lambda: 1.0,
        )

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        return await self.writer.change_fence(key, partial(raised, token=token, at=1.0), event)

    async def committed(self, key: str) -> int:
        """The floor that another connection sees."""
        rows = await self.reader.execute_fetchall(sql.FENCE, (key,))
        return max((sql.fence_of(row).floor for row in rows), default=0)

    async def count_events(self) -> int:
        ((count,),) = await self.reader.execute_fetchall("SELECT count(*) FROM event")
        return int(count)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    path = tmp_path / "gateway.db"
    connection = await connect_writer(path)
    reader = await connect_reader(path)
    bench = Bench(Connection(connection), reader)
    yield bench
    bench.connection.released.set()
    await bench.writer.finish()
    await reader.close()
    await connection.close()


async def test_what_waits_shares_one_commit(bench: Bench) -> None:
    """A hundred raises at once are one transaction, and so are those that come in while it commits."""
    bench.connection.released.clear()
    first = asyncio.gather(*(bench.raise_floor(f"a-{n}", 1) for n in range(100)))
    await bench.connection.reached.wait()
    second = asyncio.gather(*(bench.raise_floor(f"b-{n}", 1) for n in range(100)))
    await asyncio.sleep(0)
    bench.connection.released.set()
    await asyncio.gather(first, second)
    assert bench.connection.commits == 2


async def test_nobody_is_answered_before_the_commit(bench: Bench) -> None:
    """While the COMMIT is held no caller has an answer, and neither cache nor reader shows the new floor."""
    await bench.raise_floor("job", 1)
    bench.connection.reached.clear()
    bench.connection.released.clear()
    raises = [asyncio.create_task(bench.raise_floor("job", token)) for token in (2, 3)]
    await bench.connection.reached.wait()
    assert await bench.committed("job") == 1
    cached = bench.fences.get("job")
    assert cached is not None
    assert cached.floor == 1
    assert not any(task.done() for task in raises)
    bench.connection.released.set()
    assert [(await task).floor for task in raises] == [3, 3]
    assert await bench.committed("job") == 3


async def test_raises_of_one_key_write_one_row(bench: Bench) -> None:
    """The highest of a batch is written once, and every caller is told of it."""
    traced: list[str] = []
    await bench.connection.real.set_trace_callback(traced.append)
    answers = await asyncio.gather(*(bench.raise_floor("job", token) for token in (5, 9, 7)))
    assert [answer.floor for answer in answers] == [9, 9, 9]
    assert sum("INSERT INTO fence" in statement for statement in traced) == 1


async def test_a_raise_that_changes_nothing_writes_nothing(bench: Bench) -> None:
    """What the floor has already reached needs no commit, also when it is not cached."""
    await bench.raise_floor("job", 5)
    bench.fences.clear()
    assert (await bench.raise_floor("job", 4)).floor == 5
    assert bench.connection.commits == 1


async def test_a_commit_that_fails_fails_the_whole_batch(bench: Bench) -> None:
    """All are told, nothing of it stays, what is cached of its keys is forgotten, and the next one works."""
    await asyncio.gather(bench.raise_floor("a", 1), bench.raise_floor("c", 1))
    bench.connection.fails_with = sqlite3.OperationalError("disk I/O error")
    event = Event("a", EventKind.RAISED, 2, 2)
    outcomes = await asyncio.gather(bench.raise_floor("a", 2, event), bench.raise_floor("b", 2), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StoreUnavailable]
    assert bench.fences.get("a") is None
    assert bench.fences.get("c") is not None
    bench.connection.fails_with = None
    assert (await bench.raise_floor("c", 2)).floor == 2
    assert [await bench.committed(key) for key in "abc"] == [1, 0, 2]
    assert await bench.count_events() == 0


async def test_a_failed_batch_with_rows_tells_the_store(bench: Bench) -> None:
    """The owner of the other caches is told before the callers are."""

    async def write(connection: aiosqlite.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreUnavailable):
        await bench.writer.change_rows(write)
    assert len(bench.failures) == 1


async def test_lazy_writes_survive_a_failed_commit(bench: Bench) -> None:
    """They go with the next commit that succeeds, once."""
    bench.lazy.raise_shadow("job", 5)
    bench.lazy.record(Event("job", EventKind.REFUSED, 1, 1))
    bench.connection.fails_with = sqlite3.OperationalError("disk I/O error")
    with pytest.raises(StoreUnavailable):
        await bench.raise_floor("job", 1)
    bench.connection.fails_with = None
    assert (await bench.raise_floor("job", 1)).shadow_floor == 5
    assert await bench.count_events() == 1
    assert not bench.lazy


async def test_lazy_writes_are_flushed_without_a_caller(bench: Bench) -> None:
    """Nobody raises anything, and still they are committed, also after an attempt that failed."""
    bench.connection.fails_with = sqlite3.OperationalError("disk I/O error")
    bench.lazy.record(Event("job", EventKind.REFUSED, 1, 1))
    bench.writer.flush_soon()
    await asyncio.wait_for(bench.connection.reached.wait(), 5)
    bench.connection.released.clear()
    bench.connection.fails_with = None
    bench.connection.reached.clear()
    await asyncio.wait_for(bench.connection.reached.wait(), 5)
    bench.connection.released.set()
    await bench.writer.finish()
    assert await bench.count_events() == 1


async def test_a_cancelled_caller_leaves_the_batch_alone(bench: Bench) -> None:
    """Cancelled while the COMMIT is under way, its raise is made all the same and cached, as its batch's are."""
    bench.connection.released.clear()
    tasks = [asyncio.create_task(bench.raise_floor(key, 1)) for key in "ab"]
    await bench.connection.reached.wait()
    tasks[0].cancel()
    bench.connection.released.set()
    assert (await tasks[1]).floor == 1
    cached = bench.fences.get("a")
    assert cached is not None
    assert cached.floor == await bench.committed("a") == 1


async def test_many_at_once_are_made_all_the_same(bench: Bench) -> None:
    """As where all jobs of workers that have died come back at one moment: nothing is wrong with the disk."""
    raises = [bench.raise_floor(f"job-{number}", 1) for number in range(2 * MAX_WAITING)]
    assert {fence.floor for fence in await asyncio.gather(*raises)} == {1}


async def test_a_disk_that_hangs_does_not_fill_the_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many changes wait, also where nobody waits for them any more; whoever comes then is told at once. When
    the disk goes on those that waited are made, and new ones are taken again."""
    bench.connection.released.clear()
    first = asyncio.create_task(bench.raise_floor("first", 1))
    await bench.connection.reached.wait()
    waiting = [asyncio.create_task(bench.raise_floor(f"job-{number}", 1)) for number in range(MAX_WAITING)]
    await asyncio.sleep(0)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    monkeypatch.setattr(writer, "CHECK_TIMEOUT_S", 0.0)
    for refused in (bench.raise_floor("one more", 1), bench.writer.change_rows(AsyncMock())):
        with pytest.raises(StoreUnavailable, match="wait for the disk"):
            await asyncio.wait_for(refused, 5)
    bench.connection.released.set()
    assert [(await task).floor for task in (first, waiting[0])] == [1, 1]
    assert await bench.committed(f"job-{MAX_WAITING - 1}") == 1
    assert await bench.committed("one more") == 0
    assert (await bench.raise_floor("one more", 2)).floor == 2


async def test_a_database_that_knows_more_is_not_lowered(bench: Bench) -> None:
    """Had another program raised a floor behind our back, the write fails and the next read sees it."""
    await bench.raise_floor("job", 5)
    await bench.connection.real.execute("UPDATE fence SET floor = 9 WHERE key = 'job'")
    with pytest.raises(StoreUnavailable, match="higher floors"):
        await bench.raise_floor("job", 6)
    assert await bench.committed("job") == 9
    assert (await bench.raise_floor("job", 7)).floor == 9


async def test_a_history_does_not_grow_for_ever(bench: Bench) -> None:
    """The newest lines stay; of a key that tells a lot only a few more than that."""
    for number in range(1000):
        bench.lazy.record(Event("busy", EventKind.REFUSED, 1, 1, f"{number}"))
        if number % 100 == 0:
            bench.lazy.record(Event("calm", EventKind.REFUSED, 1, 1, f"{number}"))
        if number % 50 == 49:
            await bench.raise_floor("busy", number)
    await bench.writer.finish()
    rows = await bench.reader.execute_fetchall(sql.EVENTS, {"key": "busy", "before": None, "limit": 2000})
    details = [sql.event_of(row).detail for row in rows]
    assert HISTORY_KEPT <= len(details) <= HISTORY_KEPT + 256 + 50
    assert details == [f"{999 - number}" for number in range(len(details))]
    rows = await bench.reader.execute_fetchall(sql.EVENTS, {"key": "calm", "before": None, "limit": 2000})
    assert len(list(rows)) == 10


async def test_more_keys_than_one_select_takes(bench: Bench) -> None:
    """A batch of any size finds the state of each of its keys."""
    keys = [f"job-{number}" for number in range(700)]
    await asyncio.gather(*(bench.raise_floor(key, 7) for key in keys))
    bench.fences.clear()
    answers = await asyncio.gather(*(bench.raise_floor(key, 3) for key in keys))
    assert {answer.floor for answer in answers} == {7}


async def outbox(bench: Bench) -> list[int]:
    """The tokens that another connection sees waiting."""
    return [sql.waiting_of(row).event.token for row in await bench.reader.execute_fetchall(sql.WAITING, ("w", 0, 99))]


async def test_what_is_announced_is_committed_with_its_event_or_not_at_all(bench: Bench) -> None:
    """Before the COMMIT nobody sees it and nobody is told; where that fails it never was."""
    told: list[dict[str, int]] = []
    bench.outbox.wanted, bench.outbox.arrived = lambda _: ["w"], lambda counts: told.append(dict(counts))
    bench.connection.fails_with = sqlite3.OperationalError("disk I/O error")
    with pytest.raises(StoreUnavailable):
        await bench.raise_floor("job", 1, Event("job", EventKind.RAISED, 1, 0))
    assert (await outbox(bench), told) == ([], [])
    bench.connection.fails_with = None
    bench.connection.reached.clear()
    bench.connection.released.clear()
    raises = [bench.raise_floor(key, 2, Event(key, EventKind.RAISED, 2, 0)) for key in "ab"]
    both = asyncio.gather(*raises)
    await bench.connection.reached.wait()
    assert (await outbox(bench), told) == ([], [])
    bench.connection.released.set()
    await both
    assert (await outbox(bench), told) == ([2, 2], [{"w": 2}])


async def test_what_is_done_outlives_a_failed_commit(bench: Bench) -> None:
    """It is taken out with the next that succeeds, and no sooner; nobody has to ask for one."""
    bench.outbox.wanted = lambda _: ["w"]
    await bench.raise_floor("job", 1, Event("job", EventKind.RAISED, 1, 0))
    ((serial, *_),) = await bench.reader.execute_fetchall(sql.WAITING, ("w", 0, 99))
    bench.connection.fails_with = sqlite3.OperationalError("disk I/O error")
    bench.outbox.remove(serial)
    with pytest.raises(StoreUnavailable):
        await bench.raise_floor("job", 2)
    assert await outbox(bench) == [1]
    bench.connection.fails_with = None
    bench.writer.flush_soon()
    await bench.writer.finish()
    assert await outbox(bench) == []
