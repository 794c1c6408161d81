"""A bucket for `doctor` to try things in where none is named, gone again however that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from gateway.upstream.base import EMPTY_SHA256, Upstream, UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.scratch import TIMEOUT_S, CannotProbe, NotReached


class LentBucket:
    """There while this lasts. Entering it raises `CannotProbe`; leaving it raises nothing of its own."""

    def __init__(self, upstream: Upstream, name: str) -> None:
        self._upstream = upstream
        self._name = name
        self.left = False
        """It is, or may be, still there; known once this is over."""

    async def __aenter__(self) -> Self:
        try:
            status = await _to_its_end(self._send("PUT"))
        except (NotReached, asyncio.CancelledError):
            await self._remove()
            raise
        if status >= 300:
            raise CannotProbe(f"PUT of the bucket itself was answered {status}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._remove()

    async def _remove(self) -> None:
        self.left = True
        try:
            status = await _to_its_end(self._send("DELETE"))
        except NotReached:
            return
        self.left = status >= 300 and status != 404

    async def _send(self, method: str) -> int:
        """Make the bucket itself, or delete it; answers the status. Raises `NotReached`."""
        request = UpstreamRequest(method, self._name, "", "", (), EMPTY_SHA256)
        try:
            response = await self._upstream.send(request, b"", TIMEOUT_S)
        except (UpstreamNotReached, UpstreamLost) as error:
            raise NotReached(str(error)) from error
        response.close()
        return response.status


async def _to_its_end(what: Coroutine[Any, Any, int]) -> int:
    """Await what no cancellation cuts: whether a request that was cut has had its effect, nobody knows."""
    task = asyncio.create_task(what)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
