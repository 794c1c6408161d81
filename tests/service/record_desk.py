"""Gateways that share a bucket and its record, over a store that counts who looks at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.core.keys import FencingKey
from gateway.core.names import RECORD_KEY
from gateway.service.record import parse_record, render_record
from gateway.service.records import Records
from gateway.service.waits import Timing
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from gateway.upstream.probe import FixedCapabilities
from tests.service.rig import BUCKET, HONEST, FaultyUpstream, Rig, refusal, rig
from tests.virtual_time import VirtualClock

LAPSE_S = 60.0
LONG_KEY = FencingKey("k" * 300)
"""Objects carry no more of it than its hash."""
PLAIN = "plain/object"
"""An object that no rule maps."""


class Counting(FaultyUpstream):
    """Counts what is asked of the record."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self.reads = 0
        self.unreadable: int | None = None
        """Answers reads of the record with that status, and with `unreadable_code`."""
        self.unreadable_code = "AccessDenied"
        self.lost_reads = False

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if request.raw_key == RECORD_KEY and request.method == "GET":
            self.reads += 1
            if self.lost_reads:
                raise UpstreamLost("connection reset")
            if self.unreadable is not None:
                body = f"<Error><Code>{self.unreadable_code}</Code></Error>".encode()
                return MemoryResponse(self.unreadable, [], body)
        return await super().read(request, body)

    @property
    def record_writes(self) -> int:
        return sum(request.raw_key == RECORD_KEY for request in self.sent)


async def gateway(
    upstream: FaultyUpstream,
    name: str = "one",
    *,
    store: MemoryStore | None = None,
    capabilities: Any = HONEST,
    timing: Timing | None = None,
    **options: Any,
) -> Rig:
    """A service layer with records over a shared upstream; another `name` is another database."""
    clock = VirtualClock()
    store = store or MemoryStore(clock=clock.wall, name=name)
    made = await rig(store=store, upstream=upstream, clock=clock, capabilities=capabilities, timing=timing)
    made.writes.records = made.writes.door.records = Records(
        store, upstream, FixedCapabilities(capabilities), clock, lapse_s=LAPSE_S, **options
    )
    made.fences.before_commit = made.writes.records.before_commit
    made.writes.records.on_lapse = made.fences.cut_off
    return made


def record(upstream: FaultyUpstream) -> dict[str, Any]:
    return dict(orjson.loads(upstream.buckets[BUCKET][RECORD_KEY].data))


def put_record(upstream: FaultyUpstream, data: bytes) -> None:
    """Somebody replaces the record behind the gateway's back."""
    upstream.apply(UpstreamRequest("PUT", BUCKET, RECORD_KEY, "", ()), data)


def take_over(upstream: FaultyUpstream, database: str = "two", **more: Any) -> None:
    """Another database writes its record over the one that is there."""
    told = parse_record(upstream.buckets[BUCKET][RECORD_KEY].data)
    put_record(upstream, render_record(replace(told, database=database, nonce="other", **more)))


async def superseded(call: object) -> FenceError:
    error = await refusal(call)
    assert error.reason is Reason.SUPERSEDED
    assert isinstance(error, TryAgain)
    return error
