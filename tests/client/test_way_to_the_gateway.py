"""Leases, whatever happens between holder and gateway: lost answers, nobody there, other clocks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NoReturn

import pytest

from gateway.client import (
    GatewayClient,
    LeaseHeld,
    LeaseLost,
    Refused,
    Unreachable,
)
from gateway.clock import HolderClock
from tests.chaos.proxy import Harm
from tests.client.rig import BOUND_S, Served

TTL_S = 1.0
AFTERWARDS_S = 0.3


@pytest.mark.parametrize("harm", [Harm.CUT_BEFORE, Harm.CUT_DURING, Harm.SWALLOW, Harm.CUT_ANSWER])
async def test_a_lost_answer_costs_no_lease(gateway: Served, key: str, harm: Harm) -> None:
    """Whatever of acquiring, renewing and completing is cut off is sent again, and done once."""
    granted = gateway.count("granted")
    gateway.harms += [(b"POST /v1/leases/", harm), (b"/renew", harm), (b"/complete", harm)]
    async with GatewayClient(gateway.url) as client:
        async with client.lease(key, ttl_s=TTL_S) as lease:
            await asyncio.to_thread(gateway.until, lambda: len(gateway.harms) == 1)
            lease.check()
            await lease.complete()
        assert gateway.harms == []
        record = await client.job(key)
        assert record.completion is not None
        assert (gateway.count("granted") - granted, record.completion.token) == (1, lease.token)


async def test_a_gateway_that_cannot_be_reached_is_borne_until_the_deadline(gateway: Served, key: str) -> None:
    """No renewal gets through: the lease is lost when its own time is over, and neither before nor after."""
    async with GatewayClient(gateway.url) as client:

        async def work() -> None:
            async with client.lease(key, ttl_s=TTL_S) as lease:
                gateway.reachable = False
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(BOUND_S)
                late_s.append(HolderClock.monotonic() - lease.deadline)

        late_s: list[float] = []
        with pytest.raises(LeaseLost, match="could not be renewed in time: no gateway answers"):
            await work()
        gateway.reachable = True
        assert 0 <= late_s[0] < 1.5


async def test_what_is_done_is_recorded_also_after_the_deadline(gateway: Served, key: str) -> None:
    """The gateway is away for longer than the lease lasts. The work is done, and nobody has taken over: it is told for
    as long as the client has patience."""
    async with GatewayClient(gateway.url) as client:
        async with client.lease(key, ttl_s=TTL_S) as lease:
            gateway.reachable = False
            completing = asyncio.create_task(lease.complete())
            await asyncio.sleep(lease.left_s + AFTERWARDS_S)
            gateway.reachable = True
            await completing
        record = await client.job(key)
        assert record.completion is not None
        assert record.completion.token == lease.token


async def test_patience_ends(gateway: Served, key: str) -> None:
    """Nobody is there to be told that it is done: at the deadline, and without patience, that is said."""
    async with GatewayClient(gateway.url, patience_s=0) as client:

        async def work() -> None:
            async with client.lease(key, ttl_s=TTL_S) as lease:
                gateway.reachable = False
                deadlines.append(lease.deadline)
                await lease.complete()

        deadlines: list[float] = []
        with pytest.raises(Unreachable):
            await asyncio.wait_for(work(), BOUND_S)
        gateway.reachable = True
        assert HolderClock.monotonic() >= deadlines[0]


async def test_nobody_there_is_told_when_patience_is_over(gateway: Served, key: str) -> None:
    """A call that reaches no gateway says so, and where it looked, however long it would have waited in line."""
    gateway.reachable = False
    try:
        async with GatewayClient(gateway.url, patience_s=0) as client:
            with pytest.raises(Unreachable, match=gateway.url):
                await asyncio.wait_for(client.lease(key, wait_s=600).__aenter__(), BOUND_S)
            with pytest.raises(Unreachable, match=gateway.url):
                await asyncio.wait_for(client.receive("renders", wait_s=600), BOUND_S)
    finally:
        gateway.reachable = True


async def test_what_can_never_pass_is_refused_at_once(gateway: Served) -> None:
    """A bad key is the caller's fault: told, and not tried again."""
    async with GatewayClient(gateway.url) as client:
        with pytest.raises(Refused) as refused:
            await client.lease("a\nb").__aenter__()
        assert refused.value.reason == "KeyInvalid"


class _NoWallClock(HolderClock):
    @staticmethod
    def wall() -> NoReturn:  # type: ignore[override]
        raise AssertionError("a lease is counted by the wall clock")


async def test_steps_of_the_wall_clock_move_no_deadline(gateway: Served, key: str) -> None:
    """The gateway's clock is set forward and back by days, the holder's is never read: the lease is kept, and ends when
    it is not renewed."""
    async with GatewayClient(gateway.url, clock=_NoWallClock()) as client:
        async with client.lease(key, ttl_s=TTL_S) as lease:
            for ahead_s in (200_000.0, -200_000.0):
                gateway.rig.clock.ahead_s = ahead_s
                renewed = gateway.count("renewed")
                await asyncio.to_thread(gateway.until, lambda before=renewed: gateway.count("renewed") >= before + 3)
                lease.check()
                with pytest.raises(LeaseHeld):
                    await client.lease(key).__aenter__()
        gateway.rig.clock.ahead_s = 0.0
