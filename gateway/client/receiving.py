"""Asking a queue for jobs, until there are some or the wait is over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.client.calls import Calls, patience, patiently
from gateway.client.hold import LEAST_TURN_S, JobHold
from gateway.client.records import Grant
from gateway.clock import Clock


@dataclass(frozen=True, slots=True)
class JobsWish:
    """What is asked for. Times in seconds."""

    queue: str
    holder: str
    visibility_s: float | None
    """None: what the queue gives."""
    wait_s: float
    max_jobs: int
    patience_s: float
    """And so much longer where no gateway answers."""


class Receiving:
    """One `receive` of a worker."""

    def __init__(self, calls: Calls, clock: Clock, wish: JobsWish) -> None:
        self._calls = calls
        self._clock = clock
        self._wish = wish
        self._repeat_key = ""

    async def jobs(self) -> list[JobHold]:
        """Jobs that are still to be entered; none if there are none for the wait, whatever the gateway's own limit."""
        wait_until = self._clock.monotonic() + self._wish.wait_s
        while True:
            self._repeat_key, began = self._clock.nonce(), self._clock.monotonic()
            patient = patience(self._clock, self._wish.patience_s)
            grants = await patiently(lambda: self._ask(wait_until - self._clock.monotonic()), patient, self._clock)
            if grants or self._clock.monotonic() >= wait_until:
                return [JobHold(self._calls, self._clock, self._wish.patience_s, grant) for grant in grants]
            await asyncio.sleep(max(0.0, began + LEAST_TURN_S - self._clock.monotonic()))

    async def give_back(self) -> None:
        """Who asked is gone: what has been delivered to him, and is told again, is for others to have."""
        if self._repeat_key:
            for grant in await self._ask(0.0):
                await self._calls.give_back(grant.key, grant.token)

    async def _ask(self, wait_s: float) -> list[Grant]:
        wish = self._wish
        return await self._calls.receive(
            wish.queue, wish.holder, wish.visibility_s, max(0.0, wait_s), wish.max_jobs, self._repeat_key
        )
