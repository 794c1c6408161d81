"""The part of the control API that deals with fences: looked at, checked, raised, settled, sealed."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gateway.core.keys import FencingKey, Ruleset, Token
from gateway.server.control.access import Access, may_use
from gateway.server.control.asked import asked, limit_of
from gateway.server.control.documents import json_answer, moment, number
from gateway.server.control.problems import Problem
from gateway.service.fences import Fences
from gateway.service.waits import PendingHandOver, UnsettledSend
from gateway.stores.base import Event, EventKind, Fence
from gateway.telemetry import Telemetry


class FenceCalls:
    """Its handlers."""

    def __init__(
        self, fences: Fences, telemetry: Telemetry, rules: Ruleset, open_uploads: Callable[[str], int]
    ) -> None:
        """`open_uploads` tells how many uploads of a key are open, or still to be aborted."""
        self._fences = fences
        self._store = fences.store
        self._telemetry = telemetry
        self._rules = rules
        self._open_uploads = open_uploads

    def routes(self, access: Access) -> list[web.RouteDef]:
        """The routes."""
        self._access = access
        return [
            web.get("/v1/fences", self.list_fences),
            web.get("/v1/fences/{key}", self.show_fence),
            web.get("/v1/fences/{key}/events", self.events),
            web.post("/v1/fences/{key}/check", self.check),
            web.post("/v1/fences/{key}/raise", self.raise_floor),
            web.post("/v1/fences/{key}/settle", self.settle),
            web.post("/v1/fences/{key}/seal", self.seal),
        ]

    async def list_fences(self, request: web.Request) -> web.StreamResponse:
        """Known keys in order; pages by cursor."""
        caller = self._access.caller(request)
        limit = limit_of(request)
        fences = await self._store.fences(request.query.get("after"), limit, request.query.get("prefix", ""))
        shown = [_fence(fence) for fence in fences if may_use(caller, fence.key)]
        return json_answer({"fences": shown, "next": fences[-1].key if len(fences) == limit else None})

    async def show_fence(self, request: web.Request) -> web.StreamResponse:
        """One key: floors, what is unsettled, and what its hand-over waits for."""
        return json_answer(await self._shown(self._access.key(request)))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """One key's history, newest first; pages by cursor."""
        key = self._access.key(request)
        limit = limit_of(request)
        before = request.query.get("before")
        if before is not None and not before.isdecimal():
            raise Problem(400, "invalid", "`before` is the `next` of an earlier page")
        events = await self._store.events(key, int(before) if before else None, limit)
        shown = [event_document(event) for event in events]
        return json_answer({"events": shown, "next": str(events[-1].serial) if len(events) == limit else None})

    async def check(self, request: web.Request) -> web.StreamResponse:
        """For effects outside S3: the token is recorded, and nothing lower can take effect any more (R3). It is held to
        the limits of its key's rules like a write (R10)."""
        key = self._access.key(request)
        said = await asked(request, token=True)
        request_id = request.headers.get("X-Request-Id", "")
        limits = self._rules.limits_of(key)
        live = await self._fences.admit(key, said.named, cause="check", request_id=request_id, limits=limits)
        self._fences.unpin(live)
        return json_answer({"key": key, "token": number(said.named), "floor": number(live.gate.floor)})

    async def raise_floor(self, request: web.Request) -> web.StreamResponse:
        """An operator's hand-over: lower tokens are shut out from now on. No limit of a rule holds here (R10)."""
        key = self._access.key(request, operator=True)
        said = await asked(request, token=True, reason=True)
        self._telemetry.event("operator-raises", fence_key=key, token=said.named, reason=said.reason)
        live = await self._fences.admit(key, said.named, cause=f"operator: {said.reason}")
        self._fences.unpin(live)
        return json_answer(await self._shown(key))

    async def settle(self, request: web.Request) -> web.StreamResponse:
        """What is in doubt counts as settled, on the operator's word (R5). Nothing in doubt: nothing is done."""
        key = self._access.key(request, operator=True)
        said = await asked(request, reason=True)
        settled = await self._fences.settle(key, said.token, said.reason)
        awaited = [s for s in self._fences.unsettled(key) if said.token in (None, s.token)]
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
        key = self._access.key(request, operator=True)
        said = await asked(request, reason=True)
        fence = await self._fences.state(key)
        floor = fence.floor
        if not floor:
            raise Problem(404, "not-found", f"{key!r} has no floor: no token has been seen for it", key=key)
        token = Token(floor) if said.token is None else said.token
        if token < floor:
            told = f"Token {token} holds {key!r} no more, {floor} does: {token} is refused already, nothing was sealed."
            raise Problem(412, "stale", told, key=key, floor=number(floor))
        if token > floor:
            told = f"Token {token} does not hold {key!r}: its floor is {floor}. Raise the floor to it first."
            raise Problem(409, "not-held", told, key=key, floor=number(floor))
        if fence.sealed_token != floor:
            event = Event(key, EventKind.SEALED, token, floor, f"operator: {said.reason}")
            await self._fences.seal(key, token, event)
            self._telemetry.event("operator-seals", fence_key=key, token=token, reason=said.reason)
        return json_answer(await self._shown(key))

    async def _shown(self, key: FencingKey) -> dict[str, object]:
        """All that is known of one key."""
        fence = await self._fences.state(key)
        pending = await self._fences.pending_of(key)
        return _fence(fence) | {
            "open_uploads": self._open_uploads(key),
            "unsettled": [_unsettled(send) for send in self._fences.unsettled(key)],
            "handover": None if pending is None else self._handover(pending, fence),
            "earlier_run_settles_in_s": self._fences.earlier_run_settles_in_s(key),
        }

    def _handover(self, pending: PendingHandOver, fence: Fence) -> dict[str, object]:
        return {
            "token": number(pending.token),
            "since": moment(fence.raised_at),
            "latest": moment(self._fences.clock.wall() + pending.latest_in_s),
            "latest_in_s": pending.latest_in_s,
            "requests": pending.requests,
            "sends": [_unsettled(send) for send in pending.sends],
        }


def _fence(fence: Fence) -> dict[str, object]:
    return {
        "key": fence.key,
        "floor": number(fence.floor),
        "completed_floor": number(fence.completed_floor),
        "sealed": fence.floor > 0 and fence.sealed_token == fence.floor,
        "shadow_floor": number(fence.shadow_floor),
        "raised_at": moment(fence.raised_at),
    }


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


def event_document(event: Event) -> dict[str, object]:
    return {
        "at": moment(event.at),
        "kind": event.kind.value,
        "token": number(event.token),
        "floor": number(event.floor),
        "detail": event.detail,
        "request_id": event.request_id,
        "count": event.count,
    }
