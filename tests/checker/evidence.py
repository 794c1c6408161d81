"""What a history proves of tokens: up to which one is fenced, from which moment on.

A token counts here by its *rank*: twice the token, plus one where the token itself is sealed. A write is stale against
evidence of a higher rank.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

from tests.checker.history import DELETES_VERSION, Answer, Call, Effect, Fault, Floor, Line, Ruled, Span

Moment = tuple[float, int]
"""A time, and the number of the line that tells it, which decides between equal times."""
NOT_ADMITTED = frozenset({"AbortMultipartUpload", "grant", "raise", "reopen"})
"""What a stale token may do all the same: throw away what it has staged. And what makes tokens."""
SEALS = frozenset({"complete", "seal"})
_NOT_WAITED = frozenset({"seal"})
"""It fences without a hand-over that is waited for."""


def begins(at: Span, line: int) -> Moment:
    return at[0], line


def ends(at: Span, line: int) -> Moment:
    return at[1], line


def succeeded(answer: Answer) -> bool:
    return 200 <= answer.status < 300


def rank(token: int) -> int:
    return 2 * token


@dataclass(frozen=True, slots=True)
class Evidence:
    """From `since` on, everything below `rank` is fenced off. `begun`: when what proves it began."""

    since: Moment
    rank: int
    begun: float
    lines: tuple[int, ...]


class Ledger:
    """Evidence for each key, asked for the highest that was there before a moment."""

    def __init__(self) -> None:
        self._since: dict[str, list[Moment]] = defaultdict(list)
        self._highest: dict[str, list[Evidence]] = defaultdict(list)
        self._all: dict[str, list[tuple[Moment, int, Evidence]]] = defaultdict(list)

    def add(self, key: str, evidence: Evidence) -> None:
        insort(self._all[key], (evidence.since, len(self._all[key]), evidence))

    def close(self) -> None:
        """All has been added."""
        for key, entries in self._all.items():
            for since, _, evidence in entries:
                highest = self._highest[key]
                higher = not highest or evidence.rank > highest[-1].rank
                self._since[key].append(since)
                highest.append(evidence if higher else highest[-1])

    def before(self, key: str, moment: Moment) -> Evidence | None:
        """The highest evidence of before `moment`; the earliest of it."""
        place = bisect_left(self._since[key], moment) if key in self._since else 0
        return self._highest[key][place - 1] if place else None

    def each_before(self, key: str, moment: Moment) -> list[Evidence]:
        """All of it."""
        return [evidence for since, _, evidence in self._all.get(key, ()) if since < moment]


class Voids:
    """The moments at which guarantees ceased to cover what spans them."""

    def __init__(self, lines: list[Line]) -> None:
        self._faults = [line for line in lines if isinstance(line, Fault) and line.voids]

    def span(self, guarantee: str, first: float, last: float) -> bool:
        """Whether the guarantee does not cover what goes on from `first` to `last`."""
        return any(guarantee in f.voids and f.at[1] >= first and f.at[0] <= last for f in self._faults)

    def any(self, guarantee: str) -> bool:
        return any(guarantee in fault.voids for fault in self._faults)


@dataclass(slots=True)
class Ledgers:
    """`floors`: what an admission has to go by (G1). `acknowledged`: what no effect may come after (G2)."""

    floors: Ledger
    acknowledged: Ledger


def ledgers(lines: list[Line], calls: dict[str, tuple[int, Call]]) -> Ledgers:
    """All that answers and readers of floors prove, and what objects say where another database begins to rule."""
    made = Ledgers(Ledger(), Ledger())
    for number, line in enumerate(lines, 1):
        if isinstance(line, Floor):
            made.floors.add(line.key, Evidence(ends(line.at, number), rank(line.floor), line.at[0], (number,)))
        elif isinstance(line, Answer):
            _of_answer(made, number, line, *calls[line.id])
    _of_objects(made, lines, calls)
    made.floors.close()
    made.acknowledged.close()
    return made


def _of_objects(made: Ledgers, lines: list[Line], calls: dict[str, tuple[int, Call]]) -> None:
    """G0: a database that begins to rule has the floors that the objects tell, and nothing lower is on its way. One
    that is lost by then, whose record has landed late, tells nobody."""
    borne: dict[str, Call] = {}
    wrote: dict[tuple[str, str | None], Call] = {}
    lost: set[str] = set()
    ruler: str | None = None
    told = [(begins(line.at, n), line) for n, line in enumerate(lines, 1) if isinstance(line, Effect | Ruled | Fault)]
    for (at, number), line in sorted(told, key=lambda entry: entry[0]):
        if isinstance(line, Fault):
            lost.add(line.by)
            continue
        if isinstance(line, Effect):
            _, writer = calls[line.id]
            if writer.operation == DELETES_VERSION:
                writer = wrote.get((line.object, line.value), writer)
            wrote[line.object, line.value] = writer
            borne.pop(line.object, None)
            if line.value is not None and writer.fenced and writer.token:
                borne[line.object] = writer
            continue
        if line.by and line.by not in lost and ruler not in (None, line.by):
            for writer in borne.values():
                proof = Evidence(ends(line.at, number), rank(writer.token), at, (number,))
                made.floors.add(writer.key, proof)
                made.acknowledged.add(writer.key, proof)
        ruler = line.by or (None if line.by is None else ruler or "")


def _of_answer(made: Ledgers, number: int, answer: Answer, call_number: int, call: Call) -> None:
    if not call.fenced or not call.key:
        return
    since, proof = ends(answer.at, number), (call_number, number)
    if answer.floor >= 0:
        made.floors.add(call.key, Evidence(since, rank(answer.floor), call.at[0], proof))
    token = answer.token or call.token
    if not succeeded(answer) or call.operation == "AbortMultipartUpload" or not token:
        return
    sealed = rank(token) + (call.operation in SEALS)
    made.floors.add(call.key, Evidence(since, sealed, call.at[0], proof))
    if call.operation not in _NOT_WAITED:
        made.acknowledged.add(call.key, Evidence(since, sealed, call.at[0], proof))


def shown(evidence: Evidence) -> str:
    """For people."""
    return f"token {evidence.rank // 2}{' sealed' if evidence.rank % 2 else ''}"
