"""`doctor` and the bucket's record: whose the bucket is, by a look that changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.cli.doctor import standing_of
from gateway.config.load import load
from gateway.core.names import RECORD_KEY
from gateway.service.record import Record, RecordObjects, render_record
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite.backup import write_backup
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from gateway.upstream.probe import FixedCapabilities
from tests.service.rig import BUCKET, HONEST


class Bucket:
    """One, and a database beside it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "gateway.db"
        self.upstream = MemoryUpstream(BUCKET)

    def bears(self, record: Record | None) -> None:
        data = b"garbage" if record is None else render_record(record)
        self.upstream.apply(UpstreamRequest("PUT", BUCKET, RECORD_KEY, "", ()), data)

    async def fault(self, **store: object) -> tuple[bool, str]:
        settings = load(None, {}, {"store.url": f"sqlite:{self.file}"} | {f"store.{n}": v for n, v in store.items()})
        records = RecordObjects(self.upstream, FixedCapabilities(HONEST))
        standing = await standing_of(settings, BUCKET, records)
        return standing.recorded, standing.fault


OTHER = Record("another-database", 3, "its-run", "nonce", False, 60.0, "2026-11-30T00:00:00Z")


async def test_whose_a_bucket_is_without_a_database(tmp_path: Path) -> None:
    """Nobody's, another's, or not to be known; and nothing is made."""
    bucket = Bucket(tmp_path)
    assert await bucket.fault() == (False, "")
    _, fault = await bucket.fault(fenced_before=True)
    assert "has not rebuilt" in fault
    bucket.bears(OTHER)
    recorded, fault = await bucket.fault()
    assert recorded
    assert "belongs to database another-" in fault
    assert f"fence rebuild --bucket {BUCKET}" in fault
    assert await bucket.fault(fenced_before=False) == (False, "")
    bucket.bears(None)
    assert "cannot be read" in (await bucket.fault())[1]
    assert not bucket.file.exists()


async def test_whose_a_bucket_is_beside_a_running_gateway(tmp_path: Path) -> None:
    """Its database's own; an older copy of it, one that rebuilds, and a restored one are told."""
    bucket = Bucket(tmp_path)
    store = SqliteStore(bucket.file)
    await store.start("rules")
    mine = replace(OTHER, database=store.authority.database, generation=0, run=store.authority.run)
    bucket.bears(mine)
    await store.rule(BUCKET)
    assert await bucket.fault() == (True, "")
    bucket.bears(replace(mine, rebuilding=True))
    assert "has not come to its end" in (await bucket.fault())[1]
    bucket.bears(replace(mine, run="later"))
    assert "older copy" in (await bucket.fault())[1]
    await store.stop(clean=True)
    bucket.bears(mine)
    copy = tmp_path / "backup.db"
    write_backup(bucket.file, copy, 0.0)
    bucket.file = copy
    assert "older copy" in (await bucket.fault())[1]
    bucket.upstream.buckets[BUCKET].clear()
    assert "has been restored" in (await bucket.fault())[1]


async def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    """A store that does not answer, a bucket that is not there, a file that is no database."""
    bucket = Bucket(tmp_path)

    async def lost(request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        raise UpstreamLost("connection reset")

    bucket.file.write_bytes(b"no database" * 1000)
    assert "cannot be read" in (await bucket.fault())[1]
    bucket.upstream.buckets.clear()
    assert "no bucket" in (await bucket.fault())[1]
    bucket.upstream.read = lost  # type: ignore[method-assign]
    assert "connection reset" in (await bucket.fault())[1]
