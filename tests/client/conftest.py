"""One gateway for the tests of a module, and keys that no other test uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.client.rig import Served, served


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    with served() as one:
        yield one


@pytest.fixture
def key() -> str:
    """With all that a path could stumble over."""
    return f"job {secrets.token_hex(4)}/a%2F..//ü?#"
