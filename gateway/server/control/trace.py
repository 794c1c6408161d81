"""`GET /v1/trace`: the log's lines and a key's history as they come, one JSON object a line (docs/api.md).

Whoever follows holds nothing up: what he does not take in time is dropped, and counted. He is told of the history what
the log has no line of its own for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from aiohttp import web
from pydantic import Field

from gateway.core.keys import FencingKey, token_in_json
from gateway.server.control.access import may_use, may_use_all
from gateway.server.control.calls import Ask, Call, Media, Role
from gateway.server.control.documents import DIGITS, Given, KeyGiven
from gateway.server.control.health import Readiness
from gateway.server.control.history import EventShown
from gateway.server.control.problems import Problem
from gateway.service.fences import Fences
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind
from gateway.telemetry import Follower, Line, Telemetry, as_json

LOOK_S = 0.5
"""How often the history is looked at, and whether the gateway goes on."""
MAX_TRACE_S = 86400
BEAT_S = 10.0
"""How often an idle follower gets an empty line, so that both sides learn whether the other is still there."""
KINDS = frozenset({EventKind.RAISED, EventKind.FOUND, EventKind.SEALED, EventKind.UPLOAD_REVOKED})
"""What only the history tells."""
_PAGE = 100


def wanted(key: str | None, request_id: str | None) -> Callable[[Line], bool]:
    """Which lines of the log somebody follows who named a key, a request, both, or nothing. What a client shows of an
    error that is the store's own may be the store's id."""

    def is_wanted(line: Line) -> bool:
        ids = (None, line.get("request_id"), line.get("upstream_request_id"))
        return request_id in ids and key in (None, line.get("fence_key"))

    return is_wanted


class TraceAsked(Given):
    """What to follow, and for how long."""

    key: KeyGiven | None = Field(None, description="Of this key alone.")
    request_id: str | None = Field(None, description="Of this request alone.")
    for_s: Annotated[int, Field(ge=0, le=MAX_TRACE_S, description="It ends after so many seconds."), DIGITS] = (
        MAX_TRACE_S
    )


class TraceCalls:
    """Its handler."""

    def __init__(self, fences: Fences, telemetry: Telemetry, readiness: Readiness) -> None:
        """A trace ends, for all, when the gateway is no longer ready by itself."""
        self._store = fences.store
        self._telemetry = telemetry
        self._clock = fences.clock
        self._readiness = readiness

    def calls(self) -> list[Call]:
        """What it is."""
        lines = Media(
            "application/x-ndjson", {"type": "string", "description": "One JSON object a line."}, streams=True
        )
        return [Call("GET", "/v1/trace", self.trace, Role.OPERATOR, media=lines)]

    async def trace(self, ask: Ask, query: TraceAsked) -> web.StreamResponse:
        """First what is still known of the past, then what comes. Who may not use all keys must name one."""
        if not (may_use_all(ask.caller) if query.key is None else may_use(ask.caller, query.key)):
            which = "every key" if query.key is None else repr(query.key)
            raise Problem(403, "forbidden", f"this API token may not follow {which}")
        return await self._serve(ask.request, query.key, query.request_id, query.for_s)

    async def _serve(
        self, request: web.Request, key: FencingKey | None, request_id: str | None, for_s: float
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/x-ndjson", "cache-control": "no-store"})
        serial = await self._newest(key)
        with self._telemetry.follow(wanted(key, request_id)) as follower:
            await answer.prepare(request)
            ends_at = self._clock.monotonic() + for_s
            try:
                await self._follow(answer, follower, key, request_id, serial, ends_at)
                await answer.write_eof()
            except ConnectionResetError:
                pass  # he has seen enough
        return answer

    async def _follow(
        self,
        answer: web.StreamResponse,
        follower: Follower,
        key: FencingKey | None,
        request_id: str | None,
        serial: int,
        ends_at: float,
    ) -> None:
        beat_at = 0.0
        dropped = 0
        while True:
            told = [_line("log", line) for line in follower.take()]
            if follower.dropped > dropped:
                told.append(_line("trace", {"dropped": follower.dropped - dropped}))
                dropped = follower.dropped
            for event in await self._since(key, serial):
                serial = event.serial
                if event.kind in KINDS and request_id in (None, event.request_id):
                    told.append(_line("history", EventShown.of(event).model_dump()))
            now = self._clock.monotonic()
            if told or now >= beat_at:
                await answer.write(b"".join(told) or b"\n")
                beat_at = now + BEAT_S
            if now >= ends_at or self._readiness.reason is not None:
                return
            await follower.wait(min(LOOK_S, ends_at - now))

    async def _newest(self, key: FencingKey | None) -> int:
        events = [] if key is None else await self._store.events(key, None, 1)
        return events[0].serial if events else 0

    async def _since(self, key: FencingKey | None, serial: int) -> list[Event]:
        """What the history of the key has gained, oldest first. A store that cannot say now does so later."""
        if key is None:
            return []
        try:
            events = await self._store.events(key, None, _PAGE)
        except StoreUnavailable:
            return []
        return [event for event in reversed(events) if event.serial > serial]


def _line(source: str, told: dict[str, object]) -> bytes:
    """The log writes tokens as numbers, however long they are."""
    tokens = {name: token_in_json(value) for name in ("token", "floor") if isinstance(value := told.get(name), int)}
    return as_json({"source": source, **told, **tokens}) + b"\n"
