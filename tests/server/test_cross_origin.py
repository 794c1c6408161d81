"""Pages of another origin can read what the gateway answers alone, where the bucket allows them, and only there."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import md5

import pytest

from gateway.server import cross_origin
from gateway.server.listener import Limits
from gateway.upstream.base import UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.conftest import StoreServer
from tests.server.rig import BUCKET, HOST, Answer, Pairs, Rig, raw, real, rule, running

PAGE = "https://studio.example"
FROM_PAGE = ("origin", PAGE)
CORS = {"AllowedOrigins": [PAGE], "AllowedMethods": ["PUT", "DELETE"], "ExposeHeaders": ["X-Fencing-Floor"]}


@pytest.fixture
async def rig(store_server: StoreServer, bucket: str) -> AsyncIterator[Rig]:
    """Before a real store, whose bucket lets one origin put and delete; token 34 holds `job-1`."""
    store_server.client.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [CORS]})
    async with running(upstream=real(store_server), rules=[rule("renders/{job}/**", "{job}")]) as rig:
        assert (await put(rig, bucket, 34)).status == 200
        yield rig


async def put(rig: Rig, bucket: str, token: int, *more: tuple[str, str]) -> Answer:
    return await rig.ask("PUT", f"/{bucket}/renders/job-1/a", (("x-fencing-token", str(token)), *more), b"x")


def readable(answer: Answer) -> bool:
    """Whether a browser shows the page that answer, and the floor in it."""
    allowed = answer.header("access-control-allow-origin")
    assert allowed in (None, PAGE)
    if allowed is None:
        assert answer.header("access-control-expose-headers") is None
        return False
    assert answer.header("access-control-expose-headers") == "X-Fencing-Floor"
    assert answer.header("vary") == "Origin"
    return True


async def test_refusals_can_be_read(rig: Rig, bucket: str) -> None:
    """A stale write, a bad signature and an error of the gateway's own are answers to the page, no broken network."""
    stale = await put(rig, bucket, 33, FROM_PAGE)
    assert (stale.status, stale.header("x-fencing-floor")) == (412, "34")
    assert readable(stale)
    forged = await rig.ask("PUT", f"/{bucket}/a", [FROM_PAGE], b"x", now=0)
    assert forged.status == 403
    assert readable(forged)
    malformed = await rig.ask("PUT", f"/{bucket}/renders/job-1/a", [FROM_PAGE, ("x-fencing-token", "no")], b"x")
    assert malformed.status == 400
    assert readable(malformed)


async def test_results_can_be_read(rig: Rig, bucket: str) -> None:
    """So are what the store answers, and what the gateway answers for it: once, not doubled."""
    assert readable(await put(rig, bucket, 34, FROM_PAGE))
    for _ in range(2):  # the second finds nothing, and is answered without being sent
        deleted = await rig.ask("DELETE", f"/{bucket}/renders/job-1/a", [FROM_PAGE, ("x-fencing-token", "34")])
        assert deleted.status == 204
        assert readable(deleted)


async def test_a_preflight_of_a_presigned_url_passes(rig: Rig, bucket: str) -> None:
    """A browser asks the very URL that was presigned for another method: its signature is the coming request's."""
    presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=nobody&X-Amz-Signature=of+a+PUT"
    asked = raw(
        f"OPTIONS /{bucket}/renders/job-1/a?{presigned} HTTP/1.1",
        [("host", HOST), FROM_PAGE, ("access-control-request-method", "PUT")],
    )
    answer = await rig.say(asked)
    assert answer.status == 200
    assert answer.header("access-control-allow-methods") == "PUT, DELETE"
    assert readable(answer)
    assert "X-Amz-Signature" not in rig.upstream.requests[-1].raw_query


async def test_other_pages_read_nothing(rig: Rig, bucket: str) -> None:
    """An origin or a method that the bucket does not allow gets no field of CORS; without an origin nobody is asked."""
    assert not readable(await put(rig, bucket, 33, ("origin", "https://elsewhere.example")))
    batch = b"<Delete><Object><Key>renders/job-1/a</Key></Object></Delete>"
    digest = ("content-md5", b64encode(md5(batch).digest()).decode())
    refused = await rig.ask("POST", f"/{bucket}?delete", [FROM_PAGE, digest], batch)
    assert b"FencingTokenRequired" in refused.body
    assert not readable(refused)
    asked = len(rig.upstream.requests)
    assert not readable(await put(rig, bucket, 33))
    assert len(rig.upstream.requests) == asked


async def test_a_bucket_that_says_nothing_allows_no_page(store_server: StoreServer, bucket: str) -> None:
    """Without CORS rules of its own, a bucket of the embedded store is closed to pages, as on S3."""
    async with running(upstream=real(store_server)) as rig:
        for answer in (
            await rig.ask("PUT", f"/{bucket}/a", [FROM_PAGE], b"x"),
            await rig.ask("GET", f"/{bucket}/a", [FROM_PAGE]),
            await rig.ask("PUT", f"/{bucket}/a", [FROM_PAGE, ("x-fencing-token", "no")], b"x"),
        ):
            assert not readable(answer)


async def test_too_many_requests_and_a_drain_ask_no_store() -> None:
    """503 as quick as ever, with a page's Origin too: a flood of what is refused must not become one of the store."""
    async with running(limits=Limits(max_concurrent_requests=0)) as rig:
        overloaded = await rig.ask("PUT", f"/{BUCKET}/a", [FROM_PAGE], b"x")
        rig.gateway.handler.draining = True
        draining = await rig.ask("PUT", f"/{BUCKET}/a", [FROM_PAGE], b"x")
        assert [answer.xml["FencingReason"] for answer in (overloaded, draining)] == ["Overloaded", "Draining"]
        assert rig.upstream.requests == []


class Silent(MemoryUpstream):
    """A store that cannot say what it allows."""

    asked = 0
    reachable = True

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if request.method != "OPTIONS":
            return await super().read(request, body)
        self.asked += 1
        if not self.reachable:
            raise UpstreamNotReached("gone")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_silent_store_holds_up_no_refusal(monkeypatch: pytest.MonkeyPatch, reachable: bool) -> None:
    """Where the store does not answer in time, or is gone, the refusal goes out without its word."""
    monkeypatch.setattr(cross_origin, "TIMEOUT_S", 0.01)
    store = Silent(BUCKET)
    store.reachable = reachable
    async with running(upstream=store) as rig:
        headers: Pairs = [FROM_PAGE, ("x-fencing-token", "no")]
        answer = await rig.ask("PUT", f"/{BUCKET}/a", headers, b"x")
    assert answer.status == 400
    assert not readable(answer)
    assert store.asked == 1
