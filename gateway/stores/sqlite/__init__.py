"""The store of one gateway: an SQLite database locked to one process."""

from gateway.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
