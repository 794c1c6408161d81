"""Leases against a real gateway: kept, lost, ended, whatever happens between holder and gateway."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

import pytest

from gateway.client import (
    GatewayClient,
    JobCompleted,
    LeaseHeld,
    LeaseLost,
    Refused,
    StaleToken,
    SyncGatewayClient,
    Unreachable,
)
from gateway.clock import HolderClock
from gateway.core.lease import Caps
from gateway.service.leases import LeaseTerms
from tests.chaos.proxy import Harm
from tests.client.rig import BOUND_S, Served, served

TTL_S = 1.0
AFTERWARDS_S = 0.3


# --- asyncio


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


# --- what happens on the way


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


# --- without asyncio


def test_the_synchronous_face(gateway: Served, key: str) -> None:
    """The same: kept while the thread is blocked, given back, completed."""
    with SyncGatewayClient(gateway.url) as client:
        with client.lease(key, ttl_s=TTL_S) as first:
            time.sleep(2 * TTL_S)
            first.check()
        with client.lease(key) as second:
            assert second.token == first.token + 1
            second.complete("done")
        record = client.job(key)
        assert record.completion is not None
        assert record.completion.result == "done"


def test_a_lease_can_be_printed_at_any_time(gateway: Served, key: str) -> None:
    """Also before there is one, as a debugger does; never with its credentials."""
    with SyncGatewayClient(gateway.url) as client:
        lease = client.lease(key)
        assert repr(lease) == "<SyncLease, not entered>"
        with lease:
            assert repr(lease).startswith(f"<SyncLease {key!r}, token 1, ")
            assert lease.credentials is not None
            assert lease.credentials.secret_access_key not in repr((lease, lease.credentials, vars(lease)))


def test_a_lease_is_entered_once(gateway: Served, key: str) -> None:
    """Entered again, within or afterwards, it would be given back too early, or never: refused, and the first use is
    left alone. One that was not to be had may be tried again."""
    with SyncGatewayClient(gateway.url) as client:
        lease = client.lease(key)
        with lease:
            with pytest.raises(RuntimeError, match="once"):
                lease.__enter__()
            other = client.lease(key)
            with pytest.raises(LeaseHeld):
                other.__enter__()
        with pytest.raises(RuntimeError, match="once"):
            lease.__enter__()
        with other:
            assert other.token == lease.token + 1


async def test_two_tasks_cannot_share_a_lease(gateway: Served, key: str) -> None:
    """The second one to enter it is told, while the first still waits for its lease, and spoils nothing."""
    async with GatewayClient(gateway.url) as client:
        lease = client.lease(key)
        entered, refused = await asyncio.gather(lease.__aenter__(), lease.__aenter__(), return_exceptions=True)
        assert isinstance(refused, RuntimeError)
        assert entered is lease
        with pytest.raises(LeaseHeld):
            await client.lease(key).__aenter__()
        await lease.__aexit__(None, None, None)


def test_a_callback_that_ends_its_thread_ends_nothing(gateway: Served, key: str) -> None:
    """`sys.exit` in one is told like any failure: other leases are renewed, and calls are answered."""
    with SyncGatewayClient(gateway.url) as client, client.lease(f"{key}2", ttl_s=TTL_S) as other:
        with suppress(LeaseLost), client.lease(key, ttl_s=TTL_S) as lease:
            lease.on_lost(lambda _: sys.exit("lost"))
            gateway.take_over(key)
            assert lease.lost.wait(BOUND_S)
        time.sleep(2 * TTL_S)
        other.check()


def test_a_lost_lease_is_raised_at_the_next_check(gateway: Served, key: str) -> None:
    """Nothing interrupts a thread: the event is set, the callback called in another thread, and `check` raises."""
    told: list[str] = []
    with SyncGatewayClient(gateway.url) as client:

        def work() -> None:
            with client.lease(key, ttl_s=TTL_S) as lease:
                lease.on_lost(lambda _: told.append(threading.current_thread().name))
                gateway.take_over(key)
                assert lease.lost.wait(BOUND_S)
                lease.check()
                told.append("went on")

        with pytest.raises(LeaseLost, match="overtaken"):
            work()
        assert told == ["fencing-gateway"]


def test_a_thread_whose_client_is_closed(gateway: Served, key: str) -> None:
    """The end of its context raises that the lease is lost, and who waits in line is told why that ends."""
    client = SyncGatewayClient(gateway.url)
    raised: list[Exception] = []

    def wait_in_line() -> None:
        try:
            client.lease(key, wait_s=BOUND_S).__enter__()
        except Exception as error:
            raised.append(error)

    def work() -> None:
        thread = threading.Thread(target=wait_in_line)
        with client.lease(key):
            thread.start()
            gateway.until(lambda: gateway.rig.gateway.leases.waiting == 1)
            client.close()
            thread.join(BOUND_S)

    with pytest.raises(LeaseLost, match="closed"):
        work()
    assert [str(error) for error in raised] == ["this client is closed"]


def test_what_a_body_raises_after_it_has_closed_its_client(gateway: Served, key: str) -> None:
    """That there is nobody left to give the lease back to is no news beside it."""

    def work(client: SyncGatewayClient) -> None:
        with client.lease(key):
            client.close()
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        work(SyncGatewayClient(gateway.url))


def test_the_end_of_a_lost_lease_raises(gateway: Served, key: str) -> None:
    """A body that never looks is told at its end."""

    def work(client: SyncGatewayClient) -> None:
        with client.lease(key, ttl_s=TTL_S) as lease:
            gateway.take_over(key)
            assert lease.lost.wait(BOUND_S)

    with SyncGatewayClient(gateway.url) as client, pytest.raises(LeaseLost):
        work(client)
