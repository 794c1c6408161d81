"""Generate sequences from a seed, and shrink the first that differs."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from tests.differential.sequences import Sequence, sequences
from tests.differential.world import World

SEQUENCES = 100
_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


class Differs(AssertionError):
    """The sides differ."""


def search(world: World, seed: int, count: int = SEQUENCES, *, shrink: bool = True) -> str | None:
    """Play `count` sequences; the shortest that differs, told with what differed. None if none does, or none twice."""
    shortest: list[tuple[int, str]] = []

    @seeded(seed)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=_HEALTH, verbosity=Verbosity.quiet,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    @given(sequences())
    def play(sequence: Sequence) -> None:
        differences = world.play(sequence)
        if differences:
            text = f"{sequence}\n  differs in {differences[0]}\n" + "\n".join(f"    {line}" for line in differences[1:])
            shortest.append((len(sequence.steps), text))
            raise Differs(text)

    try:
        play()
    except Flaky:
        # It came and did not come again, as a store's 500 may.
        world.seen_once.append(f"seed {seed}, seen once\n{min(shortest)[1]}")
        return None
    except Differs:
        return f"seed {seed}\n{min(shortest)[1]}"
    return None
