"""R10 from head to answer: a token beyond its rule's limits is refused before it raises anything."""

from __future__ import annotations

import asyncio

from gateway.core.keys import Mode, Rule, TokenLimits, compile_rule
from gateway.stores.values import EventKind
from tests.server.rig import BUCKET, running, signed
from tests.server.test_s3_batch import delete

LIMITS = TokenLimits(first_token=100, jump=10)
RULES = [
    Rule(*compile_rule("renders/{job}/**", "{job}"), limits=LIMITS),
    Rule(*compile_rule("watched/{job}/**", "{job}"), mode=Mode.OBSERVE, limits=LIMITS),
]
HUGE = 9_000_000_000_000_000_000


async def test_a_token_beyond_the_limit_is_refused_and_raises_nothing() -> None:
    """400 TokenJump with argument, key, token and floor; nothing goes upstream, the right worker goes on."""
    async with running(rules=RULES) as rig:
        first = await rig.put("renders/j/o", b"x", 101)
        assert (first.status, first.code, first.xml["FencingReason"]) == (400, "InvalidArgument", "TokenJump")
        assert (await rig.put("renders/j/o", b"A", 100)).status == 200
        answer = await rig.put("renders/j/o", b"x", HUGE)
        assert (answer.status, answer.header("x-fencing-reason")) == (400, "TokenJump")
        told = answer.xml
        assert (told["ArgumentName"], told["ArgumentValue"]) == ("X-Fencing-Token", str(HUGE))
        assert (told["FencingKey"], told["FencingToken"], told["FencingFloor"]) == ("j", str(HUGE), "100")
        assert (told["FencingOutcome"], answer.header("x-fencing-floor")) == ("NotApplied", "100")
        assert answer.header("retry-after") is None
        assert len(rig.upstream.writes) == 1
        assert (await rig.put("renders/j/o", b"B", 110)).status == 200
        assert (await rig.fence("j")).floor == 110
        refused = await rig.events("j", EventKind.REFUSED)
        assert [(event.token, event.detail.split(":")[0]) for event in refused] == [
            (HUGE, "TokenJump"),
            (101, "TokenJump"),
        ]


async def test_it_is_refused_before_the_body() -> None:
    """R1: the client that waits for `100 Continue` is told without having sent a byte of it."""
    async with running(rules=RULES) as rig:
        wire = await rig.wire()
        said = [("x-fencing-token", str(HUGE)), ("expect", "100-continue"), ("content-length", "1000000")]
        await wire.send(signed("PUT", f"/{BUCKET}/renders/j/o", said, None, payload="UNSIGNED-PAYLOAD"))
        assert (await wire.answer()).xml["FencingReason"] == "TokenJump"


async def test_every_way_to_a_higher_floor_is_limited() -> None:
    """A delete, a batch, an upload and a copy raise no floor beyond the limit."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/o", b"A", 100)
        said = [("x-fencing-token", "111")]
        target = f"/{BUCKET}/renders/j/o"
        copy = ("x-amz-copy-source", f"{BUCKET}/renders/j/o")
        for answer in (
            await rig.ask("DELETE", target, said),
            await rig.ask("POST", f"{target}?uploads", said),
            await rig.ask("PUT", f"/{BUCKET}/renders/j/copy", [*said, copy]),
        ):
            assert answer.xml["FencingReason"] == "TokenJump"
        assert b"<Code>InvalidArgument</Code>" in (await delete(rig, "renders/j/o", token=111)).body
        assert len(rig.upstream.writes) == 1
        assert (await rig.fence("j")).floor == 100


async def test_two_at_once_jump_no_further_than_one() -> None:
    """Both are held to the floor that is durable, not to the one that is on its way."""
    async with running(rules=RULES) as rig:
        answers = await asyncio.gather(*(rig.put("renders/j/o", b"A", token) for token in (100, 105)))
        assert {answer.status for answer in answers} <= {200, 400, 412}
        assert (await rig.fence("j")).floor <= 105
        assert (await rig.put("renders/j/o", b"B", 116)).status == 400


async def test_observe_counts_what_the_limit_would_refuse() -> None:
    """R11: it passes, moves neither floor nor shadow floor, and is remembered."""
    async with running(rules=RULES) as rig:
        assert (await rig.put("watched/w/o", b"A", 50)).status == 200
        assert (await rig.put("watched/w/o", b"B", HUGE)).status == 200
        assert rig.record["reason"] == "TokenJump"
        assert (await rig.put("watched/w/o", b"C", 60)).status == 200
        fence = await rig.fence("w")
        assert (fence.floor, fence.shadow_floor) == (0, 60)
        assert [event.token for event in await rig.events("w", EventKind.WOULD_REFUSE)] == [HUGE]
