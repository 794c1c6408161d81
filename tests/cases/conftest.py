"""The two sides of a comparison, for every module here."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cases import sides as sides_module
from tests.cases.sides import DIRECT, THROUGH, Sides
from tests.conftest import StoreServer


@pytest.fixture(scope="session")
def both_buckets(store_server: StoreServer) -> StoreServer:
    """The store, with a bucket for each side."""
    for name in (DIRECT, THROUGH):
        store_server.client.create_bucket(Bucket=name)
    return store_server


@pytest.fixture
async def sides(both_buckets: StoreServer) -> AsyncIterator[Sides]:
    """The store, and a gateway before it."""
    async with sides_module.sides(both_buckets) as both:
        yield both
