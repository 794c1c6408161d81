"""Processes of their own for tests that need to end one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """Start a child of `children.py`; what is left of them is killed at the end."""
    children: list[asyncio.subprocess.Process] = []

    async def spawn(*arguments: object) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "tests.stores.sqlite.children", *map(str, arguments))
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        children.append(child)
        return child

    yield spawn
    for child in children:
        if child.returncode is None:
            child.kill()
        await child.communicate()
