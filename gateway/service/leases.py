"""Leases on keys: acquired in line, renewed, given up; each grant is a hand-over (R3), with a token of our own (R10).

A grant goes: in line, the store grants it durably, the gate refuses and cancels what is lower, the hand-over is
awaited; then its time begins, and it is answered. Until then it is *pending*: whoever can ask again for the same grant
(by its idempotency key) finds it, and it lapses if nobody does for its own time.

Times are kept here, in monotonic seconds, and not in the store: a renewal writes nothing. So a start gives every lease
that the store knows one full time anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.core.errors import Refused
from gateway.core.keys import FencingKey, Token
from gateway.core.lease import UNCAPPED, Caps, Term
from gateway.service.beside import answer_of
from gateway.service.fences import Fences
from gateway.service.holdings import Holdings
from gateway.service.lease_errors import Capped, Held, Lost, Repeated
from gateway.service.lines import HeldLease, Line, Lines
from gateway.service.refusals import store_unavailable
from gateway.service.repeats import Repeats
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import Event, EventKind, Fence, Granted, GrantWanted

GrantCall = Callable[[FencingKey, GrantWanted, Event], Awaitable[Granted]]
"""`Store.grant`, or a call that grants in the same way and writes more in the same transaction."""
OnRenewed = Callable[[FencingKey, Token], Awaitable[None]]
Seal = Callable[[FencingKey, Token, Event], Awaitable[Fence]]
FORGET_EVERY_S = 3600.0
KEPT_S = 86400.0
"""How long a repeated call finds what it was answered."""


LEASE_EVENTS = ("granted", "renewed", "released", "expired", "lapsed", "held", "lost")
"""What is counted; the last two are calls that were refused."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What leases may be had."""

    caps: Caps = UNCAPPED
    lock_delay_s: float = 0.0
    """How long a key stays free when its lease has run out, for effects that look at no token; not after a release."""
    max_waiting: int = 10_000
    """How many may wait in line, for all keys together."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease, as its holder is told."""

    key: FencingKey
    token: Token
    holder: str
    ttl_s: float
    expires_in_s: float
    """At least 0: one that has run out may still be renewed, as long as nobody else has been granted the key."""
    pending: bool = False
    granted_at: float = 0.0
    """Wall-clock time, seconds since the epoch; only where leases are listed."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    holder: str
    ttl_s: float
    grant_id: str
    repeatable: tuple[str, str] | None
    request_id: str
    call: GrantCall


class Leases:
    """All leases of one gateway. All methods belong to one event loop."""

    def __init__(self, fences: Fences, terms: LeaseTerms = LeaseTerms()) -> None:
        self._fences = fences
        self._store = fences.store
        self._clock = fences.clock
        self._terms = terms
        self._log = structlog.get_logger().bind()  # else it is built anew for each line
        self._lines = Lines(self._clock, terms.lock_delay_s, terms.max_waiting)
        self._holdings = Holdings(fences, self._lines, terms.caps)
        self._repeats: Repeats[tuple[FencingKey, str], Lease] = Repeats()
        self._forget_timer: asyncio.TimerHandle | None = None
        self.counts = self._holdings.counts
        """How often each of `LEASE_EVENTS` has happened."""
        self.on_end = self._holdings.on_end
        """Told, with key and token, of leases that end otherwise than by a call to `end`: EXPIRED (the holder may still
        renew it), LAPSED (he was never told of it), RELEASED, RAISED or SEALED (an operator, or an object with a higher
        token)."""
        self.on_renewed: list[OnRenewed] = []
        """Awaited, with key and token, when a lease is renewed that had run out, before its holder is answered."""
        self.seal: Seal = self._store.seal
        """How the token of a lease is sealed that its holder gives up: by more than `Store.seal` for who has more to
        write in that very transaction."""

    async def start(self) -> None:
        """From now on every lease that the store knows has its full time."""
        self._holdings.started_at = self._clock.monotonic()
        self._forget_later()

    def drain(self) -> None:
        """Nobody waits in line any more, and nothing new is granted. Raises `TryAgain` (Draining) in those who do."""
        self._lines.drain()

    async def stop(self) -> None:
        """After that nothing is watched."""
        self.drain()
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        await self._holdings.stop()

    @property
    def held(self) -> int:
        """How many leases this process knows to be held."""
        return self._lines.held

    @property
    def waiting(self) -> int:
        """How many wait in line now."""
        return self._lines.waiting

    # --- acquire --------------------------------------------------------------------------------------------

    async def acquire(
        self,
        key: FencingKey,
        holder: str,
        ttl_s: float,
        *,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
        request_id: str = "",
    ) -> Lease:
        """Wait in line for `key` at most `wait_s`, and grant it: when this returns, no lower token can have an effect
        any more. Raises `Held`, `Completed`, `Exhausted`; for a repeated call `Lost`, `Repeated`, and `Capped` where
        its lease has run out; `TryAgain` (HandoverPending: ask again; Overloaded, Draining, StoreUnavailable)."""
        deadline = self._clock.monotonic() + wait_s
        if idempotency_key is None:
            wanted = _Wanted(holder, ttl_s, self._clock.nonce(), None, request_id, self._store.grant)
            return await self._acquire(key, wanted, deadline)
        scope = (f"leases/{key}", idempotency_key)
        wanted = _Wanted(holder, ttl_s, f"key:{idempotency_key}", scope, request_id, self._store.grant)
        return await self._repeats.answer(
            (key, idempotency_key),
            (holder, ttl_s),
            lambda: asyncio.create_task(self._acquire(key, wanted, deadline)),
            lambda: Repeated(key),
        )

    async def _acquire(self, key: FencingKey, wanted: _Wanted, deadline: float) -> Lease:
        with self._lines.at(key) as line:
            held = None if wanted.repeatable is None else await self._repeated(line, wanted)
            if held is None:
                held = await self._in_turn(line, wanted, deadline)
            return await self._confirm(line, held, wanted.request_id)

    async def _repeated(self, line: Line, wanted: _Wanted) -> HeldLease | None:
        """The grant that an earlier call of the same idempotency key was given. Raises `Lost`, `Repeated`."""
        assert wanted.repeatable is not None
        await self._lines.decided(line)
        fence = await self._fences.state(line.key)
        held = line.held if line.held is not None or line.deciding else self._holdings.see(line, fence)
        if held is not None and held.grant_id == wanted.grant_id:
            if (held.holder, held.ttl_s) != (wanted.holder, wanted.ttl_s):
                raise Repeated(line.key)
            return held
        try:
            token = await self._store.granted_before(*wanted.repeatable)
        except StoreUnavailable as error:
            raise store_unavailable(error) from error
        if token:
            raise self._holdings.lost(line.key, Token(token), await self._fences.state(line.key))
        return None

    async def take(
        self,
        key: FencingKey,
        holder: str,
        ttl_s: float,
        *,
        grant_id: str,
        call: GrantCall,
        repeatable: bool = False,
        request_id: str = "",
    ) -> Token:
        """Have `call` grant the key, if it is free and nobody waits for it: for who has more to write in that very
        transaction. The lease is pending until `confirm`, and lapses if that is not called within its time. Raises
        `Held`, `Completed`, `Exhausted`, `TryAgain`."""
        scope = ("", "") if repeatable else None
        wanted = _Wanted(holder, ttl_s, grant_id, scope, request_id, call)
        with self._lines.at(key) as line:
            held = await self._in_turn(line, wanted, -math.inf)
            self._holdings.pend(held, ttl_s)
            return held.token

    async def confirm(self, key: FencingKey, token: Token, *, request_id: str = "") -> Lease:
        """Await the hand-over to a lease that `take` has granted; then its time begins. Raises `Lost`, `Capped` for one
        that has run out, `TryAgain` (HandoverPending: confirm it again)."""
        with self._lines.at(key) as line:
            return await self._confirm(line, await self._holdings.owned(line, token), request_id)

    async def _in_turn(self, line: Line, wanted: _Wanted, deadline: float) -> HeldLease:
        try:
            return await self._lines.take_in_turn(line, deadline, partial(self._take, wanted))
        except Held:
            self.counts["held"] += 1
            raise

    async def _take(self, wanted: _Wanted, line: Line) -> HeldLease | None:
        line.deciding = True
        task = asyncio.ensure_future(self._take_durably(line, wanted, 0 if line.held is None else line.held.token))
        try:
            return await answer_of(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._taken_for_nobody, line))
            raise

    async def _take_durably(self, line: Line, wanted: _Wanted, instead_of: int) -> HeldLease | None:
        with self._lines.at(line.key):
            try:
                lease = GrantWanted(wanted.holder, wanted.ttl_s, wanted.grant_id, instead_of, wanted.repeatable)
                told = f"{wanted.holder} for {wanted.ttl_s:g} s"
                event = Event(line.key, EventKind.GRANTED, 0, instead_of, told, wanted.request_id)
                granted = await self._fences.grant(line.key, lambda: wanted.call(line.key, lease, event))
                if not granted.token:
                    self._holdings.see(line, granted.fence)
                    return None
                repeatable = wanted.repeatable is not None
                line.held = HeldLease(
                    line.key, Token(granted.token), wanted.holder, wanted.ttl_s, wanted.grant_id, repeatable
                )
                self.counts["granted"] += 1
                self._log.info("lease-granted", fence_key=line.key, token=granted.token, holder=wanted.holder)
                return line.held
            finally:
                line.deciding = False
                line.stir()

    def _taken_for_nobody(self, line: Line, task: asyncio.Task[HeldLease | None]) -> None:
        """The caller has gone while the store granted him the key."""
        if not task.cancelled() and task.exception() is None and (held := task.result()) is not None:
            self._holdings.pend(held)

    async def _confirm(self, line: Line, held: HeldLease, request_id: str) -> Lease:
        """Await the hand-over; begin the lease's time. One that has run out is renewed by being asked for again."""
        if held.maybe_pending and not held.told:
            held.term, held.maybe_pending = None, False
        held.askers += 1
        try:
            live = await self._fences.admit(held.key, held.token, cause="lease", request_id=request_id)
            self._fences.unpin(live)
        except Refused:
            self._holdings.over(held)
            raise self._holdings.lost(held.key, held.token, await self._fences.state(held.key)) from None
        except BaseException:
            if held.askers == 1:
                self._holdings.pend(held)
            raise
        finally:
            held.askers -= 1
        now = self._clock.monotonic()
        if held.term is None:
            held.term = Term(held.ttl_s, now, now + held.ttl_s)
            self._holdings.watch(held, held.term.expires_at)
            line.stir()  # the first in it has not known until when to wait
        elif held.term.left_s(now) == 0:
            return await self._renewed(held, None)
        return self._lease(held, now)

    # --- renew and give up ----------------------------------------------------------------------------------

    async def renew(self, key: FencingKey, token: Token, *, ttl_s: float | None = None, request_id: str = "") -> Lease:
        """Its full time (or `ttl_s`) from now on; writes nothing. A lease that has run out and that nobody has taken
        over is renewed like any other. Raises `Lost`, `Capped`, `Malformed` (TokenNotIssued), `TryAgain`."""
        line = self._lines.get(key)
        if line is not None and not line.deciding:
            held = line.held
            if held is not None and held.token == token and held.term is not None:
                return await self._renewed(held, ttl_s)
        with self._lines.at(key) as line:
            try:
                held = await self._holdings.owned(line, token)
                if held.term is None:
                    return await self._confirm(line, held, request_id)
            except Lost:
                self.counts["lost"] += 1
                raise
            return await self._renewed(held, ttl_s)

    async def _renewed(self, held: HeldLease, ttl_s: float | None) -> Lease:
        assert held.term is not None
        now = self._clock.monotonic()
        term = held.term.renewed(now, self._terms.caps, ttl_s)
        if term is None:
            raise Capped(held.key, held.token, held.term.left_s(now))
        held.term, held.told, held.forgettable = term, False, False
        held.maybe_pending = False  # who renews it has been told of it
        if term.expires_at < held.next_look_at:
            self._holdings.watch(held, term.expires_at)
        self.counts["renewed"] += 1
        if held.ran_out:
            try:
                for tell in self.on_renewed:
                    await tell(held.key, held.token)
            except StoreUnavailable as error:
                raise store_unavailable(error) from error
            held.ran_out = held.told  # a slow store may have let it run out again
        return self._lease(held, now)

    async def release(self, key: FencingKey, token: Token, *, request_id: str = "") -> None:
        """Give the lease up: its token is sealed. Given up already: nothing happens. Raises `Lost`, `Malformed`
        (TokenNotIssued), `TryAgain`."""
        with self._lines.at(key) as line:
            try:
                held = await self._holdings.owned(line, token)
                event = Event(key, EventKind.RELEASED, token, token, held.holder, request_id)
                await self._holdings.end(held, lambda: self.seal(key, token, event))
            except Lost as lost:
                if lost.sealed:
                    return
                self.counts["lost"] += 1
                raise
        self.counts["released"] += 1
        self._log.info("lease-released", fence_key=key, token=token)
        self._holdings.tell_end(held, EventKind.RELEASED)

    async def require_held(self, key: FencingKey, token: Token) -> None:
        """Does nothing where that lease is held, or has run out and nobody has taken it over. Raises `Lost`,
        `Malformed` (TokenNotIssued), `TryAgain`."""
        with self._lines.at(key) as line:
            await self._holdings.owned(line, token)

    async def end(self, key: FencingKey, token: Token, call: Callable[[], Awaitable[Fence]]) -> Fence:
        """Have `call` seal the token of a lease, with whatever belongs to that, in the store. Raises `Lost`,
        `Malformed` (TokenNotIssued), `TryAgain`, and what `call` does."""
        with self._lines.at(key) as line:
            return await self._holdings.end(await self._holdings.owned(line, token), call)

    # --- look -----------------------------------------------------------------------------------------------

    async def lease_of(self, key: FencingKey) -> Lease | None:
        """The lease on a key that nobody has taken over and that has not been given up; it may have run out. From now
        on `on_end` tells of it. Raises `TryAgain`."""
        with self._lines.at(key) as line:
            await self._lines.decided(line)
            while line.held is None:
                fence = await self._fences.state(key)
                if line.deciding:
                    await self._lines.decided(line)
                elif fence.held is None or fence.completed_token:
                    return None
                else:
                    self._holdings.see(line, fence)
            return self._lease(line.held, self._clock.monotonic())

    async def lasts(self, key: FencingKey, token: Token) -> bool:
        """Whether that lease is held and has not run out; one that has may still be renewed. Raises `TryAgain`."""
        lease = await self.lease_of(key)
        return lease is not None and lease.token == token and lease.expires_in_s > 0

    async def listed(self, after: str | None, limit: int, prefix: str = "") -> list[Lease]:
        """All leases that are held, by key. Raises `StoreUnavailable`."""
        leases, now = [], self._clock.monotonic()
        for fence in await self._store.leases(after, limit, prefix):
            line = self._lines.get(FencingKey(fence.key))
            grant = fence.held
            assert grant is not None
            left_s, pending = max(0.0, self._holdings.started_at + grant.ttl_s - now), False
            if line is not None and line.held is not None and line.held.token == grant.token:
                left_s, pending = line.held.left_s(now), line.held.term is None
            key, token = FencingKey(fence.key), Token(grant.token)
            leases.append(Lease(key, token, grant.holder, grant.ttl_s, left_s, pending, grant.at))
        return leases

    def _lease(self, held: HeldLease, now: float) -> Lease:
        return Lease(held.key, held.token, held.holder, held.ttl_s, held.left_s(now), held.term is None)

    # --- inside ---------------------------------------------------------------------------------------------

    def _forget_later(self) -> None:
        self._forget_timer = asyncio.get_running_loop().call_later(FORGET_EVERY_S, self._forget)

    def _forget(self) -> None:
        self._holdings.beside.run(self._forget_repeatable())
        self._forget_later()

    async def _forget_repeatable(self) -> None:
        try:
            await self._store.forget_grants(self._clock.wall() - KEPT_S)
        except StoreUnavailable as error:
            self._log.warning("leases-not-forgotten", reason=str(error))
