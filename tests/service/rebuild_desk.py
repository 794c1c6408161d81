"""Rebuilds of a bucket on a table, over a store that fails on order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.core.keys import key_in_metadata
from gateway.s3.fencing import META_KEY, META_NONCE, META_TOKEN
from gateway.service.rebuild import Progress, Rebuilds
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from gateway.upstream.probe import FixedCapabilities
from tests.service.record_desk import Counting
from tests.service.rig import BUCKET, HONEST, Rig

ASSEMBLY_S = 300.0


class Trouble(Counting):
    """Fails at objects on order; tells of each look."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self.looked: list[str] = []
        self.on_look: Callable[[str], None] = lambda key: None
        self.status: dict[str, int] = {}
        self.lost = 0

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if request.method == "HEAD" and request.raw_key:
            self.looked.append(request.raw_key)
            self.on_look(request.raw_key)
            if self.lost:
                self.lost -= 1
                raise UpstreamLost("connection reset")
            if request.raw_key in self.status:
                return MemoryResponse(self.status[request.raw_key], [], b"")
        return await super().read(request, body)


def rebuilds(made: Rig, capabilities: Any = HONEST, *, settled: bool = False) -> Rebuilds:
    writes = made.writes
    return Rebuilds(
        made.fences,
        writes.records,
        writes.upstream,
        FixedCapabilities(capabilities),
        made.rules,
        writes.name,
        writes.clock,
        settled=settled,
    )


async def rebuilt(made: Rig, capabilities: Any = HONEST, *, settled: bool = False) -> Progress:
    """A rebuild to its end."""
    its = rebuilds(made, capabilities, settled=settled)
    progress = its.begin(BUCKET)
    while not progress.over:
        await asyncio.sleep(1)
    return progress


def put_fenced(upstream: Trouble, key: str, fence_key: str, token: int) -> None:
    """An object as a gateway leaves it."""
    headers = ((META_KEY, key_in_metadata(fence_key)), (META_TOKEN, str(token)), (META_NONCE, "n"))
    upstream.apply(UpstreamRequest("PUT", BUCKET, key, "", headers), b"data")


async def close(*made: Rig) -> None:
    for each in made:
        await each.writes.close()
