"""What is known of deliveries (gateway/service/running.py)."""

from __future__ import annotations

import pytest

from gateway.core.job import Job, JobState
from gateway.service.running import Running
from tests.service.job_desk import J


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
