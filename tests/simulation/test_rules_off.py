"""Each rule of the service, switched off: within the seeds that CI runs, some break a guarantee.

With the rules as they are none does (`test_seeds`). For the gate's own: `tests/core/test_rules_off.py`.
"""

from __future__ import annotations

import pytest

from tests.simulation.rules_off import SWITCHES, Off, Switch
from tests.simulation.run import simulate
from tests.simulation.test_seeds import SEEDS

HARM = {"G0", "G1", "G2", "G3", "G4", "G5", "R4", "R9", "R10", "once", "quiet"}
"""Not that the program itself fails: that is no proof of what the rule is for."""


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.__name__)
def test_rule_is_needed(switch: Switch, monkeypatch: Off) -> None:
    """Without the rule some seed breaks a guarantee: the harm, not only a program that fails."""
    switch(monkeypatch)
    for seed in SEEDS:
        if HARM & set(simulate(seed).guarantees):
            return
    raise AssertionError("no seed has found its harm")
