"""Workers whose tokens are the gateway's own leases, acquired or delivered with a job by a queue: renewed, given up,
completed, or left to run out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.core.job import Output
from gateway.core.keys import FencingKey, Token
from gateway.service.deliveries import Wish as Receive
from gateway.service.job_errors import NoJob
from gateway.service.leases import Lease
from tests.simulation.actors import Tokens, Worker, key_of
from tests.simulation.chance import BUCKET
from tests.simulation.client import Reply, Wish
from tests.simulation.gateway import Gateway

QUEUED = 0.4
TTL_S = (5, 20, 60)
WAITS_S = (0, 0, 10, 90)


class Holder(Worker):
    """Works under one lease on the job of `name`. Some renew it before each request, some forget."""

    def __init__(
        self, gateway: Gateway, who: str, key: str | None, name: str, marks: Counter[str], tokens: Tokens
    ) -> None:
        super().__init__(gateway, who, key, 0, marks)
        self._tokens = tokens
        self._name = name
        self._job = FencingKey(key_of(key, name))
        self._renews = self._stream.random() < 0.6
        self._granted_by = ""
        """The database that has."""
        self.queued = self._stream.random() < QUEUED
        """Its job comes from a queue."""

    def objects(self) -> list[str]:
        return [name for name in self.chance.objects if key_of(self.key, name) == self._job]

    async def work_under_lease(self) -> None:
        """Acquire, work, and give up, complete, or leave it to run out."""
        if not await self.acquire(self._stream.choice(WAITS_S)):
            return
        await self.work()
        end = self._stream.choices((self.release, self.complete, None), (4, 3, 3))[0]
        if end is not None:
            await end()

    async def acquire(self, wait_s: float) -> bool:
        """Ask for the lease, again under the same idempotency key where there is no answer; whether it is granted."""
        ttl_s = self._stream.choice(TTL_S)

        async def acquire() -> Lease:
            leases = self.gateway.leases
            return await leases.acquire(self._job, self.name, ttl_s, wait_s=wait_s, idempotency_key=self.name)

        async def receive() -> Lease:
            jobs, queue = self.gateway.jobs, f"of {self._job}"
            await jobs.submit(queue, self._job)
            wish = Receive(self.name, ttl_s, wait_s, idempotency_key=self.name)
            for delivery in await jobs.deliveries.receive(queue, wish):
                return delivery.lease
            raise NoJob(self._job)

        send = receive if self.queued else acquire

        reply = await self.ask(Wish("grant", self._job, 0, value=self.name), send)
        if reply.error is not None:
            return False
        self.token = reply.result.token
        self._granted_by = self.gateway.disk.authority.database
        self._tokens.granted(self._job, self.token, self._granted_by)
        return True

    def covered(self, wish: Wish) -> bool:
        """Not where a new database takes his token for one of its own: nobody can tell them apart."""
        own = not wish.token or self._granted_by == self.gateway.disk.authority.database
        return own and super().covered(wish)

    async def pause(self) -> None:
        await super().pause()
        if self.token and self._renews:
            await self._of_lease("renew", self._renew)

    async def _renew(self) -> Lease:
        renew = self.gateway.jobs.extend if self.queued else self.gateway.leases.renew
        return await renew(self._job, Token(self.token))

    async def release(self) -> Reply:
        """Give the lease up; a job is given back, or has failed."""
        fails = self._stream.random() < 0.5

        async def send() -> Any:
            if not self.queued:
                await self.gateway.leases.release(self._job, Token(self.token))
            elif fails:
                await self.gateway.jobs.fail(self._job, Token(self.token))
            else:
                await self.gateway.jobs.release(self._job, Token(self.token))

        return await self._of_lease("seal", send)

    async def complete(self) -> Reply:
        """Done, now and then with an output that may not be there."""
        outputs = [Output(BUCKET, self._name)] if self._stream.random() < 0.4 else []
        return await self._of_lease(
            "complete",
            lambda: self.gateway.completions.complete(self._job, Token(self.token), outputs=outputs),
        )

    async def _of_lease(self, operation: str, send: Callable[[], Awaitable[Any]]) -> Reply:
        return await self.ask(Wish(operation, self._job, self.token), send)

    async def reopen(self) -> Reply:
        """An operator has the job done again."""
        return await self.ask(
            Wish("reopen", self._job, 0), lambda: self.gateway.jobs.reopen(self._job, "again"), attempts=1
        )
