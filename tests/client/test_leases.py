"""Leases against a real gateway, under asyncio: kept, lost, ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from gateway.client import (
    GatewayClient,
    JobCompleted,
    LeaseHeld,
    LeaseLost,
    StaleToken,
)
from gateway.core.lease import Caps
from gateway.service.leases import LeaseTerms
from tests.chaos.proxy import Harm
from tests.client.rig import BOUND_S, Served, served

TTL_S = 1.0


async def test_a_lease_is_kept_for_as_long_as_its_context(gateway: Served, key: str) -> None:
    """Renewed past its time, and given back at the end: the next holder has a higher token at once."""
    async with GatewayClient(gateway.url) as client:
        renewed = gateway.count("renewed")
        async with client.lease(key, ttl_s=TTL_S) as lease:
            assert lease.key == key
            await asyncio.to_thread(gateway.until, lambda: gateway.count("renewed") >= renewed + 4)
            lease.check()
            assert 0 < lease.left_s < TTL_S
        async with client.lease(key) as second:
            assert second.token == lease.token + 1


async def test_a_blocked_event_loop_does_not_starve_the_heartbeat(gateway: Served, key: str) -> None:
    """A loop that does nothing for two terms still holds its lease."""
    async with GatewayClient(gateway.url) as client, client.lease(key, ttl_s=TTL_S) as lease:
        time.sleep(2 * TTL_S)  # the loop's own thread, on purpose
        lease.check()
        assert lease.left_s > 0


async def test_who_holds_it_is_told(gateway: Served, key: str) -> None:
    """A lease that another holds is refused with who it is and how long he has."""
    async with GatewayClient(gateway.url, holder="first") as client, client.lease(key):
        with pytest.raises(LeaseHeld) as held:
            await client.lease(key).__aenter__()
        assert held.value.holder == "first"
        assert held.value.expires_in_s is not None
        assert 0 < held.value.expires_in_s <= 30


async def test_waiting_in_line_for_longer_than_the_lease_lasts(gateway: Served, key: str) -> None:
    """The time in line is no part of the lease: it begins with most of its time left."""
    async with GatewayClient(gateway.url) as client:
        async with client.lease(key, ttl_s=TTL_S) as first:
            waiting = client.lease(key, ttl_s=TTL_S, wait_s=BOUND_S)
            second = asyncio.create_task(waiting.__aenter__())
            renewed = gateway.count("renewed")
            await asyncio.to_thread(gateway.until, lambda: gateway.count("renewed") >= renewed + 4)
            assert not second.done()
        lease = await second
        assert (lease.token, lease.left_s > TTL_S / 3) == (first.token + 1, True)
        await lease.__aexit__(None, None, None)


async def test_waiting_in_line_where_nothing_is_renewed(key: str) -> None:
    """The lease is handed out with what there is of its time, and not left to run out with nobody under it."""
    with served(leases=LeaseTerms(Caps(max_renewals=0))) as gateway:
        async with GatewayClient(gateway.url) as client:
            engine = client.engine
            first = await engine.background.run(engine.calls.acquire(key, "first", TTL_S, 0.0, "once"))
            async with client.lease(key, ttl_s=TTL_S, wait_s=BOUND_S) as lease:
                assert (lease.token, lease.left_s > TTL_S / 3) == (first.token + 1, True)


async def test_a_lost_lease_cancels_what_it_guards(gateway: Served, key: str) -> None:
    """Taken over, the body is cancelled where it waits, and the context raises `LeaseLost`; the task goes on."""
    told: list[LeaseLost] = []
    async with GatewayClient(gateway.url) as client:
        lease = client.lease(key, ttl_s=TTL_S)

        async def work() -> None:
            async with lease:
                lease.on_lost(told.append)
                await asyncio.to_thread(gateway.take_over, key)
                await asyncio.sleep(BOUND_S)

        with pytest.raises(LeaseLost, match="overtaken"):
            await work()
        assert lease.lost.is_set()
        assert [error.reason for error in told] == ["lost"]
        lease.on_lost(told.append)
        assert len(told) == 2, "whoever asks later is told at once"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_body_that_swallows_its_cancellation_is_told_all_the_same(gateway: Served, key: str) -> None:
    """Nothing leaves the context of a lost lease as if all were well."""
    async with GatewayClient(gateway.url) as client:

        async def work() -> None:
            async with client.lease(key, ttl_s=TTL_S):
                await asyncio.to_thread(gateway.take_over, key)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(BOUND_S)

        with pytest.raises(LeaseLost):
            await work()


async def test_an_outer_cancellation_stays_one(gateway: Served, key: str) -> None:
    """A task that others cancel ends cancelled, and its lease is given back."""
    async with GatewayClient(gateway.url) as client:
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lease(key):
                entered.set()
                await asyncio.sleep(BOUND_S)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with client.lease(key):
            pass


async def test_a_caller_who_goes_away_in_line_leaves_nothing_behind(gateway: Served, key: str) -> None:
    """Cancelled while it waits, a call holds up nobody: the next in line is given the lease."""
    async with GatewayClient(gateway.url) as client:
        async with client.lease(key):
            gone = asyncio.create_task(client.lease(key, wait_s=BOUND_S).__aenter__())
            await asyncio.to_thread(gateway.until, lambda: gateway.rig.gateway.leases.waiting == 1)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        async with client.lease(key, wait_s=BOUND_S):
            pass


async def test_a_grant_that_nobody_waits_for_any_more(gateway: Served, key: str) -> None:
    """Cancelled when the lease has been granted and the answer is still on its way: it is given back, also where the
    client is closed at once."""
    gateway.harms.append((b"POST /v1/leases/", Harm.SILENCE))
    granted = gateway.count("granted")
    async with GatewayClient(gateway.url) as client:
        entering = asyncio.create_task(client.lease(key).__aenter__())
        await asyncio.to_thread(gateway.until, lambda: gateway.count("granted") > granted)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
    async with GatewayClient(gateway.url) as client, client.lease(key):
        pass


async def test_cancelled_again_while_it_is_given_back(gateway: Served, key: str) -> None:
    """Some libraries cancel at every `await` until a task has ended: the lease is given back all the same, though that
    takes a new connection."""
    gateway.harms.append((b"/renew", Harm.CUT_BEFORE))
    async with GatewayClient(gateway.url) as client:

        async def work() -> None:
            async with client.lease(key, ttl_s=3 * TTL_S):
                await asyncio.sleep(BOUND_S)

        task = asyncio.create_task(work())
        await asyncio.to_thread(gateway.until, lambda: not gateway.harms)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
    async with GatewayClient(gateway.url) as client, client.lease(key):
        pass


async def test_a_client_that_is_closed_keeps_no_lease(gateway: Served, key: str) -> None:
    """Whoever still works under one is told at once that it is lost, since nobody renews it: his task is cancelled."""
    client = GatewayClient(gateway.url)
    entered = asyncio.Event()

    async def work() -> None:
        async with client.lease(key, ttl_s=TTL_S):
            entered.set()
            await asyncio.sleep(BOUND_S)

    task = asyncio.create_task(work())
    await entered.wait()
    await client.close()
    with pytest.raises(LeaseLost, match="closed"):
        await task


async def test_a_client_that_is_closed_leaves_nobody_in_line(gateway: Served, key: str) -> None:
    """Who waits in a call is told why it ends, and his task is not cancelled."""
    async with GatewayClient(gateway.url) as other, other.lease(key):
        client = GatewayClient(gateway.url)
        waiting = asyncio.create_task(client.lease(key, wait_s=BOUND_S).__aenter__())
        await asyncio.to_thread(gateway.until, lambda: gateway.rig.gateway.leases.waiting == 1)
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting


async def test_what_the_body_raises_comes_out_and_gives_the_lease_back(gateway: Served, key: str) -> None:
    """An error is nobody's loss of the lease."""
    async with GatewayClient(gateway.url) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.lease(key):
                _ = 1 // 0
        async with client.lease(key):
            pass


async def test_a_completed_job_is_given_to_nobody(gateway: Served, key: str) -> None:
    """The completion is recorded with result and token, ends the lease, and is what the next one is told."""
    async with GatewayClient(gateway.url) as client:
        async with client.lease(key) as lease:
            await lease.complete({"frames": 240})
        with pytest.raises(JobCompleted) as completed:
            await client.lease(key).__aenter__()
        assert completed.value.token == lease.token
        record = await client.job(key)
        assert record.completion is not None
        assert (record.completion.result, record.completion.token) == ({"frames": 240}, lease.token)


async def test_a_completion_that_comes_too_late(gateway: Served, key: str) -> None:
    """Whoever has been overtaken completes nothing."""
    async with GatewayClient(gateway.url) as client:

        async def work() -> None:
            async with client.lease(key) as lease:
                await asyncio.to_thread(gateway.take_over, key)
                await lease.complete()

        with pytest.raises(StaleToken):
            await work()


async def test_a_check_for_an_effect_elsewhere(gateway: Served, key: str) -> None:
    """The holder's token passes, a lower one does not."""
    async with GatewayClient(gateway.url) as client, client.lease(key) as lease:
        await client.check(key, lease.token)
        token = await asyncio.to_thread(gateway.take_over, key)
        with pytest.raises(StaleToken):
            await client.check(key, token - 1)
