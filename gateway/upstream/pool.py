"""The connections to one upstream address: the last one used goes out first, their number is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable

from gateway.tls import handshake_fault
from gateway.upstream.base import UpstreamNotReached
from gateway.upstream.connection import Connection


class Pool:
    """Opens, lends and keeps connections; at most `max_connections` exist at any time.

    Who finds none free queues up, first come first served. Queueing and connecting together take at most
    `connect_timeout_s`. A connection idle for `idle_s` is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        user_timeout_ms: int,
        connect_timeout_s: float,
        max_connections: int,
        idle_s: float,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._user_timeout_ms = user_timeout_ms
        self._connect_timeout_s = connect_timeout_s
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._taken = 0  # places: connections, and those that are being opened
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._queue: deque[asyncio.Future[Connection | None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.tls_fault: str | None = None
        """Why the last TLS handshake that failed did so; whoever has seen one succeed since sets it to None."""

    @property
    def lends_one(self) -> bool:
        """One connection is in use, or being opened."""
        return self._taken - len(self._idle) == 1

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """A connection for one exchange, which must be started on it without awaiting anything in between.

        `fresh`: rather a new one. Raises `UpstreamNotReached`."""
        deadline_s = asyncio.get_running_loop().time() + self._connect_timeout_s
        while not self._closed:
            if fresh and self._idle and self._taken >= self._max_connections:
                self._idle[0].reset("makes room for a new one")
            while self._idle and not fresh:
                connection = self._idle.pop()
                if not connection.has_news():
                    return connection
                connection.reset("closed by the upstream while idle")
            if self._taken < self._max_connections:
                self._taken += 1
                return await self._connect(deadline_s)
            granted = await self._wait_in_queue(deadline_s)
            if granted is None:
                return await self._connect(deadline_s)
            if not granted.closed:
                return granted
        raise UpstreamNotReached("the connections to the upstream are closed")

    def released(self, connection: Connection) -> None:
        """A connection's exchange has ended cleanly."""
        if self._closed:
            connection.reset("the pool is closed")
        elif not self._grant(connection):
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
            if self._sweep_timer is None:
                self._sweep_at(connection.idle_since_s + self._idle_s)

    def lost(self, connection: Connection) -> None:
        """A connection is closed."""
        if connection in self._connections:
            self._connections.remove(connection)
            with contextlib.suppress(ValueError):
                self._idle.remove(connection)
            self._free_place()

    def refused(self, error: ssl.SSLError) -> str:
        """A TLS handshake has failed; the reason for people."""
        fault = handshake_fault(error, "[upstream] tls_ca")
        self.tls_fault = f"no TLS connection to {self._host}:{self._port}: {fault}"
        return self.tls_fault

    async def close(self) -> None:
        """Close every connection, those in use by a reset; who still waits for one gets `UpstreamNotReached`."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for waiter in self._queue:
            if not waiter.done():
                waiter.set_exception(UpstreamNotReached("the connections to the upstream are closed"))
        connections = list(self._connections)
        for connection in connections:
            connection.reset("the pool is closed")
        for connection in connections:
            await connection.gone()

    async def _connect(self, deadline_s: float) -> Connection:
        """Open a connection in a place that is already ours."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls() if self._tls else None
                )
            connection.prepare(self._user_timeout_ms)
        except ssl.SSLError as error:
            self._free_place()
            raise UpstreamNotReached(self.refused(error)) from error
        except (OSError, TimeoutError) as error:
            self._free_place()
            reason = str(error) or f"not within {self._connect_timeout_s:g} s"
            raise UpstreamNotReached(f"no connection to {self._host}:{self._port}: {reason}") from error
        except BaseException:
            self._free_place()
            raise
        self._connections.add(connection)
        if self._closed:
            connection.reset("the pool is closed")
            raise UpstreamNotReached("the connections to the upstream are closed")
        return connection

    async def _wait_in_queue(self, deadline_s: float) -> Connection | None:
        """A connection that another exchange has done with, or None for a free place."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Connection | None] = loop.create_future()
        self._queue.append(waiter)
        timer = loop.call_at(deadline_s, self._expire, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._give_on(waiter.result())
            raise
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._queue.remove(waiter)

    def _give_on(self, granted: Connection | None) -> None:
        if granted is None:
            self._free_place()
        elif not granted.closed:
            self.released(granted)

    def _grant(self, granted: Connection | None) -> bool:
        """Hand a connection, or the right to open one, to the first in the queue; False if nobody waits."""
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(granted)
                return True
        return False

    def _free_place(self) -> None:
        if not self._grant(None):
            self._taken -= 1

    def _expire(self, waiter: asyncio.Future[Connection | None]) -> None:
        if not waiter.done():
            waiter.set_exception(UpstreamNotReached(f"none of {self._max_connections} connections came free in time"))

    def _sweep_at(self, when_s: float) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_at(when_s, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            due_s = self._idle[0].idle_since_s + self._idle_s
            if due_s > now_s:
                self._sweep_at(due_s)
                return
            self._idle[0].reset("idle for too long")
