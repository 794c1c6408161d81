"""The bucket that `doctor` has for itself: gone afterwards, and told where it is not."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.cli import doctor
from gateway.cli.lent_bucket import LentBucket
from gateway.server.behind import Behind
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from gateway.upstream.scratch import CannotProbe, NotReached
from tests.gateway_process import command


class Lending(MemoryUpstream):
    """A store in memory that a test may stop in the middle of making or deleting a bucket, or have refuse it."""

    def __init__(self, refuses: str = "", loses: str = "") -> None:
        super().__init__()
        self.refuses, self.loses = refuses, loses
        self.begun, self.going_on = asyncio.Event(), asyncio.Event()
        self.going_on.set()

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if request.raw_key or request.raw_query:
            return await super().send(request, body, timeout_s)
        self.begun.set()
        await self.going_on.wait()
        if request.method == self.refuses:
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        answer = await super().send(request, body, timeout_s)
        if request.method == self.loses:
            raise UpstreamLost("reset")
        return answer

    send_in_signed_chunk = send


@pytest.mark.parametrize("refuses", ["", "DELETE"])
def test_a_bucket_that_stays_costs_no_report(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    """What has been found out is told all the same, and the bucket with it that is left behind."""

    async def store_beside(*_: object) -> Behind:
        return Behind(Lending(refuses), None, settled=False)  # type: ignore[arg-type]

    monkeypatch.setattr(doctor, "store_beside", store_beside)
    result = command("doctor", "--silence", "0.1", "--json")
    told = json.loads(result.stdout)
    assert "G1" in told["guarantees"]
    assert told["left_behind"] == ([told["bucket"]] if refuses else [])


@pytest.mark.parametrize("call", ["PUT", "DELETE"])
async def test_an_interruption_leaves_no_bucket(call: str) -> None:
    """What is under way then runs to its end, so that one knows what there is to be deleted."""
    upstream = Lending()

    async def doctors() -> None:
        async with LentBucket(upstream, "lent"):
            if call == "DELETE":
                upstream.begun.clear()
                upstream.going_on.clear()

    if call == "PUT":
        upstream.going_on.clear()
    examining = asyncio.create_task(doctors())
    await upstream.begun.wait()
    examining.cancel()
    await asyncio.sleep(0)
    upstream.going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await examining
    assert upstream.buckets == {}


async def test_a_bucket_whose_making_is_in_doubt_is_deleted() -> None:
    """It may be there."""
    upstream = Lending(loses="PUT")
    with pytest.raises(NotReached):
        async with LentBucket(upstream, "lent"):
            pass
    assert upstream.buckets == {}


async def test_where_no_bucket_can_be_made() -> None:
    """The store's answer is told, and nothing is deleted that is not ours."""
    upstream = Lending(refuses="PUT")
    upstream.buckets["lent"] = {}
    with pytest.raises(CannotProbe, match="answered 403"):
        async with LentBucket(upstream, "lent"):
            pass
    assert "lent" in upstream.buckets


async def test_a_bucket_whose_deletion_is_in_doubt_may_be_left() -> None:
    """So it is told."""
    async with LentBucket(Lending(loses="DELETE"), "lent") as lent:
        pass
    assert lent.left
