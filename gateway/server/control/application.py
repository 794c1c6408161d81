"""The control listener: health, metrics, and the JSON API under `/v1/` (docs/api.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from gateway.core.keys import Ruleset
from gateway.server.control.access import Access, ApiToken
from gateway.server.control.calls import Call
from gateway.server.control.fences import FenceCalls, LeaseOf, no_lease
from gateway.server.control.health import HealthCalls, Readiness
from gateway.server.control.openapi import OpenApiCalls
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
        more: Iterable[Call] = (),
        lease_of: LeaseOf = no_lease,
    ) -> None:
        """`open_uploads` tells how many uploads of a key are open, or still to be aborted; `more` are further calls;
        `lease_of` tells who holds a key."""
        self._telemetry = telemetry
        self._access = Access(tokens)
        self.calls: list[Call] = [
            *HealthCalls(fences, telemetry, readiness).calls(),
            *TraceCalls(fences, telemetry, readiness).calls(),
            *FenceCalls(fences, telemetry, rules, open_uploads, lease_of).calls(),
            *more,
        ]
        self.calls += OpenApiCalls(self.calls).calls()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[problems(self._telemetry)])
        app.add_routes([call.route(self._access) for call in self.calls])
        return app
