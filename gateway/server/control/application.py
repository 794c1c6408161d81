"""The control listener: health, metrics, and the JSON API under `/v1/` (docs/api.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from gateway.core.keys import Ruleset
from gateway.server.control.access import Access, ApiToken, Authorise
from gateway.server.control.asked import MAX_BODY_BYTES
from gateway.server.control.fences import FenceCalls
from gateway.server.control.health import HealthCalls, Readiness
from gateway.server.control.problems import problems
from gateway.server.control.trace import TraceCalls
from gateway.service.fences import Fences
from gateway.telemetry import Telemetry


class Control:
    """All calls of the control listener."""

    def __init__(
        self,
        fences: Fences,
        telemetry: Telemetry,
        readiness: Readiness,
        tokens: tuple[ApiToken, ...],
        rules: Ruleset,
        open_uploads: Callable[[str], int],
        more: Callable[[Authorise, Authorise], Iterable[web.RouteDef]] = lambda *_: (),
    ) -> None:
        """`open_uploads` tells how many uploads of a key are open, or still to be aborted. `more` gives further calls:
        it is told what lets every caller, and what lets operators pass."""
        self._telemetry = telemetry
        self._access = Access(tokens)
        self._health = HealthCalls(fences, telemetry, readiness)
        self._trace = TraceCalls(fences, telemetry, readiness)
        self._fences = FenceCalls(fences, telemetry, rules, open_uploads)
        self._more = more

    def application(self) -> web.Application:
        """The routes."""
        access = self._access
        app = web.Application(middlewares=[problems(self._telemetry)], client_max_size=MAX_BODY_BYTES)
        app.add_routes(self._health.routes(access.caller))
        app.add_routes(self._trace.routes(access.operator))
        app.add_routes(self._fences.routes(access))
        app.add_routes(self._more(access.caller, access.operator))
        return app
