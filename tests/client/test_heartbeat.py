"""The heartbeat in virtual time: when it renews, what it bears, and when it gives a lease up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.client.errors import LeaseLost, Refused, StaleToken, Unreachable
from gateway.client.heartbeat import beat
from gateway.client.held import Held
from gateway.client.records import Grant
from tests.virtual_time import VirtualClock, run

TTL_S = 30.0
Answer = Callable[[], float]


def held_at(sent_at: float, clock: VirtualClock, ttl_s: float = TTL_S) -> Held:
    return Held(Grant("job", 1, "holder", sent_at, ttl_s), clock)


def full() -> float:
    """Renewed for its whole time."""
    return TTL_S


def failing(error: Exception) -> Answer:
    def answer() -> float:
        raise error

    return answer


class Gateway:
    """Answers renewals as it is told, and then as the last time; notes when they come."""

    def __init__(self, clock: VirtualClock, *answers: Answer, takes_s: float = 0.0) -> None:
        self.asked: list[float] = []
        self._clock = clock
        self._answers = list(answers)
        self._takes_s = takes_s

    async def renew(self, bound_s: float) -> float:
        self.asked.append(self._clock.monotonic())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        try:
            async with asyncio.timeout(bound_s):
                await asyncio.sleep(self._takes_s)
        except TimeoutError:
            raise Unreachable("no answer in time") from None
        return answer()


def lost_after(*answers: Answer, takes_s: float = 0.0) -> tuple[float, Held, list[float]]:
    """When, counted from before the request was sent, the lease is given up; and when it was renewed."""

    async def main() -> tuple[float, Held, list[float]]:
        clock = VirtualClock()
        began = clock.monotonic()
        held = held_at(began, clock)
        gateway = Gateway(clock, *answers, takes_s=takes_s)
        await beat(held, gateway.renew, clock)
        return clock.monotonic() - began, held, [at - began for at in gateway.asked]

    return run(main())


def test_it_renews_after_a_third() -> None:
    """Each renewal begins a new term, counted from before it was sent."""
    after_s, _, asked = lost_after(full, full, full, failing(LeaseLost("taken")), takes_s=1)
    assert asked == pytest.approx([10, 20, 30, 40])
    assert after_s == pytest.approx(41)


@pytest.mark.parametrize(
    "error", [LeaseLost("taken"), StaleToken("stale"), Refused("never", {"reason": "TokenNotIssued"})]
)
def test_a_lost_lease_is_lost_at_once(error: Exception) -> None:
    """Told so, nothing is waited for; the error says what the gateway said."""
    after_s, held, asked = lost_after(failing(error))
    assert (after_s, len(asked)) == (pytest.approx(10), 1)
    assert str(held.error) == str(error)


@pytest.mark.parametrize(
    "error", [Unreachable("down"), Unreachable("again", None, 5.0), Refused("no", {"reason": "limit"})]
)
def test_everything_else_is_borne_until_the_deadline(error: Exception) -> None:
    """Down, told to wait, or refused for another reason: the lease is held until its deadline, a margin before its
    time is over, and is asked for until then."""
    after_s, held, asked = lost_after(failing(error))
    assert after_s == pytest.approx(TTL_S - 0.02 * TTL_S)
    assert len(asked) > 1
    assert str(error) in str(held.error)


def test_no_pause_between_two_attempts_is_long() -> None:
    """Who ends a program before the deadline, as `run` does by its grace, has less time for a restart than the lease
    lasts."""
    _, _, asked = lost_after(failing(Unreachable("down")))
    assert max(later - earlier for earlier, later in pairwise(asked)) <= 2


def test_a_lease_whose_total_time_is_over_says_so() -> None:
    """The gateway renews for what is left, less and less, and there is nothing wrong with anybody."""

    async def main() -> None:
        clock = VirtualClock()
        latest = clock.monotonic() + 2 * TTL_S
        held = held_at(clock.monotonic(), clock)
        await beat(held, Gateway(clock, lambda: min(TTL_S, latest - clock.monotonic())).renew, clock)
        with pytest.raises(LeaseLost, match=r"as long as the gateway lets any \(\[lease\] max_total_s\)"):
            held.check()

    run(main())


def test_a_gateway_that_is_there_again_costs_nothing() -> None:
    """Failures before the deadline are forgotten with the first success."""
    down = failing(Unreachable("down"))
    after_s, _, asked = lost_after(*[down] * 5, full, failing(LeaseLost("taken")))
    assert after_s == pytest.approx(asked[5] + 10)


@pytest.mark.parametrize("retry_after_s", [None, 60.0])
@pytest.mark.parametrize("away_until_s", [15, 23, 27, 29])
def test_a_restart_that_ends_before_the_lease_does_costs_nothing(away_until_s: float, retry_after_s: float) -> None:
    """The less there is left, the sooner it is tried again, whatever was said of when."""

    async def main() -> None:
        clock = VirtualClock()
        began = clock.monotonic()
        held = held_at(began, clock)

        def restarting() -> float:
            if clock.monotonic() < began + away_until_s:
                raise Unreachable("nobody there", retry_after_s=retry_after_s)
            return TTL_S

        heartbeat = asyncio.create_task(beat(held, Gateway(clock, restarting).renew, clock))
        await asyncio.sleep(TTL_S)
        held.check()
        heartbeat.cancel()

    run(main())


def test_silence_ends_with_the_deadline() -> None:
    """A gateway that never answers: each attempt is given up in time, none outlasts the deadline."""
    after_s, held, asked = lost_after(full, takes_s=1000)
    assert after_s == pytest.approx(TTL_S - 0.02 * TTL_S)
    assert len(asked) >= 2
    assert "no answer in time" in str(held.error)


def test_an_answer_that_comes_too_late_renews_nothing() -> None:
    """What was frozen while its renewal was under way finds the answer, and the time that it gives over."""

    async def main() -> None:
        clock = VirtualClock()
        held = held_at(clock.monotonic(), clock)
        clock_at_wake = clock.monotonic() + 100

        async def renew(_: float) -> float:
            await asyncio.sleep(clock_at_wake - clock.monotonic())  # nothing else has run meanwhile
            return TTL_S

        await beat(held, renew, clock)
        assert clock.monotonic() == clock_at_wake
        assert held.lost.is_set()

    run(main())


def test_who_ends_the_lease_himself_is_not_disturbed() -> None:
    """While a completion is under way, `lost` may be its own doing: that call decides."""

    async def main() -> None:
        clock = VirtualClock()
        held = held_at(clock.monotonic(), clock)
        held.finishing = True
        gateway = Gateway(clock, failing(LeaseLost("completed")))
        task = asyncio.create_task(beat(held, gateway.renew, clock))
        await asyncio.sleep(2 * TTL_S)
        assert not held.lost.is_set()
        held.finishing = False
        await task
        assert held.lost.is_set()

    run(main())


def test_a_callback_that_fails_stops_no_heartbeat() -> None:
    """What a holder wants told of each renewal may fail: the next renewals come all the same."""

    async def main() -> None:
        clock = VirtualClock()
        held = held_at(clock.monotonic(), clock)
        told: list[float] = []

        def broken(deadline: float) -> None:
            told.append(deadline)
            raise SystemExit

        held.on_renewed = broken
        heartbeat = asyncio.create_task(beat(held, Gateway(clock, full).renew, clock))
        await asyncio.sleep(2 * TTL_S)
        assert not heartbeat.done()
        heartbeat.cancel()
        held.check()
        assert len(told) > 3

    run(main())


def test_a_check_needs_no_heartbeat() -> None:
    """In a process that has just been continued the clock alone says that the time is over; callbacks hear it once,
    and one that fails keeps none from being told."""

    async def main() -> None:
        clock = VirtualClock()
        held = held_at(clock.monotonic(), clock)
        told: list[str] = []

        def broken(_: LeaseLost) -> None:
            raise ZeroDivisionError

        held.on_lost(broken)
        held.on_lost(lambda error: told.append(str(error)))
        held.check()
        assert held.left_s == pytest.approx(0.98 * TTL_S)
        await asyncio.sleep(0.98 * TTL_S)
        assert held.left_s == 0
        for _ in range(2):
            with pytest.raises(LeaseLost, match="could not be renewed in time"):
                held.check()
        assert len(told) == 1

    run(main())
