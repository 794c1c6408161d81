"""Everything at once, by random ways: larger worlds than can be looked at whole."""

from __future__ import annotations

import pytest

from tests.model.rules_off import SWITCHES
from tests.model.walk import walk

WALKS = 3000
FOUND = (
    "the floor is not looked at",
    "the floor is raised in memory alone",
    "the tail is not withheld",
    "a hand-over waits for nobody",
    "a grant is answered before lower sends settle",
    "a DELETE is answered from memory",
    "a lost answer settles",
    "sends of other keys are not waited for",
    "a completion leaves the gate open",
    "a lease is granted the floor's own token",
    "an end is taken for that of the next delivery",
)
"""Rules whose absence is soon found in this way, too."""


def test_no_way_breaks_a_guarantee() -> None:
    """Writes of every kind, leases, completions, retries, faults, crashes, stops, lost and rebuilt databases."""
    steps = 0
    for seed in range(WALKS):
        one = walk(seed)
        assert one.violation is None, "\n".join([f"seed {seed}", *one.story])
        steps += one.steps
    assert steps > 20 * WALKS


def test_a_way_is_the_same_for_the_same_seed() -> None:
    """So that it can be looked at again."""
    assert [walk(seed).steps for seed in range(20)] == [walk(seed).steps for seed in range(20)]


@pytest.mark.parametrize("what", FOUND)
def test_without_a_rule_some_way_does(what: str) -> None:
    """Their steps tell it."""
    (switch,) = (switch for switch in SWITCHES if switch.what == what)
    with switch.off():
        broken = next(one for seed in range(WALKS) if (one := walk(seed)).violation is not None)
    assert f"=> {broken.violation}" in broken.story[-1]
