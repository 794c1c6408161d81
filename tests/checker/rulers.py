"""The bucket's record: nothing fenced is sent by a database that it does not name (G0), and whoever takes over grants
higher tokens (R10)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import product

from tests.checker.attempts import CHANGES_OBJECTS, Attempt, Index
from tests.checker.evidence import Moment, begins
from tests.checker.history import Answer, Ruled
from tests.checker.rules import Violation


def judge_rulers(index: Index) -> Iterator[Violation]:
    """A fenced write passes its commit point only within a lapse of a moment at which the record named its sender's
    database, or there was none."""
    ruled = _ruled(index)
    changes: list[Moment] = [moment for moment, _ in ruled]
    for attempt in index.attempts.values():
        for moment, number, by in attempt.sent if attempt.fenced and attempt.call.operation in CHANGES_OBJECTS else ():
            if not by:
                continue
            last = bisect_left(changes, moment)
            first = bisect_left(changes, (moment[0] - index.setting.lapse_s, 0))
            named = [None if place < 0 else ruled[place][1] for place in range(first - 1, last)]
            if not any(name is None or name == by for name in named):
                owner = named[-1] or "nobody, for it is being rebuilt"
                text = f"{attempt.named} is sent by {by}, and the bucket is ruled by {owner}"
                yield Violation("G0", text, (attempt.number, changes[last - 1][1], number))


def judge_generations(index: Index) -> Iterator[Violation]:
    """R10: the database that rules the bucket grants tokens above all that were granted by one that ruled it before.
    What a new one grants before it rules does not count."""
    ruled = _ruled(index)
    changes: list[Moment] = [moment for moment, _ in ruled]
    grants: list[tuple[Attempt, Answer]] = []
    for attempt in index.attempts.values():
        if attempt.fenced and attempt.applied and attempt.call.operation == "grant" and attempt.answer is not None:
            place = bisect_left(changes, begins(attempt.call.at, attempt.number))
            if place and attempt.answer.by == ruled[place - 1][1]:
                grants.append((attempt, attempt.answer))
    began = {by: at[0] for at, by in reversed(ruled) if by}
    lost = [at[0] for at, by in ruled if by is None]
    for (earlier, had), (later, has) in product(grants, grants):
        before = earlier.call.key == later.call.key and had.by != has.by and had.at[1] < later.call.at[0]
        if any(at <= began[had.by] or earlier.call.at[0] <= at <= later.call.at[0] for at in lost):
            continue  # the record was lost: nobody knew any more who had ruled, or that somebody had
        if before and has.token <= had.token:
            text = f"{has.token} is granted of {later.call.key!r} by {has.by} after {had.token} by {had.by}"
            yield Violation("R10", text, (earlier.answer_number, later.number, later.answer_number))


def _ruled(index: Index) -> list[tuple[Moment, str | None]]:
    told = [(begins(line.at, n), line.by) for n, line in enumerate(index.lines, 1) if isinstance(line, Ruled)]
    return sorted(told, key=lambda entry: entry[0])
