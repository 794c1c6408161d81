"""What an earlier run of the gateway may have sent and not seen settle: it may still land for a while (R5)."""

from __future__ import annotations

import math
from contextlib import suppress

from gateway.clock import Clock
from gateway.core.errors import Malformed
from gateway.core.keys import FencingKey, Ruleset
from gateway.service.waits import Timing

Bound = tuple[str, str, str]
"""Fence key, bucket and object of an upload, or of a copy, that an earlier run had open."""


class EarlierRun:
    """Until when something of it may land. Nothing may, as long as nobody says that the start was unclean."""

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._until = -math.inf
        self._uploads_until = -math.inf
        self._keys_with_uploads: frozenset[str] = frozenset()
        self._objects_with_uploads: frozenset[tuple[str, str]] = frozenset()

    def started_unclean(self, bound: frozenset[Bound] | None) -> None:
        """What an earlier run sent may still land: tokens above the completed floors wait for it (R5), and so does who
        takes an object over; the longer of the settle time-outs for what is `bound`. None: nobody knows what is, so
        that all wait as long."""
        now = self._clock.monotonic()
        self._uploads_until = now + self._timing.settle_timeout_assembly_s
        if bound is None:
            self._until = self._uploads_until
            return
        self._until = now + self._timing.settle_timeout_s
        self._keys_with_uploads = frozenset(key for key, _, _ in bound)
        self._objects_with_uploads = frozenset((bucket, object_key) for _, bucket, object_key in bound)

    def until(self, key: FencingKey) -> float:
        """Until when what it sent under `key` may land; monotonic seconds."""
        return self._uploads_until if key in self._keys_with_uploads else self._until

    def settles_in_s(self, key: FencingKey) -> float | None:
        """How long what it sent under `key` may still land, seconds; None when nothing may."""
        return self._left_s(self.until(key))

    def object_settles_in_s(self, bucket: str, object_key: str) -> float | None:
        """How long what it sent on an object, under whatever key, may still land, seconds; None when nothing may."""
        return self._left_s(self._uploads_until if (bucket, object_key) in self._objects_with_uploads else self._until)

    @property
    def unsettled(self) -> bool:
        """Whether something of it may still land: then this run's stop is not clean either."""
        until = max(self._until, self._uploads_until if self._keys_with_uploads else -math.inf)
        return self._left_s(until) is not None

    def _left_s(self, until: float) -> float | None:
        left_s = until - self._clock.monotonic()
        return left_s if left_s > 0 else None


def under_present_rules(bound: frozenset[Bound], rules: Ruleset) -> frozenset[Bound]:
    """`bound`, and the same under the keys that the rules give those objects now, which may be others since: who writes
    there under such a key has to wait for them as well."""
    moved: set[Bound] = set()
    for _, bucket, object_key in bound:
        with suppress(Malformed):  # nobody can write there now
            if (key := rules.map(bucket, object_key).key) is not None:
                moved.add((key, bucket, object_key))
    return bound | moved
