"""What the gateway remembers of single objects: their last known state, and the sends on them that may still land.

The state is a memory, not a truth: it saves a HEAD and is found out by the condition that is built on it (R4). The
ledger of unsettled sends is a truth: every send of this gateway is in it from its commit point until it settles (R9).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from gateway.core.keys import FencingKey
from gateway.core.write import ObjectState


class ObjectEntry:
    """One object. Pinned while somebody works on it; otherwise it may be forgotten."""

    __slots__ = (
        "_changed",
        "_unsettled",
        "bucket",
        "key",
        "owner",
        "owning",
        "pins",
        "refuses_itself",
        "state",
        "turn",
    )

    def __init__(self, bucket: str, key: str) -> None:
        self.bucket = bucket
        self.key = key
        self.state: ObjectState | None = None
        self.refuses_itself = False
        """The store refuses, as a PUT's condition, the very state that it shows: its path is a folder's, or versions
        are kept no longer. Believed until the object has been written."""
        self.turn = asyncio.Lock()
        """Bodies at hand go one after another, from commit point to answer."""
        self.owner: FencingKey | None = None
        """The key that has claimed the object, or is about to, as far as this run knows; None where a rule names it."""
        self.owning = asyncio.Lock()
        """Held from reading the owner to having claimed the object."""
        self.pins = 0
        self._unsettled: Counter[FencingKey] = Counter()
        self._changed: asyncio.Event | None = None

    def begin(self, fence_key: FencingKey) -> None:
        """A send of `fence_key` passes its commit point."""
        self._unsettled[fence_key] += 1

    def end(self, fence_key: FencingKey) -> None:
        """That send is settled."""
        self._unsettled[fence_key] -= 1
        if not self._unsettled[fence_key]:
            del self._unsettled[fence_key]
            if self._changed is not None:
                self._changed.set()

    def contested(self, fence_key: FencingKey) -> bool:
        """Whether another key has claimed the object, or a send of one may still land on it."""
        if self.owner is not None and self.owner != fence_key:
            return True
        return self.unsettled_of_another(fence_key)

    def rivals(self, fence_key: FencingKey) -> list[FencingKey]:
        """The other keys that contest the object, as far as this run knows."""
        owner = [] if self.owner is None else [self.owner]
        return sorted({*owner, *self._unsettled} - {fence_key})

    @property
    def unsettled(self) -> bool:
        """Whether any send may still land on the object."""
        return bool(self._unsettled)

    def unsettled_of_another(self, fence_key: FencingKey) -> bool:
        """Whether a send of another key may still land on the object."""
        return bool(self._unsettled) and (len(self._unsettled) > 1 or fence_key not in self._unsettled)

    async def uncontested(self, fence_key: FencingKey, timeout_s: float) -> bool:
        """Wait until no send of another key may still land; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.unsettled_of_another(fence_key):
                    if self._changed is None or self._changed.is_set():
                        self._changed = asyncio.Event()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def idle(self) -> bool:
        return not self.pins and not self._unsettled and not self.turn.locked()


class Objects:
    """The entries, least recently used first; at most `capacity` idle ones."""

    def __init__(self, capacity: int = 65536) -> None:
        self._entries: OrderedDict[tuple[str, str], ObjectEntry] = OrderedDict()
        self._capacity = capacity

    def pin(self, bucket: str, key: str) -> ObjectEntry:
        """The entry of an object, kept until `unpin`."""
        entry = self._entries.get((bucket, key))
        if entry is None:
            self._make_room()
            entry = self._entries[bucket, key] = ObjectEntry(bucket, key)
        else:
            self._entries.move_to_end((bucket, key))
        entry.pins += 1
        return entry

    def unpin(self, entry: ObjectEntry) -> None:
        entry.pins -= 1

    def _make_room(self) -> None:
        # Busy entries are skipped by turning them over; there are never more of them than requests and doubts.
        for _ in range(8):
            if len(self._entries) < self._capacity:
                return
            name, entry = self._entries.popitem(last=False)
            if not entry.idle:
                self._entries[name] = entry
