"""What tests of several folders share: one real object store for the whole session, and buckets in it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from gateway.s3.sigv4 import Credentials
from gateway.upstream.embedded import EmbeddedStore
from tests.authority import Authority

REGION = "us-east-1"

# Tests that a script starts in the background ignore SIGINT, and with them would every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def s3_client(url: str, credentials: Credentials, **config: Any) -> Any:
    """botocore's own client, synchronous and without retries: what a test sends is sent once."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        aws_session_token=credentials.session_token,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=30,
            s3={"addressing_style": "path"},
            **config,
        ),
    )


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A running SeaweedFS, reached past the gateway."""

    url: str
    credentials: Credentials
    client: Any
    pid: int
    directory: Path


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """One SeaweedFS for the session, in a loop and thread of its own, so that tests with any loop can use it.

    Up in about 3 s; ended with the session, also when that is killed."""
    directory = tmp_path_factory.mktemp("session") / "store"
    store = EmbeddedStore(directory)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="store_server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(store.start(), loop).result(60)
        client = s3_client(store.url, store.credentials)
        assert store.pid is not None
        yield StoreServer(store.url, store.credentials, client, store.pid, directory)
        client.close()
    finally:
        asyncio.run_coroutine_threadsafe(store.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def bucket(store_server: StoreServer) -> str:
    """The name of a new, empty bucket. Never deleted: it costs 5 ms, and the store takes thousands."""
    name = f"test-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority for certificates, of the module alone."""
    return Authority(tmp_path_factory.mktemp("authority"))
