"""Who holds each key, who waits for it, and in which order: first come, first served.

The first in a line has the store asked for the key as soon as nobody holds it any more; those behind him wait for
their turn. Who has no time to wait is told who holds the key, but not before a decision that is on its way.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.core.errors import Reason, TryAgain
from gateway.core.keys import FencingKey, Token
from gateway.core.lease import Term
from gateway.service.alarms import MIN_WAIT_S
from gateway.service.lease_errors import Held
from gateway.stores.values import EventKind


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease that has been granted, and that nobody has taken over."""

    key: FencingKey
    token: Token
    holder: str
    ttl_s: float
    grant_id: str
    repeatable: bool
    """Whether its call can be repeated; a pending grant that cannot be asked for again is given up at once."""
    term: Term | None = None
    """None while it is pending: its hand-over has not been completed, and its time has not begun."""
    maybe_pending: bool = False
    """An earlier run granted it and may not have seen its hand-over complete: it has a term, for a holder who was told
    of it and renews it, and is pending for one who was not and asks for it again."""
    askers: int = 0
    """How many wait for its hand-over now."""
    lapses_at: float = math.inf
    """Until when a pending one has to be asked for again."""
    next_look_at: float = math.inf
    """When it is looked after next, monotonic seconds; infinity: not that anybody knows."""
    told: bool = False
    """That it has run out."""
    ran_out: bool = False
    """It has, or may have in an earlier run: whoever has been told of that is told when it is renewed."""
    forgettable: bool = False
    """It has run out so long ago that the store alone tells as much of it."""
    ending: bool = False
    """The store is asked to seal its token."""
    overtaken: EventKind | None = None
    """How it has been overtaken meanwhile; whoever asks tells of that, if he does not end it himself."""

    def ends_at(self) -> float:
        """When it runs out, or lapses, as things stand; monotonic seconds."""
        if self.term is not None:
            return self.term.expires_at
        return math.inf if self.askers else self.lapses_at

    def left_s(self, now: float) -> float:
        """How much of its time is left; all of it while it is pending."""
        return self.ttl_s if self.term is None else self.term.left_s(now)


class Waiter:
    """One who waits in line."""

    __slots__ = ("_woken", "overdue")

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] | None = None
        self.overdue = False
        """He waits for what is being decided, and no longer."""

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until woken, at most so long; infinity is for one who waits for a decision."""
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        self.overdue = timeout_s == math.inf
        timer = None if self.overdue else loop.call_later(timeout_s, self.wake)
        try:
            await self._woken
        finally:
            self._woken, self.overdue = None, False
            if timer is not None:
                timer.cancel()


class Line:
    """Who holds a key, as far as this process has looked, and who waits for it."""

    __slots__ = ("deciding", "held", "key", "queue", "users")

    def __init__(self, key: FencingKey) -> None:
        self.key = key
        self.held: HeldLease | None = None
        """None: nobody, or it has not been looked."""
        self.queue: deque[Waiter] = deque()
        self.deciding = False
        """The store is being asked to grant the key, or to take back what was granted and not asked for."""
        self.users = 0

    def stir(self) -> None:
        """Let the first look again, and those who only wait for a decision."""
        if self.queue:
            self.queue[0].wake()
        for waiter in self.queue:
            if waiter.overdue:
                waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        self.queue.remove(waiter)
        self.stir()


Take = Callable[[Line], Awaitable[HeldLease | None]]
"""Has the store grant the key, in place of the lease that is in its line; None where another is in the way, which is in
the line then."""


class Lines:
    """The lines of all keys that somebody holds, waits for or looks at."""

    def __init__(self, clock: Clock, lock_delay_s: float, max_waiting: int) -> None:
        """`lock_delay_s`: how long nobody is granted a key after its lease has run out."""
        self._clock = clock
        self._lock_delay_s = lock_delay_s
        self._max_waiting = max_waiting
        self._lines: dict[FencingKey, Line] = {}
        self._draining = False
        self.waiting = 0
        """How many wait, in all lines together."""

    @property
    def held(self) -> int:
        """How many leases are known here."""
        return sum(line.held is not None for line in self._lines.values())

    def get(self, key: FencingKey) -> Line | None:
        """The line of a key if there is one: for looking at once."""
        return self._lines.get(key)

    @contextmanager
    def at(self, key: FencingKey) -> Iterator[Line]:
        """The line of a key, which is not forgotten inside."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            self.tidy(line)

    def tidy(self, line: Line) -> None:
        """Forget what the store knows as well as we do."""
        if line.users:
            return
        if line.held is not None and line.held.forgettable:
            line.held = None
        if line.held is None:
            del self._lines[line.key]

    def drain(self) -> None:
        """Nobody waits any more."""
        self._draining = True
        for line in self._lines.values():
            for waiter in line.queue:
                waiter.wake()

    def free_at(self, line: Line) -> float:
        """When another may be granted the key, if nothing happens before; monotonic seconds."""
        if line.held is None:
            return -math.inf
        return math.inf if line.held.term is None else line.held.term.expires_at + self._lock_delay_s

    async def take_in_turn(self, line: Line, deadline: float, take: Take) -> HeldLease:
        """Wait until the key is free and nobody stands before, at most until `deadline`; then `take` it. Raises `Held`,
        `TryAgain` (Overloaded, Draining), and what `take` does."""
        if self.waiting >= self._max_waiting:
            told = "Too many wait for leases already. Send the request again."
            raise TryAgain(Reason.OVERLOADED, told, key=line.key, retry_after_s=1)
        waiter = Waiter()
        line.queue.append(waiter)
        self.waiting += 1
        looked = False
        try:
            while True:
                if self._draining:
                    raise TryAgain(Reason.DRAINING, "The gateway is being stopped.", key=line.key, retry_after_s=1)
                now, free_at, first = self._clock.monotonic(), self.free_at(line), line.queue[0] is waiter
                if first and not line.deciding and now >= free_at:
                    granted = await take(line)
                    if granted is not None:
                        return granted
                elif (line.deciding or line.held is None) and not (looked and now >= deadline):
                    looked = now >= deadline
                    await waiter.wait(math.inf)
                elif now >= deadline:
                    raise self._held(line, now)
                else:
                    await waiter.wait(max(min(free_at if first else math.inf, deadline) - now, MIN_WAIT_S))
        finally:
            self.waiting -= 1
            line.leave(waiter)

    async def decided(self, line: Line) -> None:
        """Wait until the store has answered who has the key."""
        if not line.deciding:
            return
        waiter = Waiter()
        line.queue.append(waiter)
        try:
            while line.deciding:
                await waiter.wait(math.inf)
        finally:
            line.leave(waiter)  # once: whoever leaves has all others look again

    def _held(self, line: Line, now: float) -> Held:
        """Why `line` cannot be had now."""
        if line.held is None:
            return Held(line.key, None, 0.0, 0.0)
        left_s = line.held.left_s(now)
        free_in_s = min(self.free_at(line) - now, left_s + self._lock_delay_s)
        return Held(line.key, line.held.holder, left_s, free_in_s, pending=line.held.term is None)
