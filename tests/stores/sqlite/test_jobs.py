"""Jobs in SQLite: what stays fast however many there are, and what is written only if nothing has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.job import Job, JobState
from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite import job_statements as sql
from gateway.stores.sqlite.writer import Writer
from gateway.stores.values import Event, EventKind, GrantWanted

BOTH = {"queue": "q", "state": "dead", "after": "", "limit": 9}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "gateway.db")
    await store.start("rules")
    yield store
    await store.stop(clean=True)


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (sql.WAITING, ("q", 9), "SEARCH job USING COVERING INDEX job_in_line"),
        (sql.RUNNING, ("", 9), "SEARCH job USING INDEX job_running"),
        (sql.DELIVERED_BY, ("d",), "SEARCH job USING INDEX job_delivered"),
        (sql.DUE, (1.0, 9), "SEARCH job USING INDEX job_due"),
        (sql.NEXT_DUE, (), "SEARCH job USING INDEX job_due"),
        (sql.HIGHEST_SERIAL, (), "SEARCH job"),
        (sql.JOB, ("k",), "SEARCH job USING INDEX sqlite_autoindex_job_1"),
        (sql.jobs(queue=True, state=True), BOTH, "SEARCH job USING INDEX job_of_queue"),
        (sql.jobs(queue=False, state=False), BOTH, "SEARCH job USING INDEX sqlite_autoindex_job_1"),
        (sql.jobs_of(4), ("a", "b", "c", "d"), "SEARCH job USING INDEX sqlite_autoindex_job_1"),
    ],
)
async def test_no_statement_reads_the_whole_table(
    store: SqliteStore, tmp_path: Path, statement: str, values: object, index: str
) -> None:
    """Each is answered from an index, in its order: as fast with a million jobs as with one."""
    with sqlite3.connect(tmp_path / "gateway.db") as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]  # type: ignore[arg-type]
    connection.close()
    assert plan[0].startswith(index), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan


async def test_a_row_that_is_not_as_it_was_is_not_written(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should what was read ever not be what is there, nothing of the whole decision is written, the token neither."""
    await store.jobs.submit(Job("k", "q"))
    jobs = Writer._jobs

    async def stale(self: Writer, keys: set[str]) -> dict[str, Job | None]:
        found = await jobs(self, keys)
        return {key: job and Job("k", "q", serial=job.serial, token=7) for key, job in found.items()}

    monkeypatch.setattr(Writer, "_jobs", stale)
    with pytest.raises(StoreUnavailable, match="other jobs"):
        await store.jobs.deliver("k", GrantWanted("A", 30, "d"), Event("k", EventKind.GRANTED, 0, 0))
    monkeypatch.undo()
    job = await store.jobs.job("k")
    assert job is not None
    assert (job.state, job.token, (await store.fence("k")).floor) == (JobState.WAITING, 0, 0)
