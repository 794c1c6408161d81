"""What the line of a request says: all that the question "what became of it, and who kept it waiting?" needs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway import telemetry
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.fuzz.memory_wire import NOW, World, quiet
from tests.server.rig import BUCKET, CREDENTIALS, running, signed
from tests.server.stories import TOKEN, play

STORE_S = 2.0


class Slow(MemoryUpstream):
    """Takes its time for a write, and names each answer."""

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        await asyncio.sleep(STORE_S)
        answer = await super().send(request, body, timeout_s)
        answer.headers.append(("x-amz-request-id", "THE-STORES-OWN"))
        return answer


def line(world: World) -> dict[str, Any]:
    telemetry._output.stream.flush()
    last: dict[str, Any] = json.loads(world.log.getvalue().splitlines()[-1])
    return last


def test_a_line_tells_who_what_and_how_long() -> None:
    """One fenced PUT, field by field: how long it took, and how long of that its client was waited for."""

    async def story(world: World) -> None:
        connection, transport = world.connect()
        body = b"0123456789"
        connection.data_received(signed("PUT", "/b/renders/7/a", [TOKEN], body, now=NOW) + body[:5])
        await quiet()
        await asyncio.sleep(3)
        connection.data_received(body[5:7])
        await quiet()
        await asyncio.sleep(4)
        connection.data_received(body[7:])
        await asyncio.sleep(STORE_S + 1)
        assert transport.sent.startswith(b"HTTP/1.1 200 ")
        record = line(world)
        shown = bytes(transport.sent).partition(b"x-amz-request-id: ")[2].partition(b"\r\n")[0].decode()
        assert record == {
            "request_id": shown,
            "upstream_request_id": "THE-STORES-OWN",
            "client": CREDENTIALS.access_key,
            "address": "192.0.2.1",
            "method": "PUT",
            "operation": "PutObject",
            "bucket": "b",
            "object": "renders/7/a",
            "fence_key": "7",
            "token": 3,
            "floor": 3,
            "decision": "admitted",
            "reason": None,
            "message": None,
            "status": 200,
            "bytes_in": len(body),
            "bytes_out": len(transport.sent),
            "duration_s": 7 + STORE_S,
            "body_wait_s": 7.0,
            "event": "request",
            "level": "info",
            "timestamp": "2027-01-15T08:00:00.000000Z",
        }
        transport.abort()

    play(story, Slow(BUCKET))


@pytest.mark.parametrize(
    ("method", "target", "code"),
    [
        ("GET", "/b/absent", "NoSuchKey"),
        ("GET", "/nowhere?list-type=2", "NoSuchBucket"),
        ("GET", "/nowhere?list-type=2&prefix=.f", "NoSuchBucket"),
        ("HEAD", "/b/absent", None),
    ],
)
async def test_a_read_that_the_store_refuses(method: str, target: str, code: str | None) -> None:
    """The store's own error is the reason, as for a write; a HEAD's answer has no body to say it."""
    async with running() as rig:
        assert (await rig.ask(method, target)).status == 404
        assert (rig.record["decision"], rig.record["reason"], rig.record["status"]) == ("passed", code, 404)
        assert (await rig.ask("PUT", "/b/k", [], b"x")).status == 200
        assert (await rig.ask("GET", "/b/k")).status == 200
        assert rig.record["reason"] is None
