"""What every suite over a store begins with: its clock, its store, and what is asked of both.

A module that runs a suite has a fixture `open_store` that opens the same store anew each time, takes the fixtures
`clock` and `store` from here, and collects a subclass of the suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.stores.base import Store
from gateway.stores.values import Event, EventKind, Upload

MAX = 2**63 - 1
RULES = "rules-1"


class Clock:
    """Wall-clock time that moves when told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


OpenStore = Callable[[], Awaitable[Store]]
"""Opens the store of this test, as it was left; not started."""


def upload(number: int = 1, *, key: str = "job", token: int = 33, bucket: str = "b") -> Upload:
    return Upload(f"upload-{number}", bucket, f"object-{number}", key, token, f"nonce-{number}")


def event(kind: EventKind = EventKind.REFUSED, *, key: str = "job", token: int = 33, detail: str = "") -> Event:
    return Event(key, kind, token, 34, detail, "request-1")


async def lookup(store: Store, wanted: Upload) -> Upload | None:
    return await store.uploads.bound(wanted.bucket, wanted.object_key, wanted.upload_id)


async def flush(store: Store) -> None:
    """Have what is lazy written: it reaches the disk with the next commit."""
    await store.check()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    store = await open_store()
    await store.start(RULES)
    yield store
    await store.stop(clean=True)
