"""How long the fuzzers run as tests: few examples, always the same; with FUZZ_EXAMPLES=n so many, always others."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_MANY = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def short(examples: int) -> settings:
    """For the suite."""
    return settings(
        max_examples=_MANY or examples,
        deadline=None,
        derandomize=not _MANY,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
