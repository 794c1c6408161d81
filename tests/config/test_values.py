"""Addresses to listen at."""

from __future__ import annotations

from gateway.config.values import is_loopback, split_listen


def test_listening_on_loopback() -> None:
    """All of 127/8, ::1 and localhost are this machine alone."""
    assert all(is_loopback(a) for a in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"))
    assert split_listen("[::1]:8080") == ("::1", 8080)
