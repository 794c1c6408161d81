"""A disk that is full."""

from __future__ import annotations

from pathlib import Path

from tests.stores.sqlite.conftest import Spawn


async def test_a_full_disk_stops_raises_and_nothing_else(tmp_path: Path, spawn: Spawn) -> None:
    """Writes are StoreUnavailable, durable floors are still read, and with room again all goes on as before."""
    child = await spawn("fill", tmp_path / "gateway.db")
    said, _ = await child.communicate()
    refused, *rest = said.decode().splitlines()
    assert refused.startswith("refused after ")
    assert rest == ["read True", "equal True", "raised True", "lazy True", "stopped"]
    assert child.returncode == 0
