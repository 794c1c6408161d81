"""What both faces of the client stand on: one connection to a gateway, in a thread of its own."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

from gateway.client.background import Background
from gateway.client.calls import Calls, patiently
from gateway.client.hold import LeaseHold, LeaseWish
from gateway.client.receiving import JobsWish, Receiving
from gateway.client.records import JobRecord
from gateway.client.transport import Transport, checked_api_token, checked_url
from gateway.clock import Clock, HolderClock
from gateway.tls import client_context
from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE, DEFAULT_URL, URL_VARIABLE

PATIENCE_S = 30.0


class Connected:
    """What both faces of the client begin with: one gateway, and the engine for it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_token: str | None = None,
        tls: ssl.SSLContext | None = None,
        holder: str | None = None,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        """Raises `ValueError` for an address or token that can be none, `OSError` for authorities that cannot be
        read."""
        self.engine = Engine(url, api_token, tls, holder, patience_s, clock)


class Engine:
    """Coroutines for `background`, each one call, ridden out while no gateway answers."""

    def __init__(
        self,
        url: str | None,
        api_token: str | None,
        tls: ssl.SSLContext | None,
        holder: str | None,
        patience_s: float,
        clock: Clock | None,
    ) -> None:
        """Raises as `Connected` does."""
        address = checked_url(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
        token = checked_api_token(os.environ.get(API_TOKEN_VARIABLE) if api_token is None else api_token)
        if tls is None and address.startswith("https:"):
            named = os.environ.get(CA_VARIABLE)
            tls = client_context(Path(named) if named else None)
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}"
        self.patience_s = patience_s
        self.clock: Clock = HolderClock() if clock is None else clock
        self.background = Background()
        self.transport = Transport(address, token, tls)
        self.calls = Calls(self.transport, self.clock)

    def close(self) -> None:
        """End the thread and its connections."""
        self.background.close(self.transport.close())

    def lease(self, key: str, ttl_s: float, wait_s: float) -> LeaseHold:
        """A lease that is still to be obtained."""
        wish = LeaseWish(key, self.holder, ttl_s, wait_s, self.patience_s)
        return LeaseHold(self.calls, self.clock, wish, self.clock.nonce)

    def receiving(self, queue: str, visibility_s: float | None, wait_s: float, max_jobs: int) -> Receiving:
        """Jobs that are still to be asked for."""
        wish = JobsWish(queue, self.holder, visibility_s, wait_s, max_jobs, self.patience_s)
        return Receiving(self.calls, self.clock, wish)

    async def submit(
        self, queue: str, key: str, payload: object, priority: int | None, delay_s: float | None
    ) -> JobRecord:
        """As `GatewayClient.submit`: once, however often it has to be tried."""
        repeat_key, until = self.clock.nonce(), self.clock.monotonic() + self.patience_s

        async def attempt() -> JobRecord:
            return await self.calls.submit(queue, key, payload, priority, delay_s, repeat_key)

        return await patiently(attempt, lambda: until, self.clock)

    async def job(self, key: str) -> JobRecord:
        """As `GatewayClient.job`."""
        until = self.clock.monotonic() + self.patience_s
        return await patiently(lambda: self.calls.job(key), lambda: until, self.clock)

    async def check(self, key: str, token: int) -> None:
        """As `GatewayClient.check`."""
        until = self.clock.monotonic() + self.patience_s
        await patiently(lambda: self.calls.check(key, token), lambda: until, self.clock)
