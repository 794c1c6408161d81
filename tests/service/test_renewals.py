"""Renewals (gateway/service/leases.py): what they tell, what they count, and a store that fails at them."""

from __future__ import annotations

import pytest

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, Token
from gateway.service.lease_errors import Lost
from gateway.stores.base import StoreUnavailable
from tests.service.lease_desk import J, desk, later, play
from tests.service.rig import refusal


def test_only_the_renewal_of_a_lease_that_had_run_out_is_told() -> None:
    """Any other writes nothing: a heartbeat costs no store a write."""

    async def main() -> None:
        d = await desk()
        told = []

        async def tell(key: FencingKey, token: Token) -> None:
            told.append((key, token))

        d.leases.on_renewed.append(tell)
        lease = await d.acquire()
        await d.leases.renew(J, lease.token)
        assert told == []
        await later(31)
        for _ in range(3):
            await d.leases.renew(J, lease.token)
        assert told == [("j", 1)]

    play(main())


def test_a_store_that_fails_at_a_renewal_says_try_again() -> None:
    """The lease is there still, and whoever asks again renews it."""

    async def main() -> None:
        d = await desk()
        faults = [StoreUnavailable("disk is full")]

        async def failing(*_: object) -> None:
            if faults:
                raise faults.pop()

        d.leases.on_renewed.append(failing)
        lease = await d.acquire()
        await later(31)
        assert (await refusal(d.leases.renew(J, lease.token))).reason is Reason.STORE_UNAVAILABLE
        assert (await d.leases.renew(J, lease.token)).expires_in_s == 30

    play(main())


def test_a_store_that_does_not_tell_an_earlier_grant_says_try_again() -> None:
    """Whether a call is a repeated one is not known then."""

    async def main() -> None:
        d = await desk()

        async def failing(*_: object) -> int:
            raise StoreUnavailable("disk is full")

        d.store.granted_before = failing  # type: ignore[method-assign]
        assert (await refusal(d.acquire(idempotency_key="once"))).reason is Reason.STORE_UNAVAILABLE

    play(main())


def test_calls_for_a_lost_lease_are_counted() -> None:
    """A renewal and a release alike."""

    async def main() -> None:
        d = await desk()
        lease = await d.acquire()
        await d.rig.fences.found(J, Token(9), "on an object")
        for call in (d.leases.renew(J, lease.token), d.leases.release(J, lease.token)):
            with pytest.raises(Lost):
                await call
        assert d.leases.counts["lost"] == 2

    play(main())
