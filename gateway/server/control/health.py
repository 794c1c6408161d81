"""Whether the gateway lives, is ready, and what it counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.server.control.calls import Answered, Call, Media, Role
from gateway.server.control.documents import Shown
from gateway.service.fences import Fences
from gateway.stores.base import StoreUnavailable
from gateway.telemetry import Telemetry


async def _no_fault() -> str | None:
    return None


class Readiness:
    """Whether the gateway takes requests, and if not, why. `ask_upstream` tells what keeps it from the store behind."""

    def __init__(self, ask_upstream: Callable[[], Awaitable[str | None]] = _no_fault) -> None:
        self.ask_upstream = ask_upstream
        self.reason: str | None = "starting"
        """Why not; None when it serves, as far as the process itself knows."""
        self.store_fault: str | None = None
        """What the store said when it was last asked."""
        self.upstream_fault: str | None = None
        """What `ask_upstream` last said."""

    @property
    def fault(self) -> str | None:
        return self.reason or self.store_fault or self.upstream_fault


class Health(Shown):
    """The process answers."""

    status: Literal["ok"]


class Ready(Shown):
    """Whether requests are taken, and if not, why."""

    status: Literal["ready", "unavailable"]
    reason: str | None = None


class HealthCalls:
    """Its handlers."""

    def __init__(self, fences: Fences, telemetry: Telemetry, readiness: Readiness) -> None:
        self._fences = fences
        self._telemetry = telemetry
        self._readiness = readiness
        telemetry.ready.set_function(lambda: readiness.fault is None)

    def calls(self) -> list[Call]:
        """Probes of a container platform need no token."""
        text = Media("text/plain", {"type": "string"})
        return [
            Call("GET", "/healthz", self.healthz, Role.ANYONE),
            Call("GET", "/readyz", self.readyz, Role.ANYONE, statuses=(200, 503)),
            Call("GET", "/metrics", self.metrics, media=text),
        ]

    async def healthz(self) -> Health:
        """The process runs and answers."""
        return Health(status="ok")

    async def readyz(self) -> Answered[Ready]:
        """The gateway takes requests, its store can raise floors, and it and the store behind trust each other; else
        503 and why."""
        readiness = self._readiness
        try:
            await self._fences.store.check()
            readiness.store_fault = None
        except StoreUnavailable as error:
            readiness.store_fault = f"store: {error}"
        upstream_fault = await readiness.ask_upstream()
        readiness.upstream_fault = f"upstream: {upstream_fault}" if upstream_fault else None
        if readiness.fault is not None:
            return Answered(Ready(status="unavailable", reason=readiness.fault), 503)
        return Answered(Ready(status="ready"), 200)

    async def metrics(self) -> web.StreamResponse:
        """Prometheus text."""
        unsettled = self._fences.unsettled()
        self._telemetry.unsettled.set(len(unsettled))
        self._telemetry.in_doubt.set(sum(send.phase == "in-doubt" for send in unsettled))
        self._telemetry.settled_by_timeout.set(self._fences.settled_by_timeout)
        self._telemetry.settled_by_operator.set(self._fences.settled_by_operator)
        pending = self._fences.pending()
        self._telemetry.handovers_waiting.set(len(pending))
        self._telemetry.handover_wait.set(max((one.waited_s for one in pending), default=0))
        return web.Response(
            body=generate_latest(self._telemetry.registry), headers={"content-type": CONTENT_TYPE_LATEST}
        )
