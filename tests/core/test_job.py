"""The life of a job: its states, attempts and delays."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gateway.core.job import (
    MAX_QUEUE_BYTES,
    NOT_HEARD,
    Completion,
    Job,
    JobEvent,
    JobState,
    RetryPolicy,
    advance,
    completed,
    delivered,
    due,
    failed,
    lapsed,
    queue_fault,
    released,
    renewed,
    reopened,
)
from gateway.core.write import IllegalTransition

W, D, R, C, X = JobState.WAITING, JobState.DELAYED, JobState.RUNNING, JobState.COMPLETED, JobState.DEAD

# Written a second time here, so that a changed table is seen.
LEGAL = {
    JobEvent.DELIVER: {W: R},
    JobEvent.RENEW: {W: R, R: R, X: R},
    JobEvent.GIVE_BACK: {W: W, R: W, X: X},
    JobEvent.POSTPONE: {W: D, R: D, X: X},
    JobEvent.BURY: {W: X, R: X, X: X},
    JobEvent.DUE: {D: W},
    JobEvent.COMPLETE: {W: C, D: C, R: C, X: C},
    JobEvent.REOPEN: {C: W, X: W},
}
POLICY = RetryPolicy(max_attempts=3, backoff_s=10, backoff_max_s=35)
DONE = Completion(7, "worker", "1", (), 5.0)


def job(state: JobState = R, attempts: int = 1) -> Job:
    return Job("render-1", "renders", state, attempts=attempts, token=7, delivery="d")


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_advance(state: JobState, event: JobEvent) -> None:
    """Each pair of state and event leads where the page says, or is an error."""
    if state in LEGAL[event]:
        assert advance(state, event) is LEGAL[event][state]
    else:
        with pytest.raises(IllegalTransition, match=f"{event.name} in state {state.name}"):
            advance(state, event)


def test_a_delivery_counts_and_bears_its_token() -> None:
    """The attempt counts from the delivery on, and the job names the token and request of it."""
    assert delivered(job(W, 0), 8, "e") == Job("render-1", "renders", R, attempts=1, token=8, delivery="e")


@pytest.mark.parametrize("state", [s for s in JobState if s is not W])
def test_only_what_waits_is_delivered(state: JobState) -> None:
    """Neither a running, delayed, dead nor completed job can be delivered."""
    with pytest.raises(IllegalTransition):
        delivered(job(state), 8, "e")


def test_giving_back_counts_no_attempt() -> None:
    """A worker that shuts down does not use up the job's attempts."""
    assert (released(job()).state, released(job()).attempts) == (W, 0)


def test_giving_back_late_takes_back_nothing() -> None:
    """What had already run out has counted: a late release changes neither attempts nor state."""
    assert released(job(W, 2)) == job(W, 2)
    assert released(job(X, 3)) == job(X, 3)


def test_giving_back_after_a_reopening() -> None:
    """An operator has had the attempts begin anew, while the last worker could still go on: nothing is left to take
    back."""
    given = released(renewed(reopened(job(X, 3))))
    assert (given.state, given.attempts) == (W, 0)


def test_giving_back_for_later() -> None:
    """A release may name the earliest moment of the next delivery."""
    given = released(job(), 99.0)
    assert (given.state, given.available_at, given.attempts) == (D, 99.0, 0)


@pytest.mark.parametrize(("attempts", "state"), [(1, W), (2, W), (3, X), (4, X)])
def test_lapse(attempts: int, state: JobState) -> None:
    """A job whose worker is not heard of comes back at once, and after the last attempt is dead; it says why."""
    assert lapsed(job(R, attempts), POLICY) == replace(job(state, attempts), error=NOT_HEARD)


@pytest.mark.parametrize("state", [W, R, X])
def test_the_last_holder_may_go_on(state: JobState) -> None:
    """A holder whom nobody replaced has its job running again, and no attempt counts for it."""
    assert renewed(job(state, 2)) == job(R, 2)


@pytest.mark.parametrize(("attempts", "wait_s"), [(0, 10), (1, 10), (2, 20), (3, 35), (4, 35), (5000, 35)])
def test_back_off(attempts: int, wait_s: float) -> None:
    """The delay doubles with each failure, up to the bound, however many there were."""
    assert POLICY.delay_s(attempts) == wait_s


def test_failure_waits_longer_each_time() -> None:
    """A failed job is due after the policy's delay, with the worker's words on it."""
    assert failed(job(R, 2), POLICY, 100.0, "no disk", retry=True) == replace(
        job(D, 2), available_at=120.0, error="no disk"
    )


def test_failure_at_a_delay_of_the_worker() -> None:
    """The worker may name the delay; none at all is at once."""
    assert failed(job(), POLICY, 100.0, "", retry=True, delay_s=3).available_at == 103.0
    at_once = failed(job(), POLICY, 100.0, "", retry=True, delay_s=0)
    assert (at_once.state, at_once.available_at) == (W, 0.0)


@pytest.mark.parametrize(("attempts", "retry"), [(3, True), (1, False)])
def test_failure_for_good(attempts: int, retry: bool) -> None:
    """After the last attempt, or where no other would do better, the job is dead."""
    assert failed(job(R, attempts), POLICY, 1.0, "e", retry=retry) == replace(job(X, attempts), error="e")


def test_due() -> None:
    """A delay that is over leaves a job like any other that waits."""
    assert due(replace(job(D, 2), available_at=120.0)) == job(W, 2)


@pytest.mark.parametrize("state", [W, D, R, X])
def test_completion_from_every_open_state(state: JobState) -> None:
    """Whoever holds the fence completes the job, whatever the queue thinks of it."""
    assert completed(job(state), DONE) == replace(job(C), completion=DONE)


def test_completion_happens_once() -> None:
    """What is completed is not completed again."""
    with pytest.raises(IllegalTransition):
        completed(completed(job(), DONE), DONE)


def test_reopened() -> None:
    """A reopened job has all its attempts again and no completion; its last token stays on it."""
    assert reopened(completed(replace(job(R, 3), error="e"), DONE)) == replace(job(W, 0), delivery="")


@pytest.mark.parametrize("name", ["", "q" * (MAX_QUEUE_BYTES + 1), "a\nb", "\ud800", "é" * 65])
def test_bad_names_of_queues(name: str) -> None:
    """A queue has a name that fits a path and a log."""
    assert queue_fault(name) is not None


@pytest.mark.parametrize("name", ["renders", "a/b c", "é" * 64])
def test_good_names_of_queues(name: str) -> None:
    """Everything printable up to the bound."""
    assert queue_fault(name) is None
