"""The store without a disk, for tests and simulation."""

from gateway.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
