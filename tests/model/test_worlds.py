"""Every interleaving of small worlds, on the gateway's own decisions."""

from __future__ import annotations

import pytest

from tests.model.explore import explore
from tests.model.size import Size
from tests.model.transcript import transcript
from tests.model.worlds import BOUNDED, FULL


@pytest.mark.parametrize("size", BOUNDED, ids=lambda size: size.name)
def test_no_interleaving_breaks_a_guarantee(size: Size) -> None:
    """All states of the world are looked at; in each G0 to G5 hold, and what is promised of a job and its queue."""
    found = explore(size)
    assert found.violation is None, "\n" + transcript(found)
    assert found.complete


def test_each_world_has_a_name_of_its_own() -> None:
    """So that `--only` and a report say which is meant."""
    assert len({size.name for size in FULL}) == len(FULL)
