"""gateway/core/lease.py: which token comes next, and until when a lease is whose."""

from __future__ import annotations

import pytest

from gateway.core.keys import MAX_TOKEN
from gateway.core.lease import TOKENS_PER_GENERATION, UNCAPPED, Caps, Term, next_token

TERM = Term(ttl_s=30, began_at=100, expires_at=130)


@pytest.mark.parametrize(
    ("floor", "generation", "token"),
    [
        (0, 0, 1),
        (33, 0, 34),
        (33, 1, TOKENS_PER_GENERATION + 1),
        (TOKENS_PER_GENERATION + 1, 1, TOKENS_PER_GENERATION + 2),
        (MAX_TOKEN - 1, 0, MAX_TOKEN),
        (MAX_TOKEN, 0, None),
        (0, 2**23 - 1, (2**23 - 1) * TOKENS_PER_GENERATION + 1),
    ],
)
def test_the_next_token_is_above_the_floor_and_in_its_generation(
    floor: int, generation: int, token: int | None
) -> None:
    """The formula of R10, to its last token."""
    assert next_token(floor, generation) == token


def test_a_renewal_counts_from_its_moment() -> None:
    """A full time from now on, also of a lease that has run out, and as often as it is asked for."""
    renewed = TERM.renewed(110, UNCAPPED)
    assert renewed == Term(30, 100, 140, 1)
    late = TERM.renewed(500, UNCAPPED)
    assert late == Term(30, 100, 530, 1)
    assert late.renewed(510, UNCAPPED) == Term(30, 100, 540, 2)


def test_a_renewal_may_name_another_time_and_shortens_nothing() -> None:
    """What has been promised stays."""
    assert TERM.renewed(110, UNCAPPED, 60) == Term(30, 100, 170, 1)
    assert TERM.renewed(110, UNCAPPED, 5) == Term(30, 100, 130, 1)


def test_renewals_are_capped_in_number() -> None:
    """The one beyond the last is none."""
    caps = Caps(max_renewals=2)
    once = TERM.renewed(110, caps)
    assert once is not None
    twice = once.renewed(120, caps)
    assert twice is not None
    assert twice.renewed(130, caps) is None


def test_renewals_are_capped_in_total_time() -> None:
    """The last one ends with the total time, and none comes after."""
    caps = Caps(max_total_s=50)
    clipped = TERM.renewed(129, caps)
    assert clipped == Term(30, 100, 150, 1)
    assert clipped.renewed(149, caps) == Term(30, 100, 150, 2)
    assert clipped.renewed(150, caps) is None


def test_what_is_left_is_never_negative() -> None:
    """After the end nothing is left."""
    assert (TERM.left_s(100), TERM.left_s(129.5), TERM.left_s(130), TERM.left_s(999)) == (30, 0.5, 0, 0)
