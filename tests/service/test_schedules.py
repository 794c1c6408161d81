"""G0, G1, G2 and G5 under random writers, faults, late landings and restarts; a seed replays its schedule."""

from __future__ import annotations

import pytest

from tests.service.rig import DEAF, HONEST
from tests.service.schedules import Schedule, Violation
from tests.virtual_time import run

SEEDS = range(150)


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["conditional", "unconditional"])
def test_no_schedule_breaks_a_guarantee(capabilities) -> None:
    """Nothing lower takes effect after a token has been admitted; no floor falls; answers say what happened."""
    for seed in SEEDS:
        schedule = Schedule(seed, capabilities)
        try:
            run(schedule.run())
        except Exception as error:
            raise Violation(f"seed {seed}: {error}") from error
