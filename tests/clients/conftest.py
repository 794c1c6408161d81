"""One gateway for all clients, and files for them to send."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.browser import CORS
from tests.clients.drivers import Companion
from tests.clients.gateway import BUCKET, STRICT, WatchedGateway
from tests.conftest import s3_client


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedGateway]:
    """A gateway with one bucket; ended with the session."""
    with WatchedGateway(tmp_path_factory.mktemp("clients")) as running:
        client = s3_client(running.url, STRICT)
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": [CORS]})
        client.close()
        yield running
        Companion.end_all()


@pytest.fixture(scope="session")
def s3(gateway: WatchedGateway) -> Iterator[Any]:
    """What tests look with and prepare by: a client without retries, at the gateway."""
    client = s3_client(gateway.url, STRICT)
    yield client
    client.close()


@pytest.fixture(scope="session")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 MB of noise: every client sends it in parts, or streams it."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for number in range(100):
            file.write(number.to_bytes(8, "big") + block[8:])
    return path


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    """A few bytes that no other test sends."""
    path = tmp_path / "small.bin"
    path.write_bytes(os.urandom(20))
    return path
