"""Leases without asyncio."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress

import pytest

from gateway.client import (
    GatewayClient,
    LeaseHeld,
    LeaseLost,
    SyncGatewayClient,
)
from tests.client.rig import BOUND_S, Served

TTL_S = 1.0


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
