"""One timer for many moments (gateway/service/alarms.py)."""

from __future__ import annotations

import asyncio

from gateway.service.alarms import Alarms
from tests.virtual_time import VirtualClock, run


def test_each_alarm_rings_once_at_its_moment_in_their_order() -> None:
    """Also one that is set before those that are there, and one that is set while others ring."""

    async def main() -> None:
        clock, rung = VirtualClock(), []

        def ring(name: str) -> None:
            rung.append((name, round(clock.monotonic() - began)))
            if name == "b":
                alarms.set(began + 3, "set by b")

        alarms = Alarms(clock, ring)
        began = clock.monotonic()
        for at, name in ((5, "e"), (2, "b"), (4, "d"), (2, "c"), (1, "a")):
            alarms.set(began + at, name)
        await asyncio.sleep(10)
        assert rung == [("a", 1), ("b", 2), ("c", 2), ("set by b", 3), ("d", 4), ("e", 5)]

    run(main())


def test_none_rings_after_a_stop() -> None:
    """And one in the past rings at once, not never."""

    async def main() -> None:
        clock, rung = VirtualClock(), []
        alarms: Alarms[str] = Alarms(clock, rung.append)
        alarms.set(clock.monotonic() - 5, "past")
        await asyncio.sleep(1)
        alarms.set(clock.monotonic() + 1, "stopped")
        alarms.stop()
        await asyncio.sleep(5)
        assert rung == ["past"]

    run(main())
