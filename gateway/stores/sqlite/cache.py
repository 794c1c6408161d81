"""A bounded cache of durable state in front of the reader, right also while the writer commits.

A value that was read before a commit and comes back after it must not be kept: whoever puts or forgets a key
takes the key's reading mark away, and a read keeps its value only if its mark is still there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ReadThrough(Generic[K, V]):
    """The `size` values used last; absence, where it is a value, is one like any other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[K, V] = {}
        self._reading: dict[K, object] = {}

    def get(self, key: K) -> V | None:
        """The value, now the most recently used; None if it is not here."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    async def read(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """The value, from `load` if it is not here; what `load` raises goes through."""
        if key in self._values:
            self._values[key] = value = self._values.pop(key)
            return value
        mark = self._reading.setdefault(key, object())
        try:
            value = await load()
            if self._reading.get(key) is mark:
                self.put(key, value)
            return value
        finally:
            if self._reading.get(key) is mark:
                del self._reading[key]

    def put(self, key: K, value: V) -> None:
        """What has been committed for `key`."""
        self._reading.pop(key, None)
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]

    def forget(self, key: K) -> None:
        """Have the next read of `key` go to the database."""
        self._reading.pop(key, None)
        self._values.pop(key, None)

    def clear(self) -> None:
        """Have every next read go to the database."""
        self._reading.clear()
        self._values.clear()
