"""What is known of deliveries (gateway/service/running.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.core.job import Job, JobState
from gateway.core.keys import Token
from gateway.service.running import Running
from tests.service.job_desk import J, at, desk, play


def delivered(token: int) -> Job:
    return Job(J, "q", JobState.RUNNING, token=token)


@pytest.mark.parametrize(("first", "then", "known"), [(1, 2, 2), (2, 2, 2), (2, 1, 2)])
def test_the_latest_delivery_is_known_in_whatever_order_they_are_told(first: int, then: int, known: int) -> None:
    """An earlier one that is told of later changes nothing."""
    running = Running()
    assert running.note(delivered(first))
    assert running.note(delivered(then)) is (then >= first)
    assert running.of(J, known) == delivered(known)
    assert running.of(J, 3 - known) is None
    assert len(running) == 1


def test_the_end_of_one_delivery_leaves_the_next_alone() -> None:
    """The end of the first may be told when the job has been delivered again."""
    running = Running()
    running.note(delivered(2))
    assert running.forget(J, 1) is None
    assert running.of(J, 2) == delivered(2)
    assert running.forget(J, 2) == delivered(2)
    assert running.forget(J, 2) is None
    assert len(running) == 0


@pytest.mark.parametrize("how", ["released", "failed", "completed", "given up", "run out"])
def test_what_has_ended_runs_no_more(how: str) -> None:
    """However it ended, it is not counted any longer."""

    async def main() -> None:
        d = await desk()
        completions = d.completions()
        await d.submit("j")
        await d.received()
        assert d.jobs.running == 1
        ends: dict[str, Callable[[], Awaitable[object]]] = {
            "released": lambda: d.jobs.release(J, Token(1)),
            "failed": lambda: d.jobs.fail(J, Token(1)),
            "completed": lambda: completions.complete(J, Token(1)),
            "given up": lambda: d.leases.release(J, Token(1)),
            "run out": lambda: at(31),
        }
        await ends[how]()
        assert d.jobs.running == 0

    play(main())
