"""G0 with the bucket's record: nothing fenced is sent by a database that the record does not name."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tests.checker.attempts import CHANGES_OBJECTS, Index
from tests.checker.evidence import Moment, begins
from tests.checker.history import Ruled
from tests.checker.rules import Violation


def judge_rulers(index: Index) -> Iterator[Violation]:
    """A fenced write passes its commit point only within a lapse of a moment at which the record named its sender's
    database, or there was none."""
    ruled = sorted((begins(line.at, n), line.by) for n, line in enumerate(index.lines, 1) if isinstance(line, Ruled))
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
