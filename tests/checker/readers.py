"""Judges by what readers saw and writers were told, where nobody watched each effect.

That an object was not `u` at one moment and `u` at a later one proves that some write of `u` took effect in between;
who may have been it is known from the calls. Where every candidate would break a guarantee, one is broken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tests.checker.attempts import CHANGES_OBJECTS, Attempt, Index
from tests.checker.evidence import Moment, begins, ends
from tests.checker.history import Span
from tests.checker.rules import Rules, Violation


@dataclass(frozen=True, slots=True)
class Window:
    """At some moment in the span the object had the value. `number` of the line that tells it; 0: before all."""

    at: Span
    value: str | None
    number: int
    lines: tuple[int, ...]


def judge_readers(index: Index, rules: Rules) -> Iterator[Violation]:
    """G1 to G5 as far as windows prove them."""
    names = {a.call.object for a in index.attempts.values() if a.call.operation in CHANGES_OBJECTS}
    for name in sorted(names | index.seen.keys()):
        windows = _windows(index, name)
        for window in windows:
            before = windows.before(window)
            if before is not None and window.number:
                yield from _between(index, rules, name, before, window)


class _Windows(list[Window]):
    """All windows of an object, and for each the latest of another value that is certainly before it."""

    def ready(self) -> None:
        by_end = sorted(self, key=lambda w: ends(w.at, w.number))
        self._ends = [ends(w.at, w.number) for w in by_end]
        self._best: list[tuple[Window, Window | None]] = []
        best: Window | None = None
        second: Window | None = None  # of another value than the best
        for window in by_end:
            if best is None or begins(window.at, window.number) > begins(best.at, best.number):
                if best is not None and best.value != window.value:
                    second = best
                best = window
            elif window.value != best.value and (
                second is None or begins(window.at, window.number) > begins(second.at, second.number)
            ):
                second = window
            self._best.append((best, second))

    def before(self, window: Window) -> Window | None:
        """The one that begins last of those which end before `window` begins and had another value."""
        place = bisect_left(self._ends, begins(window.at, window.number))
        if not place:
            return None
        best, second = self._best[place - 1]
        return best if best.value != window.value else second


def _windows(index: Index, name: str) -> _Windows:
    """What readers saw; what successes say; what was there before all."""
    start = float("-inf")
    windows = _Windows([Window((start, start), index.setting.initial.get(name), 0, ())])
    windows += [Window(seen.at, seen.value, number, (number,)) for number, seen in index.seen.get(name, ())]
    windows += [Window(effect.at, effect.value, number, (number,)) for number, effect in index.effects.get(name, ())]
    for (written, value), attempts in index.writers.items():
        if written == name:
            windows += [_of_success(a, attempts, value) for a in attempts if a.applied]
    windows.ready()
    return windows


def _of_success(attempt: Attempt, attempts: list[Attempt], value: str | None) -> Window:
    """An answer 2xx says that the value was there; a repeated Complete may say so of its first attempt's."""
    assert attempt.answer is not None
    first = attempt.call.at[0]
    if attempt.call.operation == "CompleteMultipartUpload":
        first = min(a.call.at[0] for a in attempts)
    span = (first, attempt.answer.at[1])
    return Window(span, value, attempt.answer_number, (attempt.number, attempt.answer_number))


def _between(index: Index, rules: Rules, name: str, before: Window, window: Window) -> Iterator[Violation]:
    """Some write of the window's value took effect after `before` began and before the window ended."""
    since, last = begins(before.at, before.number), window.at[1]
    lines = (*before.lines, *window.lines)
    candidates = [a for a in index.who_wrote(name, window.value) if a.call.at[0] <= last]
    possible = [a for a in candidates if not rules.denied(a, last) and not _is_over(a, candidates, since)]
    if not possible:
        denied = [a for a in candidates if rules.denied(a, last)]
        what = "its client was told that it was not applied" if denied else "nobody can have written it"
        numbers = [n for a in denied for n in (a.number, a.answer_number)]
        text = f"{name} is {window.value or 'absent'} at line {window.number}, and {what}"
        yield Violation("G5", text, (*lines, *numbers))
        return
    faults = []
    for attempt in possible:
        fault = rules.against_effect(attempt, since, last) or _replaces(index, rules, name, attempt, before, last)
        if fault is None:
            return
        faults.append(fault)
    first = min(faults, key=lambda fault: fault.guarantee)
    yield Violation(first.guarantee, first.message, (*lines, *first.lines))


def _is_over(attempt: Attempt, candidates: list[Attempt], since: Moment) -> bool:
    """Whether all of its effect is before `since`. Of an upload's Completes one may be answered for another's sake."""
    if attempt.answer is None or not attempt.applied:
        return False
    if attempt.call.operation == "CompleteMultipartUpload" and len(candidates) > 1:
        return False
    return ends(attempt.answer.at, attempt.answer_number) < since


def _replaces(index: Index, rules: Rules, name: str, attempt: Attempt, before: Window, last: float) -> Violation | None:
    """It replaces a higher token's."""
    writers = index.writers.get((name, before.value), [])
    if before.value is None or not writers or index.any_value.get(name):
        return None
    returned = _may_return(index, name, last)
    return rules.against_replacing(attempt, writers[0], before.at[0], last, returned=returned)


def _may_return(index: Index, name: str, last: float) -> bool:
    """Whether the object may have become absent again, or any bytes of before."""
    known: set[str] = set()
    for (written, value), attempts in index.writers.items():
        if written != name:
            continue
        if value is None and any(not a.denied and a.call.at[0] <= last for a in attempts):
            return True
        if value is not None:
            told = index.bytes_of(value)
            if told in known:
                return True
            known.add(told)
    return False
