"""The client for asyncio."""

from __future__ import annotations

import asyncio
from typing import Self

from gateway.client.engine import Connected
from gateway.client.lease import Job, Lease
from gateway.client.records import JobRecord


class GatewayClient(Connected):
    """A gateway, for as long as the context lasts. Needs no configuration where FENCING_GATEWAY_URL,
    FENCING_GATEWAY_API_TOKEN and FENCING_GATEWAY_CA_BUNDLE name it. One for a process will do; not across a fork.

    Its requests and heartbeats run in a thread of their own. `holder` is what others are told who wait for a lease;
    `patience_s`, for how long calls go on trying where no gateway answers, or one that restarts."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End heartbeats and connections. Leases that are still held run out."""
        await asyncio.to_thread(self.engine.close)

    def lease(self, key: str, *, ttl_s: float = 30.0, wait_s: float = 0.0) -> Lease:
        """A lease on `key`: `async with` obtains it, after waiting in line for at most `wait_s`.

        Entering raises `LeaseHeld`, `JobCompleted`, `Refused`, `Unreachable`."""
        return Lease(self.engine.lease(key, ttl_s, wait_s), self.engine.background)

    async def receive(
        self, queue: str, *, visibility_s: float | None = None, wait_s: float = 20.0, max_jobs: int = 1
    ) -> list[Job]:
        """Jobs that are ready, at most `max_jobs`; none if there are none for `wait_s`. Each is to be entered (`async
        with`) before `visibility_s` are over (without it, what the queue gives), else it is delivered again.
        Cancelled, it leaves no job with nobody. Raises `Refused`, `Unreachable`."""
        receiving = self.engine.receiving(queue, visibility_s, wait_s, max_jobs)
        holds = await self.engine.background.run(receiving.jobs(), receiving.give_back)
        return [Job(hold, self.engine.background) for hold in holds]

    async def submit(
        self, queue: str, key: str, payload: object = None, *, priority: int | None = None, delay_s: float | None = None
    ) -> JobRecord:
        """Enqueue a job and answer with its record; where its key is known already nothing is changed. `payload` is
        whatever JSON holds, up to 64 KiB. Raises `TypeError` or `ValueError` for what it does not hold, `Refused`,
        `Unreachable`."""
        return await self.engine.background.run(self.engine.submit(queue, key, payload, priority, delay_s))

    async def job(self, key: str) -> JobRecord:
        """What the gateway knows of a job. Raises `Refused`, `Unreachable`."""
        return await self.engine.background.run(self.engine.job(key))

    async def check(self, key: str, token: int) -> None:
        """For effects outside S3: passes if at this moment no higher token holds the key, and nothing lower can take
        effect any more. Raises `StaleToken`, `Refused`, `Unreachable`."""
        await self.engine.background.run(self.engine.check(key, token))
