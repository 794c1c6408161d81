"""Leases: which token comes next, and until when a lease is whose (R10).

A lease is *granted* with a token, may be *renewed* as long as nobody else has been granted the key, and *runs out* when
it has not been renewed for its time. Running out takes nothing from its holder by itself: his token goes on holding the
floor until the next grant. Times are monotonic seconds, given by the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gateway.core.keys import MAX_TOKEN

TOKENS_PER_GENERATION = 2**40
"""A database that has been restored or rebuilt begins above all tokens that the one before it can have issued."""


def next_token(floor: int, generation: int) -> int | None:
    """The token of the next grant on a key; None where none is left."""
    token = max(floor + 1, generation * TOKENS_PER_GENERATION + 1)
    return token if token <= MAX_TOKEN else None


@dataclass(frozen=True, slots=True)
class Caps:
    """How far a lease may be renewed."""

    max_renewals: int | None = None
    max_total_s: float = math.inf


UNCAPPED = Caps()


@dataclass(frozen=True, slots=True)
class Term:
    """The time of one lease."""

    ttl_s: float
    began_at: float
    """When it was granted, for its total time."""
    expires_at: float
    renewals: int = 0

    def left_s(self, now: float) -> float:
        """How long it still lasts, at least 0."""
        return max(0.0, self.expires_at - now)

    def renewed(self, now: float, caps: Caps, ttl_s: float | None = None) -> Term | None:
        """The term after a renewal at `now`, for `ttl_s` instead of its own if given; None where its caps allow none.
        A renewal that would end beyond the total time ends with it; none makes a term shorter."""
        if caps.max_renewals is not None and self.renewals >= caps.max_renewals:
            return None
        latest = self.began_at + caps.max_total_s
        if now >= latest:
            return None
        expires_at = min(now + (self.ttl_s if ttl_s is None else ttl_s), latest)
        return replace(self, expires_at=max(expires_at, self.expires_at), renewals=self.renewals + 1)
