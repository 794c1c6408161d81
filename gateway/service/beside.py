"""What runs beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from gateway.core.errors import FenceError
from gateway.service.job_errors import JobError
from gateway.service.lease_errors import LeaseError
from gateway.stores.base import StoreUnavailable

_log = structlog.get_logger(__name__)

T = TypeVar("T")
ANSWERS = (FenceError, LeaseError, JobError, StoreUnavailable)
"""What is raised to say no. All else is a fault of the program."""


async def answer_of(task: asyncio.Future[T]) -> T:
    """What the task answers, or raises. A caller that goes away meanwhile does not end it; a fault of the program in it
    is the log's then."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_tell_fault)
        raise


def _tell_fault(task: asyncio.Future[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ANSWERS):
        _log.error("internal-error", exc_info=error)


class Beside:
    """Tasks that go on without whoever began them, held until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def idle(self) -> bool:
        """Whether none runs."""
        return not self._tasks

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it; nobody has to wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """What it answers, or raises. A caller that goes away meanwhile does not end it."""
        return await answer_of(self.run(work))

    async def ended(self) -> None:
        """Wait until all that run now have ended, however they do."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cut off all that run, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.ended()
