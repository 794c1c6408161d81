"""How what travels looks in JSON, where that takes a decision."""

from __future__ import annotations

import pytest

from gateway.server.control.documents import seconds_in_json
from gateway.server.control.leases import LeaseShown


@pytest.mark.parametrize("milliseconds", [0, 1, 1001, 1003, 4350, 29999, 30000, 3599999])
def test_a_time_in_whole_milliseconds_is_told_as_it_is(milliseconds: int) -> None:
    """Also told on, and of a lease; binary fractions lie on either side of it."""
    seconds = milliseconds / 1000
    assert seconds_in_json(seconds) == seconds_in_json(seconds_in_json(seconds)) == seconds
    shown = LeaseShown(key="k", token=1, holder="h", ttl_s=seconds, expires_in_s=seconds)
    assert shown.model_dump()["expires_in_s"] == seconds


def test_no_more_time_is_told_than_there_is() -> None:
    """A millisecond that has begun to run is gone."""
    assert seconds_in_json(1.0019) == 1.001
    assert seconds_in_json(0.0009) == 0
