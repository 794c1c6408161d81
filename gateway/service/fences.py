"""Runs the gates: admission, durable raises, hand-overs that are waited for, sends and how they settle (R1, R3, R5).

All decisions are `gateway.core.gate`'s. Here they meet the store, the clock and the tasks that wait for them.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType

from gateway.clock import Clock
from gateway.core.errors import Reason, TryAgain
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import UNLIMITED, FencingKey, Token, TokenLimits
from gateway.core.write import Phase, Signal
from gateway.service.objects import ObjectEntry
from gateway.service.refusals import contested, store_unavailable
from gateway.stores.base import Event, EventKind, Fence, Store, StoreUnavailable

Bound = tuple[str, str, str]
"""Fence key, bucket and object of an upload, or of a copy, that an earlier run had open."""
MAX_IDLE_GATES = 65536
MIN_WAIT_S = 0.001
"""A timer may fire a hair before its moment; who looks again at once would spin until then."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The fence's time-outs, in seconds."""

    settle_timeout_s: float = 30
    settle_timeout_assembly_s: float = 300
    handover_wait_s: float = 20
    commit_timeout_s: float = 60
    commit_timeout_assembly_s: float = 600


@dataclass(frozen=True, slots=True)
class UnsettledSend:
    """A send that may still land, for people who ask what a hand-over waits for."""

    token: int
    phase: str
    bucket: str
    object_key: str
    request_id: str
    settles_in_s: float | None
    """Seconds until it is settled by time-out; None while its answer is still awaited."""


class LiveGate:
    """A gate with those who wait at it. Never forgotten while pinned."""

    __slots__ = ("_changed", "gate", "passages", "pins", "raised_at")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.pins = 0
        self.passages: dict[Send, Passage] = {}
        self.raised_at = 0.0
        """When the floor last rose in this run, monotonic seconds."""
        self._changed: asyncio.Event | None = None

    def wake(self) -> None:
        """Let those who wait look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change, at most `timeout_s`."""
        if self._changed is None:
            self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def cancel_overtaken(self, sends: Iterable[Send]) -> None:
        for send in sends:
            self.passages[send].cancel()
        self.wake()


class Passage:
    """One send's way through its gate, as a context: staged inside, committed by `commit`, settled on leaving.

    When a higher token overtakes the send while it is staged, the task inside is interrupted and the context ends in
    the gate's refusal. A send that is left in mid-commit without a word is in doubt."""

    __slots__ = ("_cancelled", "_entry", "_fences", "_live", "_send", "_task", "on_settled", "request_id")

    def __init__(
        self, fences: Fences, live: LiveGate, entry: ObjectEntry, token: Token, settle_timeout_s: float, request_id: str
    ) -> None:
        self._fences = fences
        self._live = live
        self._entry = entry
        self._send = live.gate.stage(token, settle_timeout_s)
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self.request_id = request_id
        self.on_settled: Callable[[], None] | None = None
        live.passages[self._send] = self

    def __enter__(self) -> Passage:
        self._task = asyncio.current_task()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._send.phase is Phase.STAGED:
            self._settle(Signal.ABANDON)
        elif self._send.phase is Phase.COMMITTING:
            self.lost()
        if self._cancelled and self._task is not None:
            if self._task.uncancel() > 0:
                return  # the task itself is being ended, too
            self._live.gate.refuse_overtaken(self._send.token)

    def cancel(self) -> None:
        """Interrupt the staged send: it has been overtaken."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def commit(self) -> None:
        """Pass the commit point. What completes the request must be sent before the next await.

        Raises `Refused` when overtaken, `TryAgain` while a send of another key may still land on the object."""
        gate = self._live.gate
        gate.refuse_overtaken(self._send.token)
        if self._entry.contested(gate.key):
            raise contested(gate.key, self._fences.timing.settle_timeout_s)
        gate.enter(self._send)
        self._entry.begin(gate.key)

    def applied(self) -> None:
        self._settle(Signal.APPLIED)

    def refused(self) -> None:
        self._settle(Signal.REFUSED)

    def not_sent(self) -> None:
        """The request was never sent whole: before the commit point the send is abandoned, after it, refused."""
        if self._send.phase is Phase.COMMITTING:
            self._settle(Signal.REFUSED)

    @property
    def committed(self) -> bool:
        """Past the commit point and not settled."""
        return self._send.phase is Phase.COMMITTING

    def lost(self) -> None:
        """The answer is lost: in doubt until the nonce is seen or the settle time-out has passed."""
        self._live.gate.lost(self._send, self._fences.clock.monotonic())
        self._fences.in_doubt(self._live, self._send, self)

    def nonce_seen(self) -> None:
        """The object bears this send's nonce."""
        if self._send.phase is Phase.IN_DOUBT:
            self._settle(Signal.NONCE_SEEN)

    @property
    def doubtful(self) -> bool:
        return self._send.phase is Phase.IN_DOUBT

    def _settle(self, signal: Signal) -> None:
        committed = self._send.unsettled
        self._live.gate.settle(self._send, signal)
        self.settled(committed)

    def settled(self, committed: bool = True) -> None:
        """The gate has settled the send: leave the ledgers and wake who waits."""
        self._live.passages.pop(self._send, None)
        if self.on_settled is not None:
            self.on_settled()
        if committed:
            self._entry.end(self._live.gate.key)
            self._live.wake()

    def describe(self, now: float) -> UnsettledSend:
        doubtful = self._send.phase is Phase.IN_DOUBT
        return UnsettledSend(
            token=self._send.token,
            phase="in-doubt" if doubtful else "committing",
            bucket=self._entry.bucket,
            object_key=self._entry.key,
            request_id=self.request_id,
            settles_in_s=max(0.0, self._send.settles_at - now) if doubtful else None,
        )


class Fences:
    """All gates of one gateway."""

    def __init__(self, store: Store, clock: Clock, timing: Timing) -> None:
        self.store = store
        self.clock = clock
        self.timing = timing
        self.settled_by_timeout = 0
        self._live: OrderedDict[FencingKey, LiveGate] = OrderedDict()
        self._loading: dict[FencingKey, asyncio.Task[Fence]] = {}
        self._unsettled_until = -math.inf
        self._keys_with_uploads: frozenset[str] = frozenset()
        self._objects_with_uploads: frozenset[tuple[str, str]] = frozenset()
        self._unsettled_uploads_until = -math.inf
        self.on_progress: Callable[[FencingKey], None] = lambda key: None
        """Called when a floor has risen, and when its hand-over is complete: uploads below it are to be aborted."""

    def started_unclean(self, bound: frozenset[Bound]) -> None:
        """What an earlier run sent may still land: tokens above the completed floors wait for it (R5), and so does who
        takes an object over."""
        now = self.clock.monotonic()
        self._unsettled_until = now + self.timing.settle_timeout_s
        self._unsettled_uploads_until = now + self.timing.settle_timeout_assembly_s
        self._keys_with_uploads = frozenset(key for key, _, _ in bound)
        self._objects_with_uploads = frozenset((bucket, object_key) for _, bucket, object_key in bound)

    def earlier_run_settles_in_s(self, key: FencingKey) -> float | None:
        """How long what an earlier run sent under `key` may still land, seconds; None when nothing may."""
        left = self._unsettled_until_of(key) - self.clock.monotonic()
        return left if left > 0 else None

    def object_settles_in_s(self, bucket: str, object_key: str) -> float | None:
        """How long what an earlier run sent on an object, under whatever key, may still land, seconds; None when
        nothing may."""
        longer = (bucket, object_key) in self._objects_with_uploads
        left = (self._unsettled_uploads_until if longer else self._unsettled_until) - self.clock.monotonic()
        return left if left > 0 else None

    def _unsettled_until_of(self, key: FencingKey) -> float:
        return self._unsettled_uploads_until if key in self._keys_with_uploads else self._unsettled_until

    @property
    def earlier_run_unsettled(self) -> bool:
        """Whether something that an earlier run sent may still land: then this run's stop is not clean either."""
        until = max(self._unsettled_until, self._unsettled_uploads_until if self._keys_with_uploads else -math.inf)
        return self.clock.monotonic() < until

    async def admit(
        self,
        key: FencingKey,
        token: Token,
        *,
        cause: str,
        request_id: str = "",
        wait_s: float | None = None,
        limits: TokenLimits = UNLIMITED,
    ) -> LiveGate:
        """Admit (key, token): the floor is durable and the hand-over complete when this returns, and the gate is pinned
        until `unpin`. `cause` goes into the key's history; `wait_s` bounds the wait for a hand-over in place of
        `handover_wait_s`. Raises `Refused`, `Malformed` (TokenJump), or `TryAgain` (HandoverPending,
        StoreUnavailable)."""
        live = self._live.get(key)
        if live is None:
            live = await self._load(key)
        live.pins += 1
        try:
            admission = live.gate.admit(token, limits)
            if admission is Admission.RAISE:
                await self._raise(live, token, cause, request_id)
            if admission is not Admission.GO:
                await self._hand_over(live, token, self.timing.handover_wait_s if wait_s is None else wait_s)
        except BaseException:
            self.unpin(live)
            raise
        return live

    def unpin(self, live: LiveGate) -> None:
        live.pins -= 1
        if len(self._live) > MAX_IDLE_GATES:
            self._forget_idle()

    async def learn(self, live: LiveGate, token: int, cause: str, request_id: str) -> None:
        """An object bears a higher token than the floor: raise the floor to it, durably. Raises `TryAgain`."""
        await self._raise(live, Token(token), cause, request_id)

    async def seal(self, key: FencingKey, token: Token, event: Event) -> Fence:
        """Seal (key, token) durably: from now on it is refused like a lower one."""
        live = await self.admit(key, token, cause="seal", request_id=event.request_id)
        try:
            fence = await self._stored(self.store.seal(key, token, event))
            live.cancel_overtaken(live.gate.raised(fence.floor, fence.sealed_token))
        finally:
            self.unpin(live)
        return fence

    async def state(self, key: FencingKey) -> Fence:
        """The state of a key, without raising anything; a completed floor counts that is still on its way to disk."""
        fence = await self._fence(key)
        live = self._live.get(key)
        return fence if live is None else replace(fence, completed_floor=live.gate.completed_floor)

    async def handed_over(self, key: FencingKey) -> int | None:
        """The floor of a key if its hand-over is complete, or can be completed now; else None. Raises `TryAgain`."""
        live = self._live.get(key) or await self._load(key)
        gate, now = live.gate, self.clock.monotonic()
        self._expire(live)
        if gate.completed_floor < gate.floor:
            if gate.sealed_token == gate.floor or gate.hand_over(Token(gate.floor), now) is not None:
                return None
            self._handed_over(live)
        return gate.floor

    def _handed_over(self, live: LiveGate) -> None:
        self.store.complete_handover(live.gate.key, live.gate.completed_floor)
        live.wake()
        self.on_progress(live.gate.key)

    def unsettled(self, key: FencingKey | None = None) -> list[UnsettledSend]:
        """The sends that may still land, of one key or of all."""
        now = self.clock.monotonic()
        gates = self._live.values() if key is None else filter(None, [self._live.get(key)])
        return [live.passages[send].describe(now) for live in gates for send in live.gate.unsettled()]

    def in_doubt(self, live: LiveGate, send: Send, passage: Passage) -> None:
        """A send's answer is lost. Its settling by time-out is waited for even if nobody else does."""
        description = passage.describe(self.clock.monotonic())
        self.store.record(self._event(live, EventKind.IN_DOUBT, description))
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
            self.settled_by_timeout += 1
            self.store.record(self._event(live, EventKind.SETTLED_BY_TIMEOUT, passage.describe(now)))
            passage.settled()

    def _event(self, live: LiveGate, kind: EventKind, send: UnsettledSend) -> Event:
        return Event(
            live.gate.key, kind, send.token, live.gate.floor, f"{send.bucket}/{send.object_key}", send.request_id
        )

    async def _load(self, key: FencingKey) -> LiveGate:
        # One load at a time for a key: two could leave a writer with a gate that is not the one in the table.
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._fence(key))
            task.add_done_callback(lambda done: self._loaded(key, done))
        fence = await asyncio.shield(task)
        live = self._live.get(key)
        if live is None:
            until = self._unsettled_until_of(key)
            gate = Gate(key, fence.floor, fence.completed_floor, fence.sealed_token, until)
            live = self._live[key] = LiveGate(gate)
        return live

    def _loaded(self, key: FencingKey, task: asyncio.Task[Fence]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has been told; nobody may have

    async def _raise(self, live: LiveGate, token: Token, cause: str, request_id: str) -> None:
        gate = live.gate
        event = Event(gate.key, EventKind.RAISED, token, gate.floor, cause, request_id)
        # Shielded: a caller that goes away must not leave the gate behind the store.
        await asyncio.shield(asyncio.ensure_future(self._raise_durably(live, token, event)))

    async def _raise_durably(self, live: LiveGate, token: Token, event: Event) -> None:
        live.pins += 1
        try:
            fence = await self._stored(self.store.raise_floor(live.gate.key, token, event))
            live.raised_at = self.clock.monotonic()
            live.cancel_overtaken(live.gate.raised(fence.floor, fence.sealed_token))
            self.on_progress(live.gate.key)
        finally:
            self.unpin(live)

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
                        detail = f"after {now - (live.raised_at or now):.1f} s for lower tokens to settle"
                        self.store.record(Event(live.gate.key, EventKind.HANDED_OVER, token, live.gate.floor, detail))
                return
            if now >= deadline:
                raise self._handover_pending(live, token, until - now)
            waited = True
            await live.changed(max(min(until, deadline) - now, MIN_WAIT_S))

    def _handover_pending(self, live: LiveGate, token: Token, wait_s: float) -> TryAgain:
        sends = [s for s in self.unsettled(live.gate.key) if s.token < token]
        shown = "; ".join(f"token {s.token} on {s.bucket}/{s.object_key}, {s.phase}" for s in sends[:3])
        return TryAgain(
            Reason.HANDOVER_PENDING,
            f"The hand-over of {live.gate.key!r} to token {token} waits until nothing that a lower token has sent can "
            f"take effect any more ({shown or 'sent before the gateway started'}). Token {token} holds the floor "
            "already: lower ones are refused. Send the request again.",
            key=live.gate.key,
            token=token,
            floor=live.gate.floor,
            retry_after_s=min(max(wait_s, 1.0), self.timing.settle_timeout_s),
        )

    async def _fence(self, key: FencingKey) -> Fence:
        return await self._stored(self.store.fence(key))

    async def _stored(self, call: asyncio.Future[Fence] | object) -> Fence:
        try:
            return await call  # type: ignore[misc,no-any-return]
        except StoreUnavailable as error:
            raise store_unavailable(error) from error

    def _forget_idle(self) -> None:
        for _ in range(8):
            key, live = self._live.popitem(last=False)
            if live.pins or not live.gate.idle:
                self._live[key] = live
            elif len(self._live) <= MAX_IDLE_GATES:
                return
