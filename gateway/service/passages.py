"""The way of a send through its gate, and those who wait there (R3, R5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

from gateway.clock import Clock
from gateway.core.errors import TryAgain
from gateway.core.gate import Gate, Send
from gateway.core.keys import Token
from gateway.core.write import Phase, Signal
from gateway.service.objects import ObjectEntry
from gateway.service.refusals import contested
from gateway.service.waits import Timing, UnsettledSend


class Ledger(Protocol):
    """Who keeps the gates: `gateway.service.fences.Fences`."""

    @property
    def clock(self) -> Clock: ...

    @property
    def timing(self) -> Timing: ...

    @property
    def before_commit(self) -> Callable[[str], None]:
        """Called with the bucket at each commit point. Raises `TryAgain` where nothing fenced may be written there."""
        ...

    def in_doubt(self, live: LiveGate, send: Send, passage: Passage) -> None:
        """The send's answer is lost."""
        ...


class LiveGate:
    """A gate with those who wait at it. Never forgotten while pinned."""

    __slots__ = ("_changed", "gate", "passages", "pins", "raised_at", "told", "waiting")

    def __init__(self, gate: Gate, now: float) -> None:
        self.gate = gate
        self.pins = 0
        self.passages: dict[Send, Passage] = {}
        self.raised_at = now
        """When the floor last rose in this run, or the key was first asked for; monotonic seconds."""
        self.waiting = 0
        """How many requests wait for the hand-over to the floor."""
        self.told = 0
        """The token whose hand-over the log has been told to be waiting."""
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
        """End the way of sends that a higher token has overtaken while they were staged."""
        for send in sends:
            self.passages[send].cancel()
        self.wake()


class Passage:
    """One send's way through its gate, as a context: staged inside, committed by `commit`, settled on leaving.

    When a higher token overtakes the send while it is staged, the task inside is interrupted and the context ends in
    the gate's refusal. After the commit point `cut_off` interrupts it. A send that is left in mid-commit without a word
    is in doubt."""

    __slots__ = (
        "_cancelled", "_commit_s", "_committed_at", "_cut_off", "_entry", "_fences", "_live", "_send", "_task",
        "on_settled", "request_id",
    )  # fmt: skip

    def __init__(
        self, fences: Ledger, live: LiveGate, entry: ObjectEntry, token: Token, *, assembles: bool, request_id: str
    ) -> None:
        """`assembles`: it is a Complete or a copy, whose time-outs are the longer ones."""
        self._fences = fences
        self._live = live
        self._entry = entry
        self._send = live.gate.stage(token, fences.timing.settle_s(assembles=assembles))
        self._commit_s = fences.timing.commit_s(assembles=assembles)
        self._committed_at = 0.0
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self._cut_off: TryAgain | None = None
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
            if self._cut_off is not None:
                raise self._cut_off
            self._live.gate.refuse_overtaken(self._send.token)

    def cancel(self) -> None:
        """Interrupt the task inside. Where nothing else is said, the send has been overtaken while it was staged."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def cut_off(self, error: TryAgain) -> None:
        """If the answer is still awaited, give that up: the connection is reset, the send is in doubt, and the context
        ends in `error`."""
        if self.committed:
            self._cut_off = error
            self.cancel()

    def commit(self) -> None:
        """Pass the commit point. What completes the request must be sent before the next await.

        Raises `Refused` when overtaken, `TryAgain` while a send of another key may still land on the object, or where
        another gateway has the bucket."""
        self._fences.before_commit(self._entry.bucket)
        gate = self._live.gate
        gate.refuse_overtaken(self._send.token)
        if self._entry.contested(gate.key):
            raise contested(gate.key, self._fences.timing.settle_timeout_s, self._entry.rivals(gate.key))
        gate.enter(self._send)
        self._committed_at = self._fences.clock.monotonic()
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
    def bucket(self) -> str:
        """Where its object is."""
        return self._entry.bucket

    @property
    def committed(self) -> bool:
        """Past the commit point, its answer still awaited."""
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
        """In doubt, and not settled yet."""
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
        """For people, once it is past its commit point; `now` in monotonic seconds."""
        send, doubtful = self._send, self._send.phase is Phase.IN_DOUBT
        latest = send.settles_at if doubtful else self._committed_at + self._commit_s + send.settle_timeout_s
        latest_in_s = max(0.0, latest - now)
        return UnsettledSend(
            token=send.token,
            phase="in-doubt" if doubtful else "committing",
            bucket=self._entry.bucket,
            object_key=self._entry.key,
            request_id=self.request_id,
            settles_in_s=latest_in_s if doubtful else None,
            latest_in_s=latest_in_s,
        )
