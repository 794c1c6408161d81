"""A real gateway in a thread of its own, which no test's blocked loop holds up, and a proxy that harms its answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.chaos.proxy import Harm, Proxy, unharmed
from tests.server.rig import Rig, running

T = TypeVar("T")
BOUND_S = 20.0


@dataclass
class Served:
    """A gateway whose control API is at `url`, behind the proxy."""

    loop: asyncio.AbstractEventLoop
    rig: Rig
    proxy: Proxy
    harms: list[tuple[bytes, Harm]] = field(default_factory=list)
    """To be done, each once, to the next request whose head holds those bytes."""
    reachable: bool = True

    @property
    def url(self) -> str:
        return self.proxy.url

    @property
    def s3_url(self) -> str:
        return f"http://127.0.0.1:{self.rig.gateway.s3_port}"

    def there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it where the gateway runs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(BOUND_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the gateway's state is so."""

        async def look() -> None:
            async with asyncio.timeout(BOUND_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.there(look())

    def count(self, event: str) -> int:
        """How often leases have been granted, renewed, released …"""
        return self.rig.gateway.leases.counts[event]

    def take_over(self, key: str) -> int:
        """Somebody raises the floor of the key past its holder."""

        async def raise_floor() -> int:
            fence = await self.rig.gateway.fences.state(key)  # type: ignore[arg-type]
            live = await self.rig.gateway.fences.admit(key, fence.floor + 1, cause="operator: a test", issued=True)  # type: ignore[arg-type]
            self.rig.gateway.fences.unpin(live)
            return fence.floor + 1

        return self.there(raise_floor())

    def harm(self, head: bytes) -> Harm:
        if not self.reachable:
            return Harm.CUT_BEFORE
        for number, (needle, harm) in enumerate(self.harms):
            if needle in head:
                del self.harms[number]
                return harm
        return unharmed(head)


@contextmanager
def served(**parts: Any) -> Iterator[Served]:
    """For as long as the context lasts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()
    ready: asyncio.Future[Served] = loop.create_future()
    over = asyncio.Event()

    async def serve() -> None:
        async with running(**parts) as rig:

            def target() -> tuple[str, int]:
                return "127.0.0.1", rig.gateway.control_port if one.reachable else 1

            async with Proxy(target) as proxy:
                one = Served(loop, rig, proxy)
                proxy.harm = one.harm
                ready.set_result(one)
                await over.wait()

    async def first() -> Served:
        return await ready

    serving = asyncio.run_coroutine_threadsafe(serve(), loop)
    try:
        yield asyncio.run_coroutine_threadsafe(first(), loop).result(BOUND_S)
    finally:
        loop.call_soon_threadsafe(over.set)
        serving.result(BOUND_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BOUND_S)
        loop.close()
