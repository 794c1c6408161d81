"""A disk and a store under the service that wait at each of their steps, until a schedule lets one of them go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, Fence
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse, MemoryUpstream
from tests.model.world import KEYS, Flight, Request
from tests.service.rig import BUCKET, Payload

KEY = KEYS[0]
asked: ContextVar[Asked] = ContextVar("asked")
"""The request that is being served; unset for what the service does by itself."""


@dataclass(eq=False)
class Asked:
    """One request, in the service and in the model."""

    told: str
    model: Request | None
    flight: Flight | None = None
    """The model's, while a send of it may land."""
    task: asyncio.Task[str] | None = None
    waits: str = ""
    """For what; empty: for nothing that a schedule decides."""
    go: asyncio.Future[str] | None = None
    body: Payload | None = None
    data: bytes = b""
    verdict: str = ""
    """The model's."""
    sent: tuple[UpstreamRequest, bytes] | None = None
    """What may land."""

    async def wait(self, what: str) -> str:
        self.waits, self.go = what, asyncio.get_running_loop().create_future()
        try:
            return await self.go
        finally:
            self.waits, self.go = "", None


class Disk(MemoryStore):
    """Waits before and after each raise; completed floors reach it when they are flushed."""

    def __init__(self, nothing_to_raise: Callable[[Asked], None]) -> None:
        """`nothing_to_raise` is told whose raise has been made already."""
        super().__init__(clock=lambda: 0.0)
        self._nothing_to_raise = nothing_to_raise
        self.lazy: dict[str, int] = {}

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        if token <= self.durable.floor:
            self._nothing_to_raise(asked.get())
            return self.durable  # as in the database, which knows that there is nothing to write
        await asked.get().wait("disk")
        fence = await super().raise_floor(key, token, event)
        await asked.get().wait("learn")
        return fence

    def complete_handover(self, key: str, token: int) -> None:
        self.lazy[key] = max(self.lazy.get(key, 0), token)

    def flush(self) -> None:
        for key, token in self.lazy.items():
            super().complete_handover(key, token)

    @property
    def durable(self) -> Fence:
        return self._fences.get(KEY) or Fence(KEY)


class Store(MemoryUpstream):
    """Waits before a HEAD is evaluated and before it is told, before a write lands and before that is told."""

    def __init__(self, chased: Callable[[Asked], None]) -> None:
        """`chased` is told whose nonce the service looks for by itself."""
        super().__init__(BUCKET)
        self._chased = chased

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        who = asked.get(None)
        if who is None or request.method != "HEAD":
            return self.apply(request, body)
        if who.task is not None and who.task.done():
            self._chased(who)
            return self.apply(request, body)
        await who.wait("look")
        answer = self.apply(request, body)
        await who.wait("judge")
        return answer

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        who = asked.get()
        who.sent = (request, body)
        return await self.way(who)

    async def way(self, who: Asked) -> MemoryResponse:
        """What becomes of what has been sent whole."""
        what = await who.wait("land")
        answer = MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>")
        if what == "land":
            assert who.sent is not None
            answer = self.apply(*who.sent)
            who.sent = None
            what = await who.wait("answer")
        if what == "reset":
            raise UpstreamLost("connection reset")
        if what == "403":
            who.sent = None
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        return MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>") if what == "500" else answer

    async def open(self, request: UpstreamRequest, content_length: int) -> Exchange:
        return Exchange(self, request, content_length)


class Exchange(MemoryExchange):
    """A body that streams; its last byte is sent, and may land when it is let."""

    async def write(self, data: bytes) -> None:
        self._body += data
        self._unsent -= len(data)
        if not self._unsent:
            asked.get().sent = (self._request, bytes(self._body))

    async def response(self, timeout_s: float) -> MemoryResponse:
        store: Any = self._store
        return await store.way(asked.get())  # type: ignore[no-any-return]
