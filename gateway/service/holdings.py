"""What is held: leases as they are seen in the store, looked after to their end, and ended.

A lease ends by its holder (`end`), by time (it runs out, and lapses where it is pending), or because its token has been
overtaken or sealed. Whoever has to know is told by `on_end`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

from gateway.core.errors import FenceError, Malformed, Reason, Refused
from gateway.core.gate import Gate
from gateway.core.keys import FencingKey, Token
from gateway.core.lease import Caps, Term, next_token
from gateway.service.alarms import Alarms
from gateway.service.beside import Beside
from gateway.service.fences import Fences
from gateway.service.lease_errors import Completed, Exhausted, Lost
from gateway.service.lines import HeldLease, Line, Lines
from gateway.stores.values import Event, EventKind, Fence

OnEnd = Callable[[FencingKey, Token, EventKind], None]
AGAIN_S = 1.0
"""After a store that could not seal a lapsed grant."""


class Holdings:
    """All leases that somebody holds, as far as this process has looked."""

    def __init__(self, fences: Fences, lines: Lines, caps: Caps) -> None:
        self._fences = fences
        self._store = fences.store
        self._clock = fences.clock
        self._lines = lines
        self._caps = caps
        self._log = structlog.get_logger().bind()  # else it is built anew for each line
        self._alarms = Alarms(self._clock, self._look)
        self.beside = Beside()
        self.started_at = -math.inf
        """When every lease that the store knew had its full time before it; monotonic seconds."""
        self.counts: Counter[str] = Counter()
        self.on_end: list[OnEnd] = []
        fences.on_overtaken = self._overtaken

    async def stop(self) -> None:
        """After that nothing is looked after."""
        self._alarms.stop()
        await self.beside.stop()

    def see(self, line: Line, fence: Fence) -> HeldLease | None:
        """What the store knows of the key's lease, from now on in `line`. Raises `Completed`, `Exhausted`."""
        grant = fence.held
        if fence.completed_token:
            raise Completed(line.key, Token(fence.completed_token))
        if grant is None:
            line.held = None
            if next_token(fence.floor, self._store.authority.generation) is None:
                raise Exhausted(line.key)
        elif line.held is None or line.held.token != grant.token:
            # Granted by an earlier run, or long ago and run out since: either way it has had its time by then.
            began_at = self._clock.monotonic() - max(0.0, self._clock.wall() - grant.at)
            term = Term(grant.ttl_s, began_at, self.started_at + grant.ttl_s)
            line.held = HeldLease(
                line.key,
                Token(grant.token),
                grant.holder,
                grant.ttl_s,
                grant.id,
                repeatable=True,
                term=term,
                maybe_pending=fence.completed_floor < grant.token,
                ran_out=True,
            )
            if term.left_s(self._clock.monotonic()) == 0:
                line.held.told = line.held.forgettable = True
            else:
                self.watch(line.held, term.expires_at)
        return line.held

    def pend(self, held: HeldLease, for_s: float | None = None) -> None:
        """Nobody waits for the hand-over of a pending grant now: it lapses unless it is asked for within its time, or
        `for_s`. One that cannot be asked for lapses at once."""
        line = self._lines.get(held.key)
        if held.term is None and line is not None and line.held is held:
            left_s = held.ttl_s if held.repeatable else 0.0
            held.lapses_at = self._clock.monotonic() + (left_s if for_s is None else for_s)
            self.watch(held, held.lapses_at)

    async def end(self, held: HeldLease, call: Callable[[], Awaitable[Fence]]) -> Fence:
        """Have `call` seal the lease's token in the store. Raises `Lost`, `TryAgain`, and what `call` does."""
        try:
            return await self._sealed(held, call)
        except Refused:
            raise self.lost(held.key, held.token, await self._fences.state(held.key)) from None

    async def _sealed(self, held: HeldLease, call: Callable[[], Awaitable[Fence]]) -> Fence:
        """Raises `Refused`, `TryAgain`, and what `call` does; if it has been overtaken then, all have been told."""
        held.ending = True
        try:
            return await self._fences.end(held.key, held.token, call)
        except BaseException as error:
            if held.overtaken is not None:
                self.tell_end(held, held.overtaken)
            elif isinstance(error, Refused):
                self.over(held)
            raise
        finally:
            held.ending = False

    async def owned(self, line: Line, token: Token) -> HeldLease:
        """The lease of `token`, once nobody is about to take it over. Raises `Lost`, `Malformed`, `TryAgain`."""
        while True:
            await self._lines.decided(line)
            if line.held is not None and line.held.token == token:
                return line.held
            fence = await self._fences.state(line.key)
            if line.deciding:
                continue
            if token > fence.granted_token:
                raise _never_granted(line.key, token, fence)
            if fence.held is None or fence.held.token != token:
                raise self.lost(line.key, token, fence)
            self.see(line, fence)

    @staticmethod
    def lost(key: FencingKey, token: Token, fence: Fence) -> Lost:
        return Lost(key, token, fence.floor, sealed=token == fence.floor == fence.sealed_token)

    def _overtaken(self, gate: Gate) -> None:
        """A floor has risen, or its token has been sealed."""
        line = self._lines.get(gate.key)
        held = None if line is None else line.held
        if line is None or held is None or (held.token == gate.floor != gate.sealed_token):
            return
        line.held = None
        line.stir()
        self._lines.tidy(line)
        how = EventKind.SEALED if held.token == gate.floor else EventKind.RAISED
        if held.ending:
            held.overtaken = how
        elif not line.deciding:
            self.tell_end(held, how)

    def over(self, held: HeldLease) -> None:
        """A lease turns out to be lost: the floor had risen above it by the time the store had told of its grant."""
        line = self._lines.get(held.key)
        if line is not None and line.held is held:
            line.held = None
            line.stir()
            self._lines.tidy(line)
            self.tell_end(held, EventKind.RAISED)

    def tell_end(self, held: HeldLease, how: EventKind) -> None:
        """Tell all who want to know."""
        for tell in self.on_end:
            tell(held.key, held.token, how)

    def watch(self, held: HeldLease, at: float) -> None:
        """Look after a lease at that moment. One that is looked after before its end is found to last longer then."""
        held.next_look_at = at
        self._alarms.set(at, held)

    def _look(self, held: HeldLease) -> None:
        """Deal with a lease that was to be looked after by now, unless a later moment has taken that one's place."""
        now = self._clock.monotonic()
        if now < held.next_look_at < math.inf:
            return
        held.next_look_at = math.inf
        line = self._lines.get(held.key)
        if line is not None and line.held is held:
            self._look_at(line, held, now)

    def _look_at(self, line: Line, held: HeldLease, now: float) -> None:
        ends_at = held.ends_at()
        if ends_at > now:
            if ends_at < math.inf:
                self.watch(held, ends_at)
        elif held.term is None:
            self.beside.run(self._lapse(line.key, held))
        elif not held.told:
            held.told = held.ran_out = True
            self.counts["expired"] += 1
            self._store.record(Event(held.key, EventKind.EXPIRED, held.token, held.token, held.holder))
            self._log.info("lease-expired", fence_key=held.key, token=held.token, holder=held.holder)
            self.tell_end(held, EventKind.EXPIRED)
            if self._caps.max_renewals is None:  # these are counted here alone
                self.watch(held, max(self._lines.free_at(line), held.term.expires_at + held.ttl_s))
        elif self._caps.max_renewals is None:
            held.forgettable = True
            self._lines.tidy(line)

    async def _lapse(self, key: FencingKey, held: HeldLease) -> None:
        with self._lines.at(key) as line:
            if line.held is not held or held.term is not None or held.askers or line.deciding:
                return
            event = Event(key, EventKind.LAPSED, held.token, held.token, held.holder)
            line.deciding = True  # who asks for it from now on is told what becomes of it
            try:
                await self._sealed(held, lambda: self._store.seal(key, held.token, event))
            except FenceError:
                self.watch(held, self._clock.monotonic() + AGAIN_S)
                return
            finally:
                line.deciding = False
                line.stir()
        self.counts["lapsed"] += 1
        self._log.info("lease-lapsed", fence_key=key, token=held.token, holder=held.holder)
        self.tell_end(held, EventKind.LAPSED)


def _never_granted(key: FencingKey, token: Token, fence: Fence) -> Malformed:
    highest = f"the highest was {fence.granted_token}" if fence.granted_token else "none has been granted at all"
    return Malformed(
        Reason.TOKEN_NOT_ISSUED,
        f"No lease of {key!r} has been granted with token {token}; {highest}.",
        key=key,
        token=token,
        floor=fence.floor,
        argument=("token", str(token)),
    )
