"""The model's steps stand for the service: the same schedules through both come to the same."""

from __future__ import annotations

from collections import Counter

from tests.model.beside import Beside, sized
from tests.simulation.run import silence
from tests.virtual_time import run

SEEDS = 300
MOVES = 60


def play(seed: int) -> Beside:
    size, honoured = sized(seed)
    beside = Beside(seed, honoured, size)
    with silence(), beside.listening():
        run(beside.play(MOVES))
    return beside


def test_the_service_does_what_the_model_says() -> None:
    """Floors, objects, what is remembered of them and each answer, after every step of seeded schedules."""
    verdicts: Counter[str] = Counter()
    for seed in range(SEEDS):
        verdicts += Counter(play(seed).verdicts)
    assert verdicts.keys() == {"applied", "refused", "again", "again unknown"}
    assert min(verdicts.values()) > 20
