"""What harms where a rule is missing, step by step: each tells, too, whether it has come as far as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.chaos.client import Answer
from tests.chaos.proxy import Harm
from tests.chaos.stage import Stage, done_within
from tests.chaos.torment import start

STAGING_BOUND_S = 5.0
"""By then a write that the gateway takes has reached the store, on any host."""


async def _held_up(stage: Stage, harm: Harm, value: str) -> asyncio.Future[Answer | None]:
    """A write of 33 on its way, once the harm has come to it. One that the gateway cannot send now is sent again."""
    stage.once.order(f"PUT /{stage.bucket}/{stage.name}", harm)
    harmed = asyncio.ensure_future(stage.once.done.wait())
    while True:
        write = asyncio.ensure_future(stage.put(33, value))
        await asyncio.wait([write, harmed], return_when=asyncio.FIRST_COMPLETED)
        if harmed.done():
            return write


async def _lands_late(stage: Stage, harm: Harm, between: Callable[[], Awaitable[object]] | None = None) -> None:
    """33 is sent and held up; somebody is told that 34 holds the job; then 33 lands, if anything still lets it."""
    await stage.check(33)
    await stage.look()
    await (await _held_up(stage, harm, "late"))
    if between is not None:
        await between()
    check = asyncio.ensure_future(stage.check(34))
    await done_within(check, stage.patience_s)
    await stage.look()
    stage.let_go.set()
    assert await stage.landed("late")
    answer = await check
    while answer == 503:  # a busy host may have made it wait longer than a hand-over may
        answer = await stage.check(34)
    assert answer == 200


async def cut_off(stage: Stage) -> None:
    """The connection of 33 breaks after its commit point."""
    await _lands_late(stage, Harm.LATE)


async def answered_500(stage: Stage) -> None:
    """33 is answered 500 by something between gateway and store."""
    await _lands_late(stage, Harm.FALSE_500)


async def killed(stage: Stage) -> None:
    """The gateway is killed after the commit point of 33, and started again."""
    await _lands_late(stage, Harm.LATE, stage.kill_and_start)


async def clock_stepped(stage: Stage) -> None:
    """The connection of 33 breaks, and the gateway's wall clock is set ten minutes ahead."""

    async def step() -> None:
        stage.step_clock(600)

    await _lands_late(stage, Harm.LATE, step)


async def overtaken(stage: Stage) -> None:
    """33 has sent all but its last byte when 34 writes; then it sends that, too. A write of 33 that the gateway cannot
    send on now is sent again."""
    staged = False

    async def overtake() -> None:
        nonlocal staged
        staging = asyncio.ensure_future(stage.once.done.wait())
        staged = await done_within(staging, STAGING_BOUND_S)
        if not staged:
            staging.cancel()
            return
        answer = await stage.put(34, "new")
        assert answer is not None
        assert answer.status == 200

    while not staged:
        stage.once.order(f"PUT /{stage.bucket}/{stage.name}", Harm.NONE)
        await stage.put(33, "old", size=200_000, pause=overtake)
    await stage.look()


async def forgotten(stage: Stage) -> None:
    """34 is acknowledged, the gateway is killed, and 33 writes after the next start."""
    assert await stage.check(34) == 200
    await stage.kill_and_start()
    await stage.put(33, "stale")
    await stage.look()


async def unanswered(stage: Stage) -> None:
    """The answer to a write that was applied is lost, and whoever looks for it is cut off."""
    await (await _held_up(stage, Harm.SWALLOW, "unknown"))
    assert await stage.landed("unknown")


async def database_lost(stage: Stage) -> None:
    """34 has written; the database is lost; 33 writes."""
    answer = await stage.put(34, "new")
    assert answer is not None
    assert answer.status == 200
    await asyncio.to_thread(stage.gateway.stop)
    stage.lose_database()
    await start(stage.gateway)
    await stage.put(33, "stale")
    await stage.look()


async def superseded(stage: Stage) -> None:
    """The gateway is stopped in the middle of its own commit of 33. The operator gives the bucket to a second gateway,
    through which 34 writes; then what the first has sent arrives, and it goes on."""
    await stage.put(32, "old")
    stale = await _held_up(stage, Harm.DELAY_REQUEST, "stale")
    stage.freeze()
    second = await stage.another()
    await stage.adopt(second)
    answer = await stage.put(34, "new", gateway=second)
    assert answer is not None
    assert answer.status == 200
    await stage.look()
    stage.let_go.set()
    await stage.landed("stale")
    stage.thaw()
    await stale
    await stage.look()
