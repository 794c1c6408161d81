"""The store contract over every store of one gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.stores.memory import MemoryStore
from gateway.stores.sqlite import SqliteStore
from tests.contract import stores
from tests.contract.floor_contract import FloorContract
from tests.contract.job_contract import JobContract
from tests.contract.lease_contract import LeaseContract
from tests.contract.store_contract import StoreContract
from tests.contract.stores import Clock, OpenStore
from tests.contract.upload_contract import UploadContract

clock = stores.clock
store = stores.store


@pytest.fixture(params=["memory", "sqlite", "sqlite without cache"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenStore:
    memory = MemoryStore(clock=clock)

    async def open_store() -> MemoryStore | SqliteStore:
        if request.param == "memory":
            return memory
        cache_size = 65536 if request.param == "sqlite" else 0
        return SqliteStore(tmp_path / "gateway.db", cache_size=cache_size, clock=clock)

    return open_store


class TestStore(StoreContract):
    """Collected here."""


class TestFloors(FloorContract):
    """Collected here."""


class TestUploads(UploadContract):
    """Collected here."""


class TestLeases(LeaseContract):
    """Collected here."""


class TestJobs(JobContract):
    """Collected here."""
