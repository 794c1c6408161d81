"""From a failing seed to a story that is short enough to read."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.run import STEPS, Outcome, simulate

CONSEQUENCES = frozenset({"completed-floor-lost", "late-landing", "long-pause"})
"""What is counted as a fault and cannot be left out by itself."""


@dataclass(frozen=True, slots=True)
class Smallest:
    """The fewest steps and kinds of faults with which the seed still breaks the same guarantee."""

    outcome: Outcome
    steps: int
    without: tuple[str, ...]

    @property
    def command(self) -> str:
        """What replays it."""
        without = f" --without {','.join(self.without)}" if self.without else ""
        return f"python -m tests.simulation --seed {self.outcome.seed} --steps {self.steps}{without}"


def shrink(seed: int, steps: int = STEPS) -> Smallest:
    """Leave out whatever is not needed for the violation: last steps, then kinds of faults, one after another."""
    whole = simulate(seed, steps=steps)
    wanted = whole.violations[0].guarantee
    best = Smallest(whole, steps, ())
    best = _fewer_steps(best, wanted)
    for kind in sorted(best.outcome.story.faults.keys() - CONSEQUENCES):
        without = (*best.without, kind)
        outcome = simulate(seed, steps=best.steps, without=without)
        if wanted in outcome.guarantees:
            best = Smallest(outcome, best.steps, without)
    return _fewer_steps(best, wanted)


def _fewer_steps(best: Smallest, wanted: str) -> Smallest:
    for steps in range(1, best.steps):
        outcome = simulate(best.outcome.seed, steps=steps, without=best.without)
        if wanted in outcome.guarantees:
            return Smallest(outcome, steps, best.without)
    return best
