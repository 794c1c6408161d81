"""What docs/security.md claims of each side's attackers, where no other test holds it to it already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.s3.operations import OPERATIONS
from gateway.s3.sigv4 import Credentials
from gateway.server.clients import Client
from gateway.server.control.access import ApiToken
from gateway.upstream.memory import MemoryUpstream, StoredObject
from tests.s3.model import model, request_of
from tests.server.rig import BUCKET, CREDENTIALS, HOST, Rig, raw, rule, running

OTHER = Credentials("AKIDOTHER", "another-secret")
RULES = (rule("renders/{job}/**", "{job}"),)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=RULES) as rig:
        yield rig


# --- an anonymous client


@pytest.mark.parametrize("name", sorted({row.name for row in OPERATIONS} & set(model().operation_names)))
async def test_nothing_unsigned_reaches_the_store(rig: Rig, name: str) -> None:
    """No operation without a signature: 403, or 501 for what is no operation here, and the store is asked nothing."""
    head = request_of(name, everything=True)
    target = head.raw_path + ("?" + head.raw_query if head.raw_query else "")
    fields = [("host", HOST), *[pair for pair in head.headers.pairs if pair[0] != "host"]]
    fields = [pair for pair in fields if pair[0] not in ("content-length", "transfer-encoding", "expect")]
    answer = await rig.say(raw(f"{head.method} {target} HTTP/1.1", fields), head.method)
    assert answer.status in (400, 403, 501)
    assert rig.upstream.requests == []


async def test_a_strangers_page_costs_the_store_one_preflight_at_most(rig: Rig) -> None:
    """An unsigned request that names an origin has the store asked whether its pages may read the refusal; no more."""
    answer = await rig.say(raw("PUT /b/k HTTP/1.1", [("host", HOST), ("origin", "http://x"), ("content-length", "0")]))
    assert answer.status == 403
    assert [request.method for request in rig.upstream.requests] == ["OPTIONS"]


# --- a client with narrow rights


async def test_who_may_use_one_bucket_sees_no_others_names() -> None:
    """A list of all buckets is for clients that may use all of them."""
    narrow, wide = Client(CREDENTIALS, buckets=(BUCKET,)), Client(OTHER)
    async with running(clients=[narrow, wide]) as rig:
        refused = await rig.ask("GET", "/")
        assert (refused.status, refused.code) == (403, "AccessDenied")
        assert rig.upstream.requests == []
        assert b"other" in (await rig.ask("GET", "/", credentials=OTHER)).body


async def test_a_refused_client_learns_nothing_of_what_is_there() -> None:
    """The same answer whether bucket, object, or floor of another exist."""
    narrow = Client(CREDENTIALS, buckets=(BUCKET,), keys=("mine",))
    async with running(clients=[narrow, Client(OTHER)], rules=RULES) as rig:
        for key in ("renders/7/out",):
            put = await rig.ask("PUT", f"/b/{key}", [("x-fencing-token", "34")], b"x", credentials=OTHER)
            assert put.status == 200

        async def told(method: str, target: str) -> dict[str, str]:
            answer = await rig.ask(method, target, [("x-fencing-token", "33")] if method == "PUT" else (), b"")
            ids = {"RequestId", "Resource", "HostId"}
            assert answer.header("x-fencing-floor") is None
            return {n: v.replace("7", "8") for n, v in answer.xml.items() if n not in ids}

        one, two = await told("GET", "/other/k"), await told("GET", "/absent/k")
        assert one == two | {"Message": two["Message"].replace("absent", "other")}
        assert await told("PUT", "/b/renders/7/out") == await told("PUT", "/b/renders/8/out")


# --- a worker, and who knows another's keys


async def test_a_token_is_no_secret(rig: Rig) -> None:
    """The fence keeps out who is late, not who lies: whoever may write under a key may name a higher number."""
    assert (await rig.put("renders/7/out", b"rightful", 34)).status == 200
    assert (await rig.put("renders/7/out", b"liar", 35)).status == 200


async def test_a_fence_key_is_no_secret_and_opens_nothing() -> None:
    """Who knows the key and token of another job, and has credentials of his own, is refused by his own limits."""
    tenant = Client(CREDENTIALS, keys=("mine-*",))
    async with running(clients=[tenant, Client(OTHER)]) as rig:
        theirs = [("x-fencing-token", "9"), ("x-fencing-key", "theirs-1")]
        assert (await rig.ask("PUT", "/b/theirs", theirs, b"x", credentials=OTHER)).status == 200
        for fields in (
            theirs,
            [("x-fencing-token", "10"), ("x-fencing-key", "mine-1")],
            [("x-fencing-token", "10")],
            [],
        ):
            answer = await rig.ask("PUT", "/b/theirs", fields, b"stolen")
            assert answer.status in (400, 403), answer.body
        stored = rig.stored("theirs")
        assert stored is not None
        assert stored.data == b"x"
        assert (await rig.fence("theirs-1")).floor == 9


# --- the store's side


async def test_who_writes_past_the_gateway_can_raise_a_floor_and_lower_none() -> None:
    """An object that bears a higher token of its key is believed: a direct writer can shut a job out, not one in."""
    upstream = MemoryUpstream(BUCKET)
    async with running(upstream=upstream, rules=RULES) as rig:
        assert (await rig.put("renders/7/out", b"rightful", 34)).status == 200
        stored = rig.stored("renders/7/out")
        assert stored is not None
        for planted, status in (("1", 200), ("99", 412)):
            metadata = tuple((n, planted if n == "x-amz-meta-fencing-token" else v) for n, v in stored.metadata)
            upstream.buckets[BUCKET]["renders/7/out"] = StoredObject(b"planted", '"p"', metadata, 1)
            assert (await rig.put("renders/7/out", b"again", 34)).status == status
            assert (await rig.put("renders/7/out", b"stale", 33)).status == 412


# --- the control API


class Page:
    """What a browser sends for a page."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.capitalize(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("page", "status"),
    [
        (Page(), 200),
        (Page(host="localhost:8081"), 200),
        (Page(host="[::1]:8081"), 200),
        (Page(host="127.0.0.2:8081", origin="http://127.0.0.2:8081"), 200),
        (Page(origin="http://evil.example"), 403),
        (Page(origin="null"), 403),
        (Page(origin="http://localhost.evil.example"), 403),
        (Page(host="evil.example:8081"), 403),
        (Page(host="evil.example:8081", origin="http://evil.example:8081"), 403),
        (Page(host="127.0.0.1.evil.example"), 403),
        (Page(host="[bad"), 403),
    ],
)
async def test_a_page_from_elsewhere_cannot_use_an_open_control_listener(rig: Rig, page: Page, status: int) -> None:
    """A visitor's browser calls localhost for any page; without API tokens only this machine's own calls count."""
    assert await raise_floor(rig, page.headers) == status
    assert (await rig.fence("job")).floor == (5 if status == 200 else 0)


async def test_with_api_tokens_the_bearer_alone_counts() -> None:
    """A proxy in front may use any name."""
    async with running(api_tokens=(ApiToken("operators", operator=True),)) as rig:
        assert await raise_floor(rig, {"Host": "gateway.example"}) == 401
        assert await raise_floor(rig, {"Host": "gateway.example", "Authorization": "Bearer operators"}) == 200


async def raise_floor(rig: Rig, headers: dict[str, str]) -> int:
    """Raise a floor, as a page can: without a header that a browser would ask about first."""
    body: Any = b'{"token": 5, "reason": "because"}'
    url = f"http://127.0.0.1:{rig.gateway.control_port}/v1/fences/job/raise"
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
        return answer.status
