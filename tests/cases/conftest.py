"""The two sides of a comparison, for every module here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway.clock import SystemClock
from gateway.upstream.base import Capabilities
from gateway.upstream.probe import Prober
from tests.cases import sides as sides_module
from tests.cases.sides import Sides
from tests.conftest import StoreServer
from tests.server.rig import real


@pytest.fixture(scope="session")
def proved(store_server: StoreServer) -> Capabilities:
    """What the real store does, found out once for all tests."""
    bucket = f"proved-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=bucket)

    async def probe() -> Capabilities:
        upstream = real(store_server)
        try:
            return await Prober(upstream, SystemClock()).of_bucket(bucket)
        finally:
            await upstream.close()

    return asyncio.run(probe())


@pytest.fixture
async def sides(store_server: StoreServer, proved: Capabilities) -> AsyncIterator[Sides]:
    """The store, and a gateway before it."""
    async with sides_module.sides(store_server, proved) as both:
        yield both
