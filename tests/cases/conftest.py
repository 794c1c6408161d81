"""The two sides of a comparison, for every module here."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cases import sides as sides_module
from tests.cases.sides import Sides
from tests.conftest import StoreServer


@pytest.fixture
async def sides(store_server: StoreServer) -> AsyncIterator[Sides]:
    """The store, and a gateway before it."""
    async with sides_module.sides(store_server) as both:
        yield both
