"""The part of the control API that deals with fences: looked at, checked, raised, settled, sealed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from gateway.core.keys import FencingKey, Ruleset, Token, token_in_json
from gateway.server.control.asked import REQUEST_ID
from gateway.server.control.calls import Ask, Call, Role
from gateway.server.control.documents import KeyGiven
from gateway.server.control.fence_documents import (
    Check,
    Checked,
    EventPage,
    EventsAsked,
    FencePage,
    FencesAsked,
    FenceShown,
    HandoverShown,
    KeyShown,
    LeaseHeldShown,
    Raise,
    Seal,
    SendShown,
    Settle,
    SettledShown,
)
from gateway.server.control.history import EventShown
from gateway.server.control.pages import page_of
from gateway.server.control.problems import Problem
from gateway.service.fences import Fences
from gateway.service.leases import Lease
from gateway.service.waits import PendingHandOver
from gateway.stores.values import Event, EventKind, Fence
from gateway.telemetry import Telemetry

LeaseOf = Callable[[FencingKey], Awaitable[Lease | None]]


async def no_lease(key: FencingKey) -> None:
    """Where there are no leases."""


class FenceCalls:
    """Its handlers."""

    def __init__(
        self,
        fences: Fences,
        telemetry: Telemetry,
        rules: Ruleset,
        open_uploads: Callable[[str], int],
        lease_of: LeaseOf,
    ) -> None:
        """`open_uploads` tells how many uploads of a key are open, or still to be aborted; `lease_of` who holds it."""
        self._fences = fences
        self._store = fences.store
        self._telemetry = telemetry
        self._rules = rules
        self._open_uploads = open_uploads
        self._lease_of = lease_of

    def calls(self) -> list[Call]:
        """What each is."""
        of_key = "/v1/fences/{key}"
        return [
            Call("GET", "/v1/fences", self.list_fences),
            Call("GET", of_key, self.show_fence),
            Call("GET", f"{of_key}/events", self.events),
            Call(
                "POST",
                f"{of_key}/check",
                self.check,
                refuses=("TokenNotIssued", "TokenJump", "stale", "HandoverPending"),
                headers=(REQUEST_ID,),
            ),
            Call("POST", f"{of_key}/raise", self.raise_floor, Role.OPERATOR, refuses=("stale", "HandoverPending")),
            Call("POST", f"{of_key}/settle", self.settle, Role.OPERATOR, refuses=("committing",)),
            Call("POST", f"{of_key}/seal", self.seal, Role.OPERATOR, refuses=("not-found", "not-held", "stale")),
        ]

    async def list_fences(self, ask: Ask, query: FencesAsked) -> FencePage:
        """Known keys in order; pages by cursor."""
        read = partial(self._store.fences, prefix=query.prefix)
        fences, following = await page_of(read, ask.caller, query.after, query.limit)
        return FencePage(fences=[FenceShown.of(fence) for fence in fences], next=following)

    async def show_fence(self, key: KeyGiven) -> KeyShown:
        """One key: floors, what is unsettled, and what its hand-over waits for."""
        return await self._known(key)

    async def events(self, key: KeyGiven, query: EventsAsked) -> EventPage:
        """One key's history, newest first; pages by cursor."""
        events = await self._store.events(key, int(query.before) if query.before else None, query.limit)
        shown = [EventShown.of(event) for event in events]
        return EventPage(events=shown, next=str(events[-1].serial) if len(events) == query.limit else None)

    async def check(self, ask: Ask, key: KeyGiven, body: Check) -> Checked:
        """For effects outside S3: the token is recorded, and nothing lower can take effect any more (R3). It is held to
        the limits of its key's rules like a write (R10)."""
        request_id = ask.headers.get(REQUEST_ID.name, "")
        limits = self._rules.limits_of(key)
        live = await self._fences.admit(key, body.token, cause="check", request_id=request_id, limits=limits)
        self._fences.unpin(live)
        return Checked(key=key, token=body.token, floor=live.gate.floor)

    async def raise_floor(self, key: KeyGiven, body: Raise) -> KeyShown:
        """An operator's hand-over: lower tokens are shut out from now on. No limit of a rule holds here (R10)."""
        fence = await self._fences.state(key)
        if body.token < fence.floor:
            told = f"The floor of {key!r} is {fence.floor} already, and never falls: nothing was raised."
            raise Problem(412, "stale", told, key=key, floor=token_in_json(fence.floor))
        if body.token == fence.sealed_token:
            told = f"Token {body.token} of {key!r} is sealed: nothing was raised. A higher one may hold it."
            raise Problem(412, "stale", told, key=key, floor=token_in_json(fence.floor))
        cause = f"operator: {body.reason}"
        if await self._fences.raise_floor(key, body.token, cause) < body.token:
            self._telemetry.event("operator-raises", fence_key=key, token=body.token, reason=body.reason)
        live = await self._fences.admit(key, body.token, cause=cause, issued=True)
        self._fences.unpin(live)
        return await self._known(key)

    async def settle(self, key: KeyGiven, body: Settle) -> SettledShown:
        """What is in doubt counts as settled, on the operator's word (R5). Nothing in doubt: nothing is done."""
        settled = await self._fences.settle(key, body.token, body.reason)
        awaited = [s for s in self._fences.unsettled(key) if body.token in (None, s.token)]
        if awaited and not settled:
            shown = "; ".join(map(str, awaited[:3]))
            raise Problem(
                409,
                "committing",
                f"Of {key!r} nothing is in doubt: the store's answers are still awaited ({shown}), and it may apply "
                "what it has been sent. Each comes, or is in doubt, within the commit time-out.",
                key=key,
            )
        known = await self._known(key)
        return SettledShown(**known.__dict__, settled=[SendShown.of(send) for send in settled])

    async def seal(self, key: KeyGiven, body: Seal) -> KeyShown:
        """Shut out the token that holds the floor, too; where a token is named, only if that one holds it."""
        fence = await self._fences.state(key)
        floor = fence.floor
        if not floor:
            raise Problem(404, "not-found", f"{key!r} has no floor: no token has been seen for it", key=key)
        token = Token(floor) if body.token is None else body.token
        if token < floor:
            told = f"Token {token} holds {key!r} no more, {floor} does: {token} is refused already, nothing was sealed."
            raise Problem(412, "stale", told, key=key, floor=token_in_json(floor))
        if token > floor:
            told = f"Token {token} does not hold {key!r}: its floor is {floor}. Raise the floor to it first."
            raise Problem(409, "not-held", told, key=key, floor=token_in_json(floor))
        if fence.sealed_token != floor:
            event = Event(key, EventKind.SEALED, token, floor, f"operator: {body.reason}")
            await self._fences.seal(key, token, event)
            self._telemetry.event("operator-seals", fence_key=key, token=token, reason=body.reason)
        return await self._known(key)

    async def _known(self, key: FencingKey) -> KeyShown:
        """All that is known of one key."""
        fence = await self._fences.state(key)
        pending = await self._fences.pending_of(key)
        lease = await self._lease_of(key)
        return KeyShown(
            **FenceShown.of(fence).__dict__,
            lease=None if lease is None else LeaseHeldShown.of(lease),
            open_uploads=self._open_uploads(key),
            unsettled=[SendShown.of(send) for send in self._fences.unsettled(key)],
            handover=None if pending is None else self._handover(pending, fence),
            earlier_run_settles_in_s=self._fences.earlier_run.settles_in_s(key),
        )

    def _handover(self, pending: PendingHandOver, fence: Fence) -> HandoverShown:
        return HandoverShown(
            token=pending.token,
            since=fence.raised_at,
            latest=self._fences.clock.wall() + pending.latest_in_s,
            latest_in_s=pending.latest_in_s,
            requests=pending.requests,
            sends=[SendShown.of(send) for send in pending.sends],
        )
