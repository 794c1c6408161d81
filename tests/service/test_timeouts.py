"""R5: how long each operation's answer is awaited, and how long a doubt about it holds the next token back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.errors import FenceError
from gateway.core.keys import FencingKey, Token
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject
from gateway.service.batches import Batches
from gateway.service.values import Result
from gateway.service.waits import Timing
from gateway.upstream.base import UpstreamLost
from tests.service.rig import BUCKET, DEAF, HONEST, JOB, FaultyUpstream, Payload, Rig, refusal, rig
from tests.virtual_time import run

TIMING = Timing(
    settle_timeout_s=31,
    settle_timeout_assembly_s=307,
    handover_wait_s=1000,
    commit_timeout_s=61,
    commit_timeout_assembly_s=601,
)
ORDINARY, ASSEMBLY = (61, 31), (601, 307)


class Mute(FaultyUpstream):
    """Takes all, and answers no write once it has fallen silent."""

    fallen_silent = False

    async def send(self, request, body, timeout_s):
        if not self.fallen_silent:
            return await super().send(request, body, timeout_s)
        await asyncio.sleep(timeout_s)
        raise UpstreamLost("no answer")

    async def open(self, request, content_length):
        exchange = await super().open(request, content_length)
        if self.fallen_silent:

            async def response(timeout_s):
                await asyncio.sleep(timeout_s)
                raise UpstreamLost("no answer")

            async def write(data):
                pass

            exchange.response, exchange.write = response, write
        return exchange


async def put(r: Rig) -> Result:
    return await r.put(33, b"A")


async def put_streamed(r: Rig) -> Result:
    return await r.put(33, b"A" * 100)


async def delete(r: Rig) -> Result:
    return await r.delete(33)


async def tag(r: Rig) -> Result:
    return await r.writes.fenced(r.write("PUT", JOB, 33, Payload(b"<Tagging/>"), query="?tagging"))


async def copy_it(r: Rig) -> Result:
    return await r.copy(33, JOB, f"{BUCKET}/renders/j/other")


async def delete_in_a_batch(r: Rig) -> Result:
    wanted = [(BatchObject(JOB, None, (("Key", JOB),)), r.write("DELETE", JOB, 33, None))]
    head = parse_head("POST", f"/{BUCKET}?delete", Headers([]))
    return await Batches(r.writes).delete(head, BUCKET, wanted, quiet=False, on_refusal=lambda error, asked: None)


async def complete(r: Rig) -> Result:
    return await r.complete(r.upload_id, etag=r.etag)  # type: ignore[attr-defined]


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["honest", "deaf"])
@pytest.mark.parametrize(
    ("operation", "timeouts"),
    [
        (put, ORDINARY),
        (put_streamed, ORDINARY),
        (delete, ORDINARY),
        (tag, ORDINARY),
        (delete_in_a_batch, ORDINARY),
        (copy_it, ASSEMBLY),
        (complete, ASSEMBLY),
    ],
)
def test_timeouts(
    operation: Callable[[Rig], Awaitable[Result]], timeouts: tuple[float, float], capabilities: object
) -> None:
    """The answer is awaited for the operation's commit time-out, then the next token for its settle time-out; until
    when at the latest is told from the commit point on, and does not move."""

    async def main() -> None:
        commit_s, settle_s = timeouts
        upstream = Mute(BUCKET)
        r = await rig(capabilities=capabilities, timing=TIMING, upstream=upstream)  # type: ignore[arg-type]
        await r.put(33, b"there")
        await r.put(33, b"source", "renders/j/other")
        r.upload_id = await r.create(33)  # type: ignore[attr-defined]
        r.etag = (await r.part(r.upload_id, b"part")).header("etag")  # type: ignore[attr-defined]
        upstream.fallen_silent = True
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        writing = asyncio.create_task(refusal(operation(r)))
        await asyncio.sleep(1)
        (send,) = r.fences.unsettled(FencingKey("j"))
        assert (send.phase, send.settles_in_s) == ("committing", None)
        assert send.latest_in_s == pytest.approx(commit_s + settle_s - 1)
        error: FenceError = await writing
        assert loop.time() - begun_s == pytest.approx(commit_s, abs=0.1)
        assert error.outcome.value == "Unknown"
        (send,) = r.fences.unsettled(FencingKey("j"))
        assert (send.phase, send.settles_in_s) == ("in-doubt", pytest.approx(settle_s, abs=0.1))
        r.fences.unpin(await r.fences.admit(FencingKey("j"), Token(34), cause="check"))
        assert loop.time() - begun_s == pytest.approx(commit_s + settle_s, abs=0.1)

    run(main())
