"""What a history proves against one write: that it may not have been admitted, sent, or have taken effect then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.checker.attempts import CHANGES_OBJECTS, Attempt, Index
from tests.checker.evidence import NOT_ADMITTED, SEALS, Evidence, Ledger, Moment, Voids, ledgers, shown
from tests.checker.history import Fault

DATABASE_LOST = "database-lost"
"""The kind of a fault after which what replaces a higher token's object breaks G4."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee is broken. `lines`: the numbers of those that prove it."""

    guarantee: str
    message: str
    lines: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.message}"


class Rules:
    """The rules over one history."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._voids = Voids(index.lines)
        made = ledgers(index.lines, {name: (a.number, a.call) for name, a in index.attempts.items()})
        self.floors, self._acknowledged = made.floors, made.acknowledged
        self._lost = [line.at for line in index.lines if isinstance(line, Fault) and line.kind == DATABASE_LOST]

    def known(
        self, ledger: Ledger, guarantee: str, key: str, moment: Moment, first: float, last: float
    ) -> Evidence | None:
        """The highest evidence of before `moment`, as far as the guarantee covers what spans `first` to `last`."""
        if not self._voids.any(guarantee):
            return ledger.before(key, moment)
        covered = [
            evidence
            for evidence in ledger.each_before(key, moment)
            if not self._voids.span(guarantee, min(evidence.begun, first), last)
        ]
        return max(covered, key=lambda evidence: evidence.rank, default=None)

    def covers(self, guarantee: str, first: float, last: float) -> bool:
        """Whether the guarantee covers what spans `first` to `last`."""
        return not self._voids.span(guarantee, first, last)

    def stale_when_begun(self, attempt: Attempt, last: float) -> Evidence | None:
        """What proves that the floor was higher before the call began; `last`: up to when G1 has to cover it."""
        call = attempt.call
        if not attempt.fenced or call.operation in NOT_ADMITTED:
            return None
        known = self.known(self.floors, "G1", call.key, self._index.begun(attempt), call.at[0], last)
        sealing = call.operation in SEALS  # said again of a token that is sealed, it is true
        return known if known is not None and known.rank > attempt.rank + sealing else None

    def admissions(self) -> Iterator[Violation]:
        """G1: what was stale when it began is neither sent nor answered 2xx; what is overtaken is not sent."""
        for attempt in self._index.attempts.values():
            if attempt.answer is not None and attempt.applied:
                known = self.stale_when_begun(attempt, attempt.answer.at[1])
                if known is not None:
                    text = f"{attempt.named} is answered 2xx; {shown(known)} was known before it began"
                    yield Violation("G1", text, (attempt.number, attempt.answer_number, *known.lines))
            call = attempt.call
            for moment, number, _ in attempt.sent if attempt.fenced and call.operation in CHANGES_OBJECTS else ():
                known = self.known(self.floors, "G1", call.key, moment, call.at[0], moment[0])
                if known is not None and known.rank > attempt.rank:
                    text = f"{attempt.named} passes its commit point; {shown(known)} was known before"
                    yield Violation("G1", text, (attempt.number, number, *known.lines))

    def denied(self, attempt: Attempt, last: float) -> bool:
        """Whether the client was told that nothing of it is applied; `last`: up to when G5 has to cover it."""
        return attempt.denied and self.covers("G5", attempt.call.at[0], last)

    def against_effect(self, attempt: Attempt, since: Moment, last: float) -> Violation | None:
        """What proves that the attempt may take no effect at a moment after `since` and not after `last`."""
        call = attempt.call
        if self.denied(attempt, last):
            text = f"{attempt.named} takes effect, and its client was told that it was not applied"
            return Violation("G5", text, (attempt.number, attempt.answer_number))
        if not attempt.fenced:
            return None
        if (known := self.stale_when_begun(attempt, last)) is not None:
            text = f"{attempt.named} takes effect; {shown(known)} was known before it began"
            return Violation("G1", text, (attempt.number, *known.lines))
        known = self.known(self._acknowledged, "G2", call.key, since, call.at[0], last)
        if known is not None and known.rank > attempt.rank:
            text = f"{attempt.named} takes effect after {shown(known)} had been acknowledged"
            return Violation("G2", text, (attempt.number, *known.lines))
        return None

    def against_replacing(
        self, attempt: Attempt, other: Attempt, first: float, last: float, *, returned: bool
    ) -> Violation | None:
        """The same for what replaces, within `first` to `last`, what `other` wrote. A write that has taken effect is as
        good as acknowledged to what comes after it on its object. `returned`: the object may have come back to an
        earlier state, which G3 and G4 do not cover."""
        call, replaced = attempt.call, other.call
        same = attempt.fenced and other.fenced and call.key == replaced.key
        if not same or call.token >= replaced.token:
            return None
        begun = min(call.at[0], replaced.at[0], first)
        covered = [g for g in ("G2", "G3") if self.covers(g, begun, last)]
        if "G2" not in covered and (
            returned or not call.token or call.operation not in self._index.setting.conditional
        ):
            return None
        if not covered:
            return None
        lost = covered[0] == "G3" and any(at[1] >= first and at[0] <= last for at in self._lost)
        text = f"{attempt.named} replaces what token {replaced.token} wrote"
        return Violation("G4" if lost else covered[0], text, (attempt.number, other.number))
