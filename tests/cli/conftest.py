"""A gateway to ask, and keys to ask for."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before


@pytest.fixture(scope="module")
def gateway(store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for all, with an open control listener."""
    child = GatewayProcess(tmp_path_factory.mktemp("gateway"), **before(store_server)).start()
    yield child
    child.kill()


@pytest.fixture
def key() -> str:
    """A key that no other test uses, with all that a path could stumble over."""
    return f"job {secrets.token_hex(4)}/a%2F..//ü?#{{}}"
