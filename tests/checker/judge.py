"""Judges a history by G0 to G5 of `docs/protocol.md`, and by R9 where objects move between keys.

What is unknown stays possible to the end: an alarm is raised only where no course of events explains what was seen. A
write whose outcome nobody knows may take effect at any moment after its call, unless that would break a guarantee; one
that was answered NotApplied never may.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.attempts import Index
from tests.checker.completions import judge_completions
from tests.checker.evidence import Moment, begins, succeeded
from tests.checker.history import ANY, Answer, Floor, Line
from tests.checker.onlooker import judge_effects
from tests.checker.readers import judge_readers
from tests.checker.rulers import judge_generations, judge_rulers
from tests.checker.rules import Rules, Violation


def judge(lines: list[Line]) -> list[Violation]:
    """All violations, one for each call and guarantee, in the order of the last lines that prove them. Raises
    `BadHistory`."""
    index = Index(lines)
    rules = Rules(index)
    found = [
        *_floors(index, rules),
        *rules.admissions(),
        *judge_rulers(index),
        *judge_generations(index),
        *judge_completions(index, rules),
        *judge_effects(index, rules),
    ]
    if not index.setting.onlooker:
        found += judge_readers(index, rules)
    told: dict[tuple[str, str], Violation] = {}
    for violation in sorted(found, key=lambda violation: max(violation.lines)):
        told.setdefault((violation.guarantee, violation.message), violation)
    return list(told.values())


def _floors(index: Index, rules: Rules) -> Iterator[Violation]:
    """G0: no floor is read, answered or granted below one that was known before."""
    granted: set[tuple[str, str, int]] = set()
    for number, line in enumerate(index.lines, 1):
        told = _told(index, number, line)
        if told is None:
            continue
        key, first, last, floor, grant = told
        if grant is not None and grant != ANY:
            if (key, grant, floor) in granted:
                continue  # asked again, answered the same
            granted.add((key, grant, floor))
        known = rules.known(rules.floors, "G0", key, first, first[0], last)
        if known is not None and (known.rank // 2 > floor or (grant is not None and known.rank // 2 == floor)):
            what = f"{floor} is {'the floor' if grant is None else 'granted'} of {key!r}"
            yield Violation("G0", f"{what} after {known.rank // 2} was known", (number, *known.lines))


def _told(index: Index, number: int, line: Line) -> tuple[str, Moment, float, int, str | None] | None:
    """Key, when it was asked for and until when, floor, and of a grant, which has to be higher than all before, what
    names its request."""
    if isinstance(line, Floor):
        return line.key, begins(line.at, number), line.at[1], line.floor, None
    if not isinstance(line, Answer):
        return None
    attempt = index.attempts[line.id]
    call, first = attempt.call, begins(attempt.call.at, attempt.number)
    if not attempt.fenced:
        return None
    if call.operation == "grant" and succeeded(line):
        first = min([first, *index.asked[call.key, call.value]]) if call.value != ANY else first
        return call.key, first, line.at[1], line.token, call.value or ANY
    return (call.key, first, line.at[1], line.floor, None) if line.floor >= 0 else None
