"""Each rule taken away: the explorer finds the harm, and `docs/model.md` tells it."""

from __future__ import annotations

import pytest

from gateway.core.gate import Gate
from tests.model import table
from tests.model.explore import Found
from tests.model.rules_off import NOT_HERE, SWITCHES, Switch
from tests.model.transcript import transcript


@pytest.fixture(scope="module")
def harms() -> dict[str, Found]:
    """What has been found, for the page."""
    return {}


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.what)
def test_without_the_rule_there_is_harm(switch: Switch, harms: dict[str, Found]) -> None:
    """A guarantee is broken, and the way there can be told step by step."""
    found = harms[switch.what] = table.harm(switch)
    assert found.violation is not None
    with switch.off():
        told = transcript(found)
    assert len([line for line in told.splitlines() if line[:3].strip().isdigit()]) == found.depth
    assert f"=> {found.violation}" in told


def test_the_page_tells_of_every_rule(harms: dict[str, Found]) -> None:
    """`docs/model.md` has the table that these tests have found (`make model` writes it)."""
    if len(harms) < len(SWITCHES):
        pytest.skip("wants the harms of all rules")
    assert table.table([harms[switch.what] for switch in SWITCHES]) == table.written()


def test_no_rule_is_left_out() -> None:
    """R1 to R11: switched off here, or said where else."""
    told = {switch.rule for switch in SWITCHES if switch.rule not in ("G0", "queue")} | set(NOT_HERE)
    assert told == {f"R{number}" for number in range(1, 12)}


def test_a_switch_leaves_nothing_behind() -> None:
    """After it the product is whole again."""
    before = dict(vars(Gate))
    for switch in SWITCHES:
        with switch.off():
            pass
    assert dict(vars(Gate)) == before
