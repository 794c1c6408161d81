"""Two equal stores, one of them behind a gateway: all three know the same key pair, so that one request, byte for byte,
can be sent to either side."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.upstream.embedded import EmbeddedStore
from tests.end_to_end.process import CLIENT, gateway_over
from tests.gateway_process import Target, before

CREDENTIALS = CLIENT
HOST = "s3.differential.example"
"""What both sides are told that they are."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sides:
    """Where to find them."""

    direct: Address
    """The store that is reached past any gateway."""
    through: Address
    """The gateway."""
    behind: Address
    """The store behind the gateway."""


@contextmanager
def sides(directory: Path) -> Iterator[Sides]:
    """Both sides, running. Ready within 10 s."""
    with ExitStack() as stack:
        loop = stack.enter_context(_loop())
        stores = [EmbeddedStore(directory / name) for name in ("direct", "behind")]
        for store, name in zip(stores, ("direct", "behind"), strict=True):
            _know(directory / name)
            stack.callback(_end, loop, store)
        _wait(loop, asyncio.wait_for(_start(stores), 60))
        # Without the bucket's record, whose place in a page of a list makes that page shorter.
        behind = before(Target(stores[1].url, CREDENTIALS))
        gateway = stack.enter_context(gateway_over(directory, "store.fenced_before=false", **behind))
        yield Sides(_address(stores[0].url), gateway.address, _address(stores[1].url))


def _end(loop: asyncio.AbstractEventLoop, store: EmbeddedStore) -> None:
    _wait(loop, store.stop())


async def _start(stores: list[EmbeddedStore]) -> None:
    await asyncio.gather(*(store.start() for store in stores))


def _know(directory: Path) -> None:
    """Give a store the key pair before its first start, in the form of SeaweedFS's S3 configuration."""
    directory.mkdir(parents=True)
    pair = {"accessKey": CREDENTIALS.access_key, "secretKey": CREDENTIALS.secret_key}
    identity = {"name": "gateway", "credentials": [pair], "actions": ["Admin"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own: the stores live as long as the thread that has started them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stores", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _wait(loop: asyncio.AbstractEventLoop, what: Any) -> None:
    asyncio.run_coroutine_threadsafe(what, loop).result(60)


def _address(url: str) -> Address:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)
