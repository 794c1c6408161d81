"""The model's steps stand for the service: the same schedules through both come to the same."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.beside import Beside, sized
from tests.model.guarantees import Violation
from tests.model.rules_off import SWITCHES
from tests.simulation.run import silence
from tests.virtual_time import run

SEEDS = 400
MOVES = 60
SEEN = (
    "a grant is answered before lower sends settle",
    "sends carry no condition",
    "a DELETE is answered from memory",
    "a stop with a send in doubt is clean",
    "the kernel delivers after the settle time-out",
    "a lost answer is told as NotApplied",
)
"""Steps that would stand for another service than ours."""


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


@pytest.mark.parametrize("what", SEEN)
def test_another_step_is_found_out(what: str) -> None:
    """A step of the model that does not do what the service does parts the two."""
    (switch,) = (switch for switch in SWITCHES if switch.what == what)
    with switch.off(), pytest.raises((AssertionError, Violation)):
        _all()


def _all() -> None:
    for seed in range(SEEDS):
        play(seed)
