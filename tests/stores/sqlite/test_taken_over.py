"""What a restore takes over of the database that it replaces: completions, and what it tells of the floors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.job import Completion, Job, JobState, Output
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite.backup import MOST_TOLD, restore
from gateway.stores.values import Event, EventKind, GrantWanted

NOW = 1_700_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.start("rules")
    try:
        yield store
    finally:
        await store.stop(clean=True)


async def delivered(store: SqliteStore, key: str, holder: str = "A") -> int:
    """The token of a job's next delivery."""
    change = await store.jobs.deliver(key, GrantWanted(holder, 30.0, key), Event(key, EventKind.GRANTED, 0, 0, holder))
    assert change.done
    return change.fence.floor


async def complete(store: SqliteStore, key: str, token: int) -> Completion:
    completion = Completion(token, "A", '{"frames":240}', (Output("b", f"renders/{key}/1"),), NOW)
    assert (await store.jobs.complete(key, completion)).done
    return completion


async def test_what_has_been_completed_since_the_backup_stays_so(path: Path, tmp_path: Path) -> None:
    """Jobs that waited and ran at the backup, one that is completed anew, and a key of no queue: each is done, with
    what was recorded of it, and its fence says the same. The others are delivered."""
    async with running(path) as store:
        for key in ("waited", "ran", "again", "left"):
            await store.jobs.submit(Job(key, "q", payload='"scene"'))
        token = await delivered(store, "ran")
        await complete(store, "again", await delivered(store, "again"))
        await store.backup(tmp_path / "backup.db")
        done = {"ran": await complete(store, "ran", token)}
        done["waited"] = await complete(store, "waited", await delivered(store, "waited"))
        await store.jobs.reopen("again", "the texture was wrong")
        done["again"] = await complete(store, "again", await delivered(store, "again"))
        await store.raise_floor("plain", 33)
        done["plain"] = await complete(store, "plain", 33)
        await store.jobs.submit(Job("later", "q"))
        done["later"] = await complete(store, "later", await delivered(store, "later"))
        before = {key: await store.jobs.job(key) for key in done}

    restore(tmp_path / "backup.db", path, NOW, force=True)
    async with running(path) as store:
        for key, completion in done.items():
            kept, was = await store.jobs.job(key), before[key]
            assert kept is not None
            assert was is not None
            assert (kept.state, kept.completion, kept.queue) == (JobState.COMPLETED, completion, was.queue)
            assert (kept.payload, kept.attempts) == (was.payload, was.attempts)
            assert (await store.fence(key)).completed_token == completion.token
        assert [place.key for place in await store.jobs.waiting("q", 9)] == ["left"]
        assert await delivered(store, "left") == 2**40 + 1


async def test_what_has_been_reopened_since_the_backup_is_completed_again(path: Path, tmp_path: Path) -> None:
    """The operator's word is as lost as all that a queue was told since: job and fence agree that it is done, and may
    be reopened, whether a queue has it or not."""
    async with running(path) as store:
        await store.jobs.submit(Job("job", "q"))
        await complete(store, "job", await delivered(store, "job"))
        await store.raise_floor("plain", 33)
        await complete(store, "plain", 33)
        await store.backup(tmp_path / "backup.db")
        for key in ("job", "plain"):
            await store.jobs.reopen(key, "once more")
        await delivered(store, "job")

    restore(tmp_path / "backup.db", path, NOW, force=True)
    async with running(path) as store:
        for key, token in (("job", 1), ("plain", 33)):
            kept = await store.jobs.job(key)
            assert kept is not None
            assert kept.completion is not None
            assert (kept.completion.token, (await store.fence(key)).completed_token) == (token, token)
            assert (await store.jobs.reopen(key, "once more")).done
            assert (await store.fence(key)).completed_token == 0


async def test_each_floor_that_a_restore_raises_is_told(path: Path, tmp_path: Path) -> None:
    """In its answer, the first by name, and in the history of each key. One whose seal alone is newer is not raised."""
    async with running(path) as store:
        for key in ("job", "sealed"):
            await store.raise_floor(key, 34)
        await store.backup(tmp_path / "backup.db")
        await store.seal("sealed", 34)
        await store.raise_floor("job", 40)
        for number in range(MOST_TOLD):
            await store.raise_floor(f"later-{number:02}", 5)
    restored = restore(tmp_path / "backup.db", path, NOW, force=True)
    assert restored.raised == MOST_TOLD + 1
    assert [(one.key, one.floor, one.token) for one in restored.found] == [
        ("job", 34, 40), *((f"later-{number:02}", 0, 5) for number in range(MOST_TOLD - 1))
    ]  # fmt: skip
    async with running(path) as store:
        assert (await store.fence("sealed")).sealed_token == 34
        for key, before, floor in (("job", 34, 40), (f"later-{MOST_TOLD - 1:02}", 0, 5)):
            event = (await store.events(key, None, 1))[0]
            told = (event.kind, event.floor, event.token, event.detail, event.at)
            assert told == (EventKind.FOUND, before, floor, "the database that was replaced", NOW)
        assert await store.events("sealed", None, 1) == []
