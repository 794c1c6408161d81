"""What runs beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run_in(tasks: set[asyncio.Task[None]], what: Coroutine[Any, Any, None]) -> None:
    """Run something beside the request, held by `tasks` until it ends."""
    task = asyncio.create_task(what)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
