"""Runs the gates: admission, durable raises, hand-overs that are waited for, sends and how they settle (R1, R3, R5).

All decisions are `gateway.core.gate`'s. Here they meet the store, the clock and the tasks that wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import structlog

from gateway.clock import Clock
from gateway.core.errors import FenceError, TryAgain
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import MAX_TOKEN, UNLIMITED, FencingKey, Token, TokenLimits
from gateway.core.write import Phase
from gateway.service.alarms import MIN_WAIT_S
from gateway.service.beside import answer_of
from gateway.service.earlier_run import EarlierRun
from gateway.service.gates import Gates, stored
from gateway.service.passages import LiveGate, Passage
from gateway.service.waits import (
    MOST_SENDS_TOLD,
    PendingHandOver,
    Timing,
    UnsettledSend,
    completion_pending,
    handover_pending,
)
from gateway.stores.base import Store
from gateway.stores.values import Event, EventKind, Fence, Granted

_log = structlog.get_logger(__name__)

T = TypeVar("T")
MOST_READS = 8
"""How often a state is read again that others have changed meanwhile."""


class Fences:
    """What happens at the gates of one gateway."""

    def __init__(self, store: Store, clock: Clock, timing: Timing) -> None:
        self.store = store
        self.clock = clock
        self.timing = timing
        self.earlier_run = EarlierRun(clock, timing)
        self.settled_by_timeout = 0
        self.settled_by_operator = 0
        self.gates = Gates(store, clock, self.earlier_run)
        self.unpin = self.gates.unpin
        """Called by whoever has been answered by `admit`, once his work at the gate is done."""
        self.before_commit: Callable[[str], None] = lambda bucket: None
        """Called with the bucket at each commit point; raises `TryAgain` where nothing fenced may be written there."""
        self.on_progress: Callable[[FencingKey], None] = lambda key: None
        """Called when a floor has risen, when its hand-over is complete, and when its token has been sealed: uploads
        that are over are to be aborted."""
        self.on_doubt: Callable[[FencingKey], None] = lambda key: None
        """Called when a floor may have risen, or been sealed: its state is to be looked at, as soon as it can be."""
        self.on_overtaken: Callable[[Gate], None] = lambda gate: None
        """Called when a floor has risen or been sealed: a lease below it is lost."""

    # --- raise a floor, and hand over

    async def admit(
        self,
        key: FencingKey,
        token: Token,
        *,
        cause: str,
        request_id: str = "",
        wait_s: float | None = None,
        limits: TokenLimits = UNLIMITED,
        issued: bool = False,
    ) -> LiveGate:
        """Admit (key, token): the floor is durable and the hand-over complete when this returns, and the gate is pinned
        until `unpin`. `cause` goes into the key's history; `wait_s` bounds the wait for a hand-over in place of
        `handover_wait_s`; `issued`: an operator vouches for the token. Raises `Refused`, `Malformed` (TokenNotIssued,
        TokenJump), or `TryAgain` (HandoverPending, StoreUnavailable)."""
        live = await self.gates.of(key)
        live.pins += 1
        try:
            admission = live.gate.admit(token, limits, issued=issued)
            if admission is Admission.RAISE:
                await self._raise(live, token, cause, request_id)
            if admission is not Admission.GO:
                await self._hand_over(live, token, self.timing.handover_wait_s if wait_s is None else wait_s)
        except BaseException:
            self.unpin(live)
            raise
        return live

    async def learn(self, live: LiveGate, token: int, cause: str, request_id: str) -> None:
        """An object bears a higher token than the floor: raise the floor to it, durably. Raises `TryAgain`."""
        await self._raise(live, Token(token), cause, request_id)

    async def found(self, key: FencingKey, token: Token, cause: str) -> int:
        """An object bears `token`. Else as `raise_floor`."""
        return await self.raise_floor(key, token, cause, EventKind.FOUND)

    async def raise_floor(self, key: FencingKey, token: Token, cause: str, kind: EventKind = EventKind.RAISED) -> int:
        """The floor is at least `token` from now on, durably; nothing is waited for. Answers the floor of before.
        Raises `TryAgain` (StoreUnavailable)."""
        live = await self.gates.of(key)
        live.pins += 1
        try:
            floor = live.gate.floor
            if token > floor:
                await self._raise(live, token, cause, "", kind)
        finally:
            self.unpin(live)
        return floor

    async def _raise(
        self, live: LiveGate, token: Token, cause: str, request_id: str, kind: EventKind = EventKind.RAISED
    ) -> None:
        gate = live.gate
        event = Event(gate.key, kind, token, gate.floor, cause, request_id)
        await answer_of(asyncio.ensure_future(self._raise_durably(live, token, event)))

    async def _raise_durably(self, live: LiveGate, token: Token, event: Event) -> None:
        live.pins += 1
        try:
            fence = await self._decided(live, self.store.raise_floor(live.gate.key, token, event))
            live.raised_at = self.clock.monotonic()
            self._learn(live, fence)
            self.on_progress(live.gate.key)
        finally:
            self.unpin(live)

    async def grant(self, key: FencingKey, call: Callable[[], Awaitable[Granted]]) -> Granted:
        """Have the store grant a lease: from then on all lower tokens are refused. The hand-over is not awaited here,
        but by `admit`. Raises `TryAgain` (StoreUnavailable). The caller sees to it that it is not cancelled."""
        live = await self.gates.of(key)
        live.pins += 1
        try:
            granted = await self._decided(live, call())
            if granted.token:
                live.raised_at = self.clock.monotonic()
                live.gate.granted(granted.token)
                self._learn(live, granted.fence)
                self.on_progress(live.gate.key)
            else:
                granted = replace(granted, fence=await self._up_to_date(granted.fence))
        finally:
            self.unpin(live)
        return granted

    async def _hand_over(self, live: LiveGate, token: Token, wait_s: float) -> None:
        deadline = self.clock.monotonic() + wait_s
        waited = False
        while True:
            now = self.clock.monotonic()
            self._expire(live)
            already = token <= live.gate.completed_floor
            until = live.gate.hand_over(token, now)
            if until is None:
                if not already:
                    self._handed_over(live)
                    if waited:
                        self._tell_handed_over(live, token, now - live.raised_at)
                return
            self._tell_waiting(live, token)
            if now >= deadline:
                wait_s = min(until - now, self.timing.settle_timeout_s)
                raise handover_pending(live.gate.key, token, self._lower(live, token), wait_s)
            waited = True
            live.waiting += 1
            try:
                await live.changed(max(min(until, deadline) - now, MIN_WAIT_S))
            finally:
                live.waiting -= 1

    def _handed_over(self, live: LiveGate) -> None:
        self.store.complete_handover(live.gate.key, live.gate.completed_floor)
        live.wake()
        self.on_progress(live.gate.key)

    def _tell_waiting(self, live: LiveGate, token: Token) -> None:
        """Tell the log that a hand-over has to wait: once for each, however many wait for it."""
        if live.told < token and (pending := self._pending(live)) is not None:
            live.told = token
            _log.warning(
                "handover-waits",
                fence_key=live.gate.key,
                token=token,
                sends=[str(send) for send in pending.sends[:MOST_SENDS_TOLD]],
                unsettled=len(pending.sends),
                latest_in_s=round(pending.latest_in_s, 3),
            )

    def _tell_handed_over(self, live: LiveGate, token: Token, waited_s: float) -> None:
        detail = f"after {waited_s:.1f} s for lower tokens to settle"
        self.store.record(Event(live.gate.key, EventKind.HANDED_OVER, token, live.gate.floor, detail))
        _log.info("handed-over", fence_key=live.gate.key, token=token, waited_s=round(waited_s, 3))

    # --- seal, and close

    async def seal(self, key: FencingKey, token: Token, event: Event) -> Fence:
        """Seal (key, token), the floor, durably: from now on it is refused like a lower one. Waits for nothing: what of
        it is past its commit point may still land. Raises `Refused` where it holds the key no more, `TryAgain`."""
        return await self.end(key, token, lambda: self.store.seal(key, token, event))

    async def end(self, key: FencingKey, token: Token, call: Callable[[], Awaitable[Fence]]) -> Fence:
        """The same where `call` is what has the store seal it, together with whatever belongs to that."""
        live = await self.gates.of(key)
        live.gate.refuse_overtaken(token)
        live.pins += 1
        # A caller that goes away must not leave the gate behind the store.
        return await answer_of(asyncio.ensure_future(self._end_durably(live, call)))

    async def _end_durably(self, live: LiveGate, call: Callable[[], Awaitable[Fence]]) -> Fence:
        try:
            fence = await self._decided(live, call())
            self._learn(live, fence)
            self.on_progress(live.gate.key)
        finally:
            self.unpin(live)
        return fence

    @asynccontextmanager
    async def closed(self, key: FencingKey, token: Token) -> AsyncIterator[None]:
        """Inside, no send of `token` passes its commit point, and nothing that has been sent can still take effect
        (R3). Raises `Refused` where it holds the key no more, `TryAgain` (HandoverPending, StoreUnavailable)."""
        live = await self.gates.of(key)
        live.gate.close(token)
        live.pins += 1
        try:
            await self._quiet(live, token)
            yield
        finally:
            live.gate.open()
            self.unpin(live)

    async def _quiet(self, live: LiveGate, token: Token) -> None:
        deadline = self.clock.monotonic() + self.timing.handover_wait_s
        while True:
            now = self.clock.monotonic()
            self._expire(live)
            live.gate.refuse_overtaken(token)
            until = live.gate.quiet(now)
            if until is None:
                return
            if now >= deadline:
                sends = self._lower(live, token + 1)
                raise completion_pending(live.gate.key, token, sends, min(until - now, self.timing.settle_timeout_s))
            await live.changed(max(min(until, deadline) - now, MIN_WAIT_S))

    # --- look

    async def state(self, key: FencingKey) -> Fence:
        """The state of a key, without raising anything; a completed floor counts that is still on its way to disk."""
        return await self._up_to_date(await self.gates.fence(key))

    async def _up_to_date(self, fence: Fence) -> Fence:
        """The state of a key as it is now; `fence` may have been read before what has been committed since."""
        key = FencingKey(fence.key)
        for _ in range(MOST_READS):
            live = self.gates.get(key)
            if live is None:
                return fence
            gate = live.gate
            if (fence.floor, fence.sealed_token) >= (gate.floor, gate.sealed_token):
                self._catch_up(live, fence)
                return replace(fence, completed_floor=gate.completed_floor)
            fence = await self.gates.fence(key)
        return fence

    def _catch_up(self, live: LiveGate, fence: Fence) -> None:
        """Let the gate know what is durable: it is behind where the store has failed after it had done its part."""
        gate = live.gate
        gate.granted(fence.granted_token)
        if fence.floor > gate.floor:
            live.raised_at = self.clock.monotonic()
            self._learn(live, fence)
            self.on_progress(gate.key)
        elif fence.sealed_token > gate.sealed_token:
            self._learn(live, fence)

    async def ended_below(self, key: FencingKey) -> int | None:
        """Tokens below this have been overtaken or sealed, and nothing of theirs can land any more; None while the
        hand-over to the floor is not complete, or what a sealed token has sent is not settled. Raises `TryAgain`."""
        live = await self.gates.of(key)
        gate, now = live.gate, self.clock.monotonic()
        self._expire(live)
        if gate.completed_floor < gate.floor:
            if gate.hand_over_floor(now) is not None:
                return None
            self._handed_over(live)
        if gate.sealed_token < gate.floor:
            return gate.floor
        return None if gate.quiet(now) is not None else min(gate.floor + 1, MAX_TOKEN)

    def pending(self) -> list[PendingHandOver]:
        """The hand-overs that have been asked for and that something lower holds up."""
        behind = [live for live in self.gates if live.gate.completed_floor < live.gate.floor]  # a few of many
        return list(filter(None, map(self._pending, behind)))

    async def pending_of(self, key: FencingKey) -> PendingHandOver | None:
        """What holds up the hand-over of a key to its floor; None if nothing does. Raises `TryAgain`."""
        return self._pending(await self.gates.of(key))

    def _pending(self, live: LiveGate) -> PendingHandOver | None:
        gate, now = live.gate, self.clock.monotonic()
        if gate.completed_floor >= gate.floor or gate.sealed_token == gate.floor:
            return None
        self._expire(live)
        sends = self._lower(live, gate.floor)
        latest_in_s = max([gate.unsettled_until - now, *(send.latest_in_s for send in sends)])
        if latest_in_s <= 0:
            return None
        return PendingHandOver(gate.floor, tuple(sends), live.waiting, now - live.raised_at, latest_in_s)

    def unsettled(self, key: FencingKey | None = None) -> list[UnsettledSend]:
        """The sends that may still land, of one key or of all."""
        now = self.clock.monotonic()
        gates = self.gates if key is None else filter(None, [self.gates.get(key)])
        busy = (live for live in gates if live.passages)  # a few of many
        return [live.passages[send].describe(now) for live in busy for send in live.gate.unsettled()]

    def _lower(self, live: LiveGate, token: int) -> list[UnsettledSend]:
        now = self.clock.monotonic()
        return [live.passages[send].describe(now) for send in live.gate.unsettled() if send.token < token]

    # --- settle

    async def settle(self, key: FencingKey, token: Token | None, reason: str) -> list[UnsettledSend]:
        """Settle, on an operator's word, what of `key` (and of `token`, if it is named) is in doubt; answers that,
        durably recorded. Raises `StoreUnavailable`: nothing has been settled, or else it is recorded as soon as the
        store can."""
        live = self.gates.get(key)
        if live is None:
            return []
        now = self.clock.monotonic()
        doubtful = {
            send: live.passages[send].describe(now)
            for send in live.gate.unsettled()
            if send.phase is Phase.IN_DOUBT and token in (None, send.token)
        }
        if not doubtful:
            return []
        live.pins += 1
        try:
            await self.store.check()  # what cannot be recorded is not done
            settled = live.gate.overrule(doubtful)
            for send in settled:
                told = doubtful[send]
                self.store.record(self._event(live, EventKind.SETTLED_BY_OPERATOR, told, f": {reason}"))
                _log.warning("settled-by-operator", **_told(live, told), reason=reason)
                self.settled_by_operator += 1
                live.passages[send].settled()
            await self.store.check()  # a durable write, which takes what is lazy along
        finally:
            self.unpin(live)
        return [doubtful[send] for send in settled]

    def cut_off(self, bucket: str, error: Callable[[], TryAgain]) -> None:
        """Reset the connections of all that is past its commit point in a bucket: it is in doubt from now on, and each
        client is told `error`."""
        for live in self.gates:
            for passage in live.passages.values():
                if passage.bucket == bucket:
                    passage.cut_off(error())

    def in_doubt(self, live: LiveGate, send: Send, passage: Passage) -> None:
        """A send's answer is lost. Its settling by time-out is waited for even if nobody else does."""
        description = passage.describe(self.clock.monotonic())
        self.store.record(self._event(live, EventKind.IN_DOUBT, description))
        _log.warning("in-doubt", **_told(live, description), settles_in_s=round(description.latest_in_s, 3))
        self._expire_when_due(live, send)
        live.wake()

    def _expire_when_due(self, live: LiveGate, send: Send) -> None:
        """Settle the send by time-out, whoever else looks: one timer for each, set again where it fires too early."""
        self._expire(live)
        if send.phase is Phase.IN_DOUBT:
            wait_s = max(send.settles_at - self.clock.monotonic(), MIN_WAIT_S)
            asyncio.get_running_loop().call_later(wait_s, self._expire_when_due, live, send)

    def _expire(self, live: LiveGate) -> None:
        now = self.clock.monotonic()
        for send in live.gate.expire(now):
            passage = live.passages[send]
            description = passage.describe(now)
            self.settled_by_timeout += 1
            self.store.record(self._event(live, EventKind.SETTLED_BY_TIMEOUT, description))
            _log.warning("settled-by-timeout", **_told(live, description))
            passage.settled()

    def _event(self, live: LiveGate, kind: EventKind, send: UnsettledSend, why: str = "") -> Event:
        return Event(live.gate.key, kind, send.token, live.gate.floor, send.place + why, send.request_id)

    # --- what the store has decided

    async def _decided(self, live: LiveGate, call: Awaitable[T]) -> T:
        """What the store decides. Where it fails it may have decided all the same: whoever looks at the state of the
        key next finds out, and that is not left to chance."""
        try:
            return await stored(call)
        except FenceError:
            self.on_doubt(live.gate.key)
            raise

    def _learn(self, live: LiveGate, fence: Fence) -> None:
        """What the store has made durable."""
        live.cancel_overtaken(live.gate.raised(fence.floor, fence.sealed_token))
        self.on_overtaken(live.gate)


def _told(live: LiveGate, send: UnsettledSend) -> dict[str, object]:
    """A send as the log names it."""
    return {"fence_key": live.gate.key, "token": send.token, "object": send.place, "request_id": send.request_id}
