"""What the tests of the upstream share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.authority import Authority, Pair


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A module with `ON_BOTH_LOOPS` runs its tests on asyncio's own event loop and on uvloop."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
    if getattr(item.module, "ON_BOTH_LOOPS", False):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    """A server's certificate and key, of the module's authority."""
    return authority.issue("127.0.0.1")
