"""The control listener: health, metrics, and the JSON API under `/v1/` (docs/api.md). Errors are RFC 9457 problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from hmac import compare_digest
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes, urlsplit

import orjson
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.core.keys import OBJECT_NAMESPACE, FencingKey, Ruleset, Token, key_fault, parse_token
from gateway.server.trace import Trace
from gateway.service.fences import Fences
from gateway.service.waits import PendingHandOver, UnsettledSend
from gateway.stores.base import Event, EventKind, Fence, Store, StoreUnavailable
from gateway.telemetry import Telemetry

MAX_BODY_BYTES = 65536
MAX_PAGE = 1000
MAX_TRACE_S = 86400
_MAX_EXACT_JSON_INTEGER = 2**53
_PROBLEM = "application/problem+json"
_STATUS: dict[Reason, int] = {
    Reason.STALE_TOKEN: 412,
    Reason.SEALED: 412,
    Reason.TOKEN_REQUIRED: 400,
    Reason.TOKEN_INVALID: 400,
    Reason.TOKEN_JUMP: 400,
    Reason.KEY_INVALID: 400,
    Reason.KEY_DENIED: 403,
    Reason.HANDOVER_PENDING: 503,
    Reason.STORE_UNAVAILABLE: 503,
}
_REASON: dict[Reason, str] = {Reason.STALE_TOKEN: "stale", Reason.SEALED: "stale"}


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A bearer of the control API."""

    secret: str
    operator: bool
    keys: tuple[str, ...] = ("*",)


class Problem(Exception):
    """An answer that is not a success (RFC 9457)."""

    def __init__(self, status: int, reason: str, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.members = members


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


def _refuse_pages(request: web.Request) -> None:
    """Keep an open listener for those who are on this machine: a page from elsewhere can have its visitor's browser
    call it, under the page's own name even (DNS rebinding). Raises `Problem` (403)."""
    for said in (f"//{request.host}", request.headers.get("Origin")):
        if said is not None and not _names_this_machine(said):
            raise Problem(
                403,
                "forbidden",
                "without configured API tokens the gateway answers only calls to localhost or a loopback address, and"
                " none of a page from elsewhere; configure [[api_token]]",
            )


def _names_this_machine(address: str) -> bool:
    try:
        name = urlsplit(address).hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


Authorise = Callable[[web.Request], ApiToken | None]
"""Who asks; None on an open listener. Raises `Problem` for who may not."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control:
    """The handlers of the control listener."""

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
        self._fences = fences
        self._store: Store = fences.store
        self._telemetry = telemetry
        self._readiness = readiness
        self._tokens = tokens
        self._rules = rules
        self._open_uploads = open_uploads
        self._more = more
        telemetry.ready.set_function(lambda: readiness.fault is None)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._problems], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/trace", self.trace)
        app.router.add_get("/v1/fences", self.list_fences)
        app.router.add_get("/v1/fences/{key}", self.show_fence)
        app.router.add_get("/v1/fences/{key}/events", self.events)
        app.router.add_post("/v1/fences/{key}/check", self.check)
        app.router.add_post("/v1/fences/{key}/raise", self.raise_floor)
        app.router.add_post("/v1/fences/{key}/settle", self.settle)
        app.router.add_post("/v1/fences/{key}/seal", self.seal)
        app.add_routes(self._more(self._authorise, partial(self._authorise, operator=True)))
        return app

    # --- health

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """The process runs and answers."""
        return json_answer({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        """The gateway takes requests, its store can raise floors, and it and the store behind trust each other; else
        503 and why."""
        readiness = self._readiness
        try:
            await self._store.check()
            readiness.store_fault = None
        except StoreUnavailable as error:
            readiness.store_fault = f"store: {error}"
        upstream_fault = await readiness.ask_upstream()
        readiness.upstream_fault = f"upstream: {upstream_fault}" if upstream_fault else None
        if readiness.fault is not None:
            return json_answer({"status": "unavailable", "reason": readiness.fault}, status=503)
        return json_answer({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Prometheus text."""
        self._authorise(request)
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

    async def trace(self, request: web.Request) -> web.StreamResponse:
        """The log's lines and a key's history as they come. Who may not use all keys must name one."""
        caller = self._authorise(request, operator=True)
        key = request.query.get("key")
        if caller is not None and not _allowed(caller, "*" if key is None else key):
            raise Problem(
                403, "forbidden", f"this API token may not follow {'every key' if key is None else repr(key)}"
            )
        text = request.query.get("for_s", str(MAX_TRACE_S))
        if not text.isdecimal() or int(text) > MAX_TRACE_S:
            raise Problem(400, "invalid", f"`for_s` must be a number of seconds, at most {MAX_TRACE_S}")
        trace = Trace(self._store, self._telemetry, self._fences.clock, lambda: self._readiness.reason is None)
        request_id = request.query.get("request_id")
        return await trace.serve(request, None if key is None else _checked_key(key), request_id, int(text), _event)

    # --- fences

    async def list_fences(self, request: web.Request) -> web.StreamResponse:
        """Known keys in order; pages by cursor."""
        caller = self._authorise(request)
        limit = _limit(request)
        fences = await self._store.fences(request.query.get("after"), limit, request.query.get("prefix", ""))
        shown = [self._fence(fence) for fence in fences if caller is None or _allowed(caller, fence.key)]
        return json_answer({"fences": shown, "next": fences[-1].key if len(fences) == limit else None})

    async def show_fence(self, request: web.Request) -> web.StreamResponse:
        """One key: floors, what is unsettled, and what its hand-over waits for."""
        return json_answer(await self._shown(self._key(request)))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """One key's history, newest first; pages by cursor."""
        key = self._key(request)
        limit = _limit(request)
        before = request.query.get("before")
        if before is not None and not before.isdecimal():
            raise Problem(400, "invalid", "`before` is the `next` of an earlier page")
        events = await self._store.events(key, int(before) if before else None, limit)
        shown = [_event(event) for event in events]
        return json_answer({"events": shown, "next": str(events[-1].serial) if len(events) == limit else None})

    async def check(self, request: web.Request) -> web.StreamResponse:
        """For effects outside S3: the token is recorded, and nothing lower can take effect any more (R3). It is held to
        the limits of its key's rules like a write (R10)."""
        key = self._key(request)
        asked = await _asked(request, token=True)
        request_id = request.headers.get("X-Request-Id", "")
        limits = self._rules.limits_of(key)
        live = await self._fences.admit(key, asked.named, cause="check", request_id=request_id, limits=limits)
        self._fences.unpin(live)
        return json_answer({"key": key, "token": number(asked.named), "floor": number(live.gate.floor)})

    async def raise_floor(self, request: web.Request) -> web.StreamResponse:
        """An operator's hand-over: lower tokens are shut out from now on. No limit of a rule holds here (R10)."""
        key = self._key(request, operator=True)
        asked = await _asked(request, token=True, reason=True)
        self._telemetry.event("operator-raises", fence_key=key, token=asked.named, reason=asked.reason)
        live = await self._fences.admit(key, asked.named, cause=f"operator: {asked.reason}")
        self._fences.unpin(live)
        return json_answer(await self._shown(key))

    async def settle(self, request: web.Request) -> web.StreamResponse:
        """What is in doubt counts as settled, on the operator's word (R5). Nothing in doubt: nothing is done."""
        key = self._key(request, operator=True)
        asked = await _asked(request, reason=True)
        settled = await self._fences.settle(key, asked.token, asked.reason)
        awaited = [s for s in self._fences.unsettled(key) if asked.token in (None, s.token)]
        if awaited and not settled:
            shown = "; ".join(map(str, awaited[:3]))
            raise Problem(
                409,
                "committing",
                f"Of {key!r} nothing is in doubt: the store's answers are still awaited ({shown}), and it may apply "
                "what it has been sent. Each comes, or is in doubt, within the commit time-out.",
                key=key,
            )
        return json_answer(await self._shown(key) | {"settled": [_unsettled(send) for send in settled]})

    async def seal(self, request: web.Request) -> web.StreamResponse:
        """Shut out the token that holds the floor, too; where a token is named, only if that one holds it."""
        key = self._key(request, operator=True)
        asked = await _asked(request, reason=True)
        fence = await self._fences.state(key)
        floor = fence.floor
        if not floor:
            raise Problem(404, "not-found", f"{key!r} has no floor: no token has been seen for it", key=key)
        token = Token(floor) if asked.token is None else asked.token
        if token < floor:
            told = f"Token {token} holds {key!r} no more, {floor} does: {token} is refused already, nothing was sealed."
            raise Problem(412, "stale", told, key=key, floor=number(floor))
        if token > floor:
            told = f"Token {token} does not hold {key!r}: its floor is {floor}. Raise the floor to it first."
            raise Problem(409, "not-held", told, key=key, floor=number(floor))
        if fence.sealed_token != floor:
            event = Event(key, EventKind.SEALED, token, floor, f"operator: {asked.reason}")
            await self._fences.seal(key, token, event)
            self._telemetry.event("operator-seals", fence_key=key, token=token, reason=asked.reason)
        return json_answer(await self._shown(key))

    async def _shown(self, key: FencingKey) -> dict[str, object]:
        """All that is known of one key."""
        fence = await self._fences.state(key)
        pending = await self._fences.pending_of(key)
        return self._fence(fence) | {
            "open_uploads": self._open_uploads(key),
            "unsettled": [_unsettled(send) for send in self._fences.unsettled(key)],
            "handover": None if pending is None else self._handover(pending, fence),
            "earlier_run_settles_in_s": self._fences.earlier_run_settles_in_s(key),
        }

    def _handover(self, pending: PendingHandOver, fence: Fence) -> dict[str, object]:
        return {
            "token": number(pending.token),
            "since": _time(fence.raised_at),
            "latest": _time(self._fences.clock.wall() + pending.latest_in_s),
            "latest_in_s": pending.latest_in_s,
            "requests": pending.requests,
            "sends": [_unsettled(send) for send in pending.sends],
        }

    def _fence(self, fence: Fence) -> dict[str, object]:
        return {
            "key": fence.key,
            "floor": number(fence.floor),
            "completed_floor": number(fence.completed_floor),
            "sealed": fence.floor > 0 and fence.sealed_token == fence.floor,
            "shadow_floor": number(fence.shadow_floor),
            "raised_at": _time(fence.raised_at),
        }

    # --- who asks

    def _authorise(self, request: web.Request, *, operator: bool = False) -> ApiToken | None:
        """The caller; None on an open listener. Raises `Problem` (401, 403)."""
        if not self._tokens:
            _refuse_pages(request)
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        found = None
        for token in self._tokens:
            # Every one is compared, so that the time tells nothing.
            if compare_digest(token.secret.encode(), given.strip().encode()) and scheme.lower() == "bearer":
                found = token
        if found is None:
            raise Problem(401, "unauthenticated", "send Authorization: Bearer with one of the configured API tokens")
        if operator and not found.operator:
            raise Problem(403, "forbidden", "this call is an operator's")
        return found

    def _key(self, request: web.Request, *, operator: bool = False) -> FencingKey:
        """The key in the path, one percent-encoded segment. Raises `Problem`."""
        caller = self._authorise(request, operator=operator)
        raw = request.rel_url.raw_path.split("/")[3]
        try:
            key = unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            key = ""
        _checked_key(key)
        if caller is not None and not _allowed(caller, key):
            raise Problem(403, "forbidden", f"this API token may not use the fencing key {key!r}", key=key)
        return FencingKey(key)

    # --- errors

    @web.middleware
    async def _problems(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as error:
            return _problem(error.status, error.reason, error.detail, **error.members)
        except FenceError as error:
            members: dict[str, object] = {"key": error.key} if error.key else {}
            if error.floor is not None:
                members["floor"] = number(error.floor)
            reason = _REASON.get(error.reason, error.reason.value)
            answer = _problem(_STATUS.get(error.reason, 400), reason, error.message, **members)
            if isinstance(error, TryAgain):
                answer.headers["Retry-After"] = str(max(1, round(error.retry_after_s or 1)))
            return answer
        except StoreUnavailable as error:
            return _problem(503, Reason.STORE_UNAVAILABLE.value, str(error))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _problem(error.status, error.reason.lower().replace(" ", "-"), error.text or error.reason)
        except Exception:
            self._telemetry.failure("internal-error", path=request.path)
            return _problem(500, "internal", "the gateway has failed to answer; its log says why")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a call's body says."""

    token: Token | None
    reason: str

    @property
    def named(self) -> Token:
        """The token, where the call demands one."""
        assert self.token is not None
        return self.token


async def _asked(request: web.Request, *, token: bool = False, reason: bool = False) -> _Asked:
    """The members of a small JSON body; the token may be left out unless the call demands one, and the reason is only
    taken where the call does. Tokens come as numbers up to 2^53, as strings above."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise Problem(400, "invalid", "the body must be a JSON object") from error
    if not isinstance(body, dict):
        raise Problem(400, "invalid", "the body must be a JSON object")
    known = {"token", "reason"} if reason else {"token"}
    if unknown := set(body) - known:
        raise Problem(400, "invalid", f"unknown member {sorted(unknown)[0]!r}; allowed: {', '.join(sorted(known))}")
    given = body.get("token")
    named = token or "token" in body
    if named and (isinstance(given, bool) or not isinstance(given, int | str)):
        raise Problem(400, Reason.TOKEN_INVALID.value, "`token` must be a whole number, or a string of digits")
    why = body.get("reason", "")
    if reason and (not isinstance(why, str) or not why.strip()):
        raise Problem(400, "invalid", "`reason` must say why, for the key's history")
    return _Asked(parse_token(str(given), "token") if named else None, str(why)[:500])


def _checked_key(key: str) -> FencingKey:
    """Raises `Problem` for what no key can be; an object's own may be named here."""
    if not key.startswith(OBJECT_NAMESPACE) and (fault := key_fault(key)):
        raise Problem(400, Reason.KEY_INVALID.value, f"this fencing key {fault}")
    return FencingKey(key)


def number(token: int) -> int | str:
    """A token as JSON: a number where every reader has it exact, a string above."""
    return token if token <= _MAX_EXACT_JSON_INTEGER else str(token)


def _time(seconds: float) -> str | None:
    """RFC 3339 in UTC; None for never."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else None


def _unsettled(send: UnsettledSend) -> dict[str, object]:
    return {
        "token": number(send.token),
        "phase": send.phase,
        "bucket": send.bucket,
        "object": send.object_key,
        "request_id": send.request_id,
        "settles_in_s": send.settles_in_s,
        "latest_in_s": send.latest_in_s,
    }


def _event(event: Event) -> dict[str, object]:
    return {
        "at": _time(event.at),
        "kind": event.kind.value,
        "token": number(event.token),
        "floor": number(event.floor),
        "detail": event.detail,
        "request_id": event.request_id,
        "count": event.count,
    }


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", "100")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PAGE:
        raise Problem(400, "invalid", f"`limit` must be a number from 1 to {MAX_PAGE}")
    return int(text)


def _allowed(caller: ApiToken, key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in caller.keys)


def json_answer(value: object, status: int = 200) -> web.Response:
    """A JSON document."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _problem(status: int, reason: str, detail: str, **members: object) -> web.Response:
    body = {"type": "about:blank", "title": reason, "status": status, "detail": detail, "reason": reason, **members}
    return web.Response(body=orjson.dumps(body), status=status, content_type=_PROBLEM)
