"""A job is done once: by one token, and nobody is given it afterwards, unless an operator has had it reopened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import inf

from tests.checker.attempts import Attempt, Index
from tests.checker.rules import Rules, Violation


def judge_completions(index: Index, rules: Rules) -> Iterator[Violation]:
    """Of each key, two completions by different tokens, and grants after a completion. A database that knows nothing of
    a completion (G0) may let the job be done again."""
    completed: dict[str, list[Attempt]] = defaultdict(list)
    given: dict[str, list[Attempt]] = defaultdict(list)
    reopened: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in index.attempts.values():
        key, operation, answer = attempt.call.key, attempt.call.operation, attempt.answer
        if operation == "reopen":
            reopened[key].append((attempt.call.at[0], inf if answer is None else answer.at[1]))
        elif attempt.fenced and attempt.applied and operation == "complete":
            completed[key].append(attempt)
        elif attempt.fenced and attempt.applied and operation == "grant":
            given[key].append(attempt)
    for key, done in completed.items():
        for first, other in product(done, [*done, *given[key]]):
            since, until = first.call.at[0], _answered_at(first)
            last = _answered_at(other)
            if other.call.operation == "complete":
                again = other.call.token == first.call.token
            else:
                again = other.call.at[0] <= until
            again = again or any(begun <= last and ended >= since for begun, ended in reopened[key])
            if not again and last >= since and rules.covers("G0", since, last):
                text = f"{other.named} succeeds, and token {first.call.token} has completed {key!r}"
                yield Violation("once", text, (first.number, first.answer_number, other.number, other.answer_number))


def _answered_at(attempt: Attempt) -> float:
    assert attempt.answer is not None
    return attempt.answer.at[1]
