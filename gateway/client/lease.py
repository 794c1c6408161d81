"""Leases and jobs for asyncio: contexts whose body is cancelled when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from gateway.client.background import Ended
from gateway.client.errors import LeaseLost
from gateway.client.guarded import Guarded, GuardedJob, GuardedLease, in_words


class _Cancelling:
    """Cancels the task that entered a context when its lease is lost, and turns that into `LeaseLost` at the context's
    end: the way of `asyncio.timeout`."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._before = task.cancelling()
        self._armed = True
        self._fired = False

    def fire(self, _error: LeaseLost) -> None:
        """From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._armed:
            self._fired = True
            self._task.cancel()

    def disarm(self, kind: type[BaseException] | None) -> bool:
        """The context ends with an exception of this kind; whether that is our own cancellation."""
        self._armed = False
        if not self._fired:
            return False
        return self._task.uncancel() <= self._before and kind is not None and issubclass(kind, asyncio.CancelledError)


class _Context(Guarded):
    """Entered: obtained, and renewed from then on. Left: ended as the subclass says."""

    _cancelling: _Cancelling

    async def __aenter__(self) -> Self:
        await self._background.run(self._hold.begin(), self._hold.abandon)
        self._cancelling = _Cancelling()
        self.on_lost(self._cancelling.fire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        ours = self._cancelling.disarm(kind)
        try:
            if kind is None and not self._hold.ended:
                self.check()
            await self._end(error)
        finally:
            await self._leave(self._hold.release)
        if ours:
            self.check()

    async def _end(self, error: BaseException | None) -> None:
        """Whatever the end of the body means."""

    async def _leave(self, farewell: Callable[[], Awaitable[None]]) -> None:
        with suppress(Ended):  # there is nobody left to tell
            await self._background.run(self._hold.leave(farewell), partial(self._hold.leave, farewell))

    async def complete(self, result: object = None, outputs: Sequence[str] = ()) -> None:
        """Record the job as done, once and for all, with a JSON `result` of up to 64 KiB. The gateway first verifies
        that each of `outputs` (BUCKET/KEY) was written under this token. From then on the token is sealed and the lease
        ended. Repeated through lost answers and restarts until the deadline, and for `patience_s` at least.

        Raises `JobCompleted`, `StaleToken`, `LeaseLost`, `Refused` (an output is not there), `Unreachable` (whether it
        is recorded is not known; `GatewayClient.job` tells)."""
        await self._background.run(self._hold.complete(result, outputs))

    async def release(self) -> None:
        """Give the lease back before the context ends. Raises `Refused`, `Unreachable`."""
        await self._background.run(self._hold.release())


class Lease(_Context, GuardedLease):
    """A lease as an asynchronous context. Left in whatever way, it is given back unless it has been completed. When it
    is lost, the task in the context is cancelled at its next `await`, and the context raises `LeaseLost`."""


class Job(_Context, GuardedJob):
    """A job as an asynchronous context. Left normally, the job is completed without a result, unless it has been ended
    within; left by an exception, it has failed; cancelled, it is given back. A call within that was to end it and did
    not, as a completion that was refused, is such an exception, also where it was caught. When its lease is lost, the
    task in the context is cancelled at its next `await`, and the context raises `LeaseLost`."""

    async def fail(self, error: str, *, retry: bool = True, delay_s: float | None = None) -> None:
        """End the attempt as failed: the queue tries again, later and so often as its settings say, or not at all
        without `retry`. Raises `Refused`, `Unreachable`."""
        await self._background.run(self._hold.fail(error, retry=retry, delay_s=delay_s))

    async def _end(self, error: BaseException | None) -> None:
        caught = self._hold.not_ended_for if error is None else None
        failure = error or caught
        if failure is None and not self._hold.ended:
            await self.complete()
        elif isinstance(failure, Exception):
            told = in_words(failure)
            await self._leave(lambda: self._hold.fail(told, retry=True, delay_s=None))
        if caught is not None:
            raise caught
