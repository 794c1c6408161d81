"""The S3 listener: the connections there are, how many there may be, and when they end.

Why this is not aiohttp's server: docs/decisions/0011-own-listener.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.core.errors import Reason, TryAgain
from gateway.s3.errors import S3Error
from gateway.server.connection import Connection
from gateway.server.http import Reply, Request

SWEEP_S = 1.0

Answering = Callable[[Request], Awaitable[Reply]]
AnsweringFaults = Callable[[Connection, S3Error | TryAgain], Reply]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the listener bears."""

    max_concurrent_requests: int = 1024
    max_concurrent_requests_per_client: int = 1024
    max_connections: int = 4096
    max_header_bytes: int = 65536
    """Names and values of all of a head's fields."""
    max_header_field_bytes: int = 16384
    """One field's name or value."""
    header_timeout_s: float = 30.0
    """From a head's first byte to its last."""
    keepalive_timeout_s: float = 75.0
    """From one answer to the next request."""
    idle_timeout_s: float = 60.0
    """The longest a client may make no progress, sending a body or reading an answer."""
    min_body_bytes_per_s: int = 240
    """The least a body must bring on average, by the time that its client is waited for beyond twice that; 0: none."""


class Listener:
    """Makes a connection for each that comes, as `asyncio.loop.create_server` wants it."""

    def __init__(self, answer: Answering, answer_fault: AnsweringFaults, limits: Limits) -> None:
        self.answer = answer
        self.answer_fault = answer_fault
        """Answers what never became a request."""
        self.limits = limits
        self.connections: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Those that wait for their clients to send a request, the longest wait first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        """Awaited by `shutdown`."""

    @property
    def serves_one(self) -> bool:
        """All connections but one wait for their clients."""
        return len(self.connections) - len(self.waiting) == 1

    def __call__(self) -> Connection:
        return Connection(self)

    def start(self) -> None:
        """Begin to close connections that are silent, or whose heads come too slowly."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in [connection for connection in self.connections if connection.due_s < now_s]:
            connection.cut()
        self._sweep = loop.call_later(SWEEP_S, self.start)

    def welcome(self, connection: Connection) -> None:
        """One more. If it is one too many, the one that has waited longest for its client makes room, as HTTP's clients
        bear at any time (RFC 9112, 9.6); where all are being answered, the new one is told to come later."""
        self.connections.add(connection)
        most = self.limits.max_connections
        if self._emptied is not None:  # it came while its handshake outlasted the listener
            connection.cut()
        elif len(self.connections) > most:
            if self.waiting:
                oldest = next(iter(self.waiting))
                self.forget(oldest)
                oldest.cut()
            elif len(self.connections) > most + most // 8:
                connection.cut()
            else:
                message = "The gateway has as many connections as it may. Come again later."
                connection.refuse(TryAgain(Reason.OVERLOADED, message, retry_after_s=1))

    def forget(self, connection: Connection) -> None:
        """It is no more."""
        self.connections.discard(connection)
        self.waiting.pop(connection, None)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    async def shutdown(self, timeout_s: float) -> None:
        """Close what is idle, wait at most `timeout_s` for what is being answered and read, and cut the rest."""
        if self._sweep is not None:
            self._sweep.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._emptied = loop.create_future()
        tasks = [task for connection in list(self.connections) if (task := connection.finish()) is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self.connections:
            await asyncio.wait([self._emptied], timeout=max(0.0, deadline - loop.time()))
        for connection in list(self.connections):
            connection.cut()
