"""Jobs that are delayed: they come to wait when their time has come, and one timer looks for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.clock import Clock
from gateway.core.job import Job
from gateway.service.alarms import MIN_WAIT_S
from gateway.service.beside import Beside
from gateway.stores.base import StoreUnavailable
from gateway.stores.job_base import JobStore

_log = structlog.get_logger(__name__)

AGAIN_S = 1.0
"""After a store that could not be asked what is due."""
DUE_AT_ONCE = 1000


class Delays:
    """The delays of one gateway. They are in the store: here is when to look next."""

    def __init__(
        self, store: JobStore, clock: Clock, returned: Callable[[Job], None], doubt: Callable[[], None]
    ) -> None:
        """`returned` is told of each job whose delay is over, and `doubt` where the store may have ended delays that
        nobody knows of."""
        self._store = store
        self._clock = clock
        self._returned = returned
        self._doubt = doubt
        self._beside = Beside()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._stopped = False
        # Steps of the wall clock during a run are not followed: a delay is as long as it was said to be.
        self._offset_s = clock.wall() - clock.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, by a clock that makes no steps."""
        return self._clock.monotonic() + self._offset_s

    async def look(self) -> None:
        """Have what is due come to wait, and look again when the next is."""
        try:
            for job in await self._store.due(self.now(), DUE_AT_ONCE):
                self._returned(job)
            at = await self._store.next_due()
        except StoreUnavailable as error:
            _log.warning("delayed-jobs-not-looked-for", reason=str(error))
            self._doubt()
            at = self.now() + AGAIN_S
        if at is not None:
            self.look_at(at)

    def look_at(self, at: float) -> None:
        """Look at that moment (as `now` tells) or earlier."""
        if self._stopped or (self._timer is not None and self._next_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next_at = at
        self._timer = asyncio.get_running_loop().call_later(max(at - self.now(), MIN_WAIT_S), self._due)

    def _due(self) -> None:
        self._timer = None
        self._beside.run(self.look())

    async def stop(self) -> None:
        """Nothing is looked for any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._beside.stop()
