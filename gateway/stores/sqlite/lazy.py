"""What waits for the next commit: completed hand-overs, shadow floors and history.

Everything stays here until it is durable, so that a failed commit loses nothing; everything is bounded, so
that a disk that stays full cannot fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.stores.base import StoreUnavailable
from gateway.stores.rules import handed_over, shadowed
from gateway.stores.values import Event, Fence

MAX_WAITING = 10_000
"""So many events, so many keys of each other kind, and so many changes that are not lazy, wait at most."""


@dataclass(frozen=True, slots=True)
class LazyBatch:
    """What one commit takes along."""

    handovers: dict[str, int]
    shadows: dict[str, int]
    events: list[Event]

    def __bool__(self) -> bool:
        return bool(self.handovers or self.shadows or self.events)


class LazyWrites:
    """Takes lazy writes, gives them to a commit, keeps them until it has succeeded."""

    def __init__(self) -> None:
        self.dropped_events = 0
        self._handovers: dict[str, int] = {}
        self._shadows: dict[str, int] = {}
        self._events: list[Event] = []
        self._last_of_key: dict[str, int] = {}
        self._more: dict[int, int] = {}
        """How many alike came after the event at a place: counted here."""

    def __bool__(self) -> bool:
        return bool(self._handovers or self._shadows or self._events)

    def complete_handover(self, key: str, token: int) -> None:
        """Beyond the bound it is left out: a completed floor that is not written costs waiting, no safety."""
        if key in self._handovers or len(self._handovers) < MAX_WAITING:
            self._handovers[key] = max(token, self._handovers.get(key, 0))

    def raise_shadow(self, key: str, token: int) -> int:
        """Raise what waits for `key` to `token`; answer what waits then. StoreUnavailable at the bound."""
        if key not in self._shadows and len(self._shadows) >= MAX_WAITING:
            raise StoreUnavailable("too many shadow floors wait for the disk")
        self._shadows[key] = waiting = max(token, self._shadows.get(key, 0))
        return waiting

    def shadow(self, key: str) -> int:
        """The shadow floor of `key` that waits; 0 for none."""
        return self._shadows.get(key, 0)

    def upon(self, fence: Fence) -> Fence:
        """The state of a key when what waits for it has been written."""
        return shadowed(handed_over(fence, self._handovers.get(fence.key, 0)), self.shadow(fence.key))

    def record(self, event: Event) -> None:
        """Count `event` into the key's last waiting one if they are alike, else add it; drop at the bound."""
        if self.counted(event):
            return
        if len(self._events) >= MAX_WAITING:
            self.dropped_events += event.times
            return
        self._last_of_key[event.key] = len(self._events)
        self._events.append(event)

    def counted(self, event: Event) -> bool:
        """Count `event` into the key's last waiting one, if they are alike."""
        place = self._last_of_key.get(event.key)
        if place is None:
            return False
        last = self._events[place]
        if last.token != event.token or last.kind is not event.kind or last.detail != event.detail:
            return False
        self._more[place] = self._more.get(place, 0) + event.times
        return True

    def take(self) -> LazyBatch:
        """All that waits. It must come back through `committed` or `failed`."""
        events, more = self._events, self._more
        self._events, self._last_of_key, self._more = [], {}, {}
        for place, times in more.items():
            events[place] = events[place]._replace(times=events[place].times + times)
        return LazyBatch(dict(self._handovers), dict(self._shadows), events)

    def committed(self, batch: LazyBatch) -> None:
        """`batch` is durable: forget it, but not what has come in since."""
        for waiting, done in ((self._handovers, batch.handovers), (self._shadows, batch.shadows)):
            for key, token in done.items():
                if waiting[key] == token:
                    del waiting[key]

    def failed(self, batch: LazyBatch) -> None:
        """`batch` is not durable: its events wait again, before those that have come in since."""
        later = self.take().events
        for event in (*batch.events, *later):
            self.record(event)
