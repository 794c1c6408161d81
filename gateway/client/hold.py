"""From the grant of a lease, or the delivery of a job, to its end. All of it runs in the client's own thread, except
that the calls that begin and end it are noted in the caller's: he may be gone before they run."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.client.background import FAREWELL_S
from gateway.client.calls import Calls, patience, patiently
from gateway.client.errors import GatewayError, LeaseHeld, LeaseLost, Refused, Unreachable
from gateway.client.heartbeat import beat
from gateway.client.held import Held
from gateway.client.records import Grant, JobRecord
from gateway.clock import Clock

CAPPED = "limit"
"""The gateway renews no more, and says how long the lease lasts all the same."""
LEAST_TURN_S = 0.5
"""Between one place in line and the next."""

T = TypeVar("T")


class Hold(ABC):
    """Obtained, kept, ended: what leases and deliveries have in common."""

    def __init__(self, calls: Calls, clock: Clock, patience_s: float) -> None:
        self._calls = calls
        self._clock = clock
        self._patience_s = patience_s
        self._held: Held | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._begun = False
        self.ended = False
        """By its holder: completed, failed or given back."""
        self.not_ended_for: Exception | None = None
        """Why it is not, though its holder said that it be: the call failed, or has not been answered."""

    @property
    def held(self) -> Held:
        """Raises `RuntimeError` before `begin`."""
        if self._held is None:
            raise RuntimeError("there is no lease yet: enter the context first")
        return self._held

    @abstractmethod
    async def _obtained(self) -> Held: ...

    @abstractmethod
    async def _renew(self, grant: Grant, timeout_s: float) -> float: ...

    @abstractmethod
    async def _give_back(self, grant: Grant) -> None: ...

    @abstractmethod
    async def _give_back_unknown(self) -> None:
        """What the gateway may have granted, though its answer has not been heard."""

    def begin(self) -> Coroutine[Any, Any, None]:
        """Obtain, and keep from now on. Raises `Refused`, `Unreachable`; and at once `RuntimeError` where that has been
        begun already: whichever context ended first would end what the other holds."""
        if self._begun:
            raise RuntimeError("a lease or job is entered once: ask the client for another one")
        self._begun = True
        return self._begin()

    async def _begin(self) -> None:
        try:
            held = await self._obtained()
        except BaseException:
            self._begun = False
            raise
        self._held = held
        self._heartbeat = asyncio.create_task(beat(held, lambda bound_s: self._renew(held.grant, bound_s), self._clock))
        self._heartbeat.add_done_callback(self._unkept)

    async def _fresh(self, grant: Grant) -> Held:
        """Renewed at once where most of the term, as it is counted here, went by while the request waited. Raises
        `LeaseLost` where that is too late."""
        held = Held(grant, self._clock)

        async def renew() -> None:
            sent_at = self._clock.monotonic()
            try:
                left_s = await self._renew(grant, max(held.term_s, FAREWELL_S))
            except Refused as refused:
                if refused.reason != CAPPED:
                    raise
                left_s = float(refused.problem["expires_in_s"])
            held.renewed(sent_at, left_s)

        if held.left_s < held.term_s / 2:
            until = self._clock.monotonic() + held.term_s
            await patiently(renew, lambda: until, self._clock)
        return held

    def complete(self, result: object, outputs: Sequence[str]) -> Coroutine[Any, Any, JobRecord]:
        """Record the job as done, for as long as it may take. Raises `Refused`, `Unreachable`."""
        held, grant = self.held, self.held.grant
        held.check()

        async def attempt() -> JobRecord:
            return await self._calls.complete(grant.key, grant.token, result, outputs)

        return self._finish(lambda: self._told_at_last(attempt))

    def release(self) -> Coroutine[Any, Any, None]:
        """Give it back, for others to have. Raises `Refused`, `Unreachable`."""
        grant = self.held.grant
        return self._finish(lambda: self._give_back(grant))

    def fail(self, error: str, *, retry: bool, delay_s: float | None) -> Coroutine[Any, Any, None]:
        """Tell that the attempt has failed, for as long as it may take. Raises `Refused`, `Unreachable`."""
        grant = self.held.grant

        async def attempt() -> None:
            await self._calls.fail(grant.key, grant.token, error, retry=retry, delay_s=delay_s)

        return self._finish(lambda: self._told_at_last(attempt))

    async def abandon(self) -> None:
        """Who was to have it went away while it was being obtained: if it has been, others are to have it. Raises
        `Refused`, `Unreachable`."""
        if self._held is None:
            await self._give_back_unknown()
        else:
            await self.leave(self.release)

    async def leave(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Unless it is over: a last call, whose failure is nobody's concern. Then stop renewing."""
        if self._held is not None and not self.ended and self._held.left_s:
            with suppress(GatewayError):
                await farewell()
        self._stop_renewing()

    async def _told_at_last(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeated until the deadline, and until patience is over: the work is done, and what has run out is the
        holder's until somebody else is granted it."""
        held, patient = self.held, patience(self._clock, self._patience_s)
        return await patiently(attempt, lambda: max(held.deadline, patient()), self._clock)

    def _finish(self, call: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        self.not_ended_for = Unreachable(f"the call that was to end {self.held.grant.key!r} was cut short")
        return self._finished(call)

    async def _finished(self, call: Callable[[], Awaitable[T]]) -> T:
        held = self.held
        held.finishing = True
        try:
            answer = await call()
        except Exception as error:
            self.not_ended_for = error
            raise
        finally:
            held.finishing = False
        self.ended, self.not_ended_for = True, None
        self._stop_renewing()
        return answer

    def _stop_renewing(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.remove_done_callback(self._unkept)
            self._heartbeat.cancel()

    def _unkept(self, _: asyncio.Task[None]) -> None:
        """The heartbeat has ended, and not because its holder is done: who works under the lease is to know."""
        key = self.held.grant.key
        self.held.lose(LeaseLost(f"the lease of {key!r} is not renewed any more: has its client been closed?"))


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """What is asked for. Times in seconds."""

    key: str
    holder: str
    ttl_s: float
    wait_s: float
    """In line, at most."""
    patience_s: float
    """And so much longer where no gateway answers."""


class LeaseHold(Hold):
    """A lease on a key."""

    def __init__(self, calls: Calls, clock: Clock, wish: LeaseWish, repeat_key: Callable[[], str]) -> None:
        super().__init__(calls, clock, wish.patience_s)
        self._wish = wish
        self._new_repeat_key = repeat_key
        self._last_repeat_key = ""

    async def _obtained(self) -> Held:
        """A grant whose answer was lost is asked for again; one that was lost meanwhile is asked for anew."""
        wish = self._wish
        wait_until = self._clock.monotonic() + wish.wait_s
        until = wait_until + wish.patience_s
        while True:
            self._last_repeat_key, began = self._new_repeat_key(), self._clock.monotonic()
            patient = patience(self._clock, wish.patience_s)
            try:
                granted = await patiently(lambda: self._ask(wait_until - self._clock.monotonic()), patient, self._clock)
                return await self._fresh(granted)
            except (LeaseHeld, LeaseLost) as error:
                # A gateway lets nobody stand in line for longer than its settings say.
                over = wait_until if isinstance(error, LeaseHeld) else until
                if self._clock.monotonic() >= over:
                    raise
            await asyncio.sleep(max(0.0, began + LEAST_TURN_S - self._clock.monotonic()))

    async def _renew(self, grant: Grant, timeout_s: float) -> float:
        return await self._calls.renew(grant.key, grant.token, timeout_s)

    async def _give_back(self, grant: Grant) -> None:
        await self._calls.release(grant.key, grant.token, FAREWELL_S)

    async def _give_back_unknown(self) -> None:
        if self._last_repeat_key:
            await self._give_back(await self._ask(0.0))

    async def _ask(self, wait_s: float) -> Grant:
        wish = self._wish
        return await self._calls.acquire(wish.key, wish.holder, wish.ttl_s, max(0.0, wait_s), self._last_repeat_key)


class JobHold(Hold):
    """A job that a queue has delivered."""

    def __init__(self, calls: Calls, clock: Clock, patience_s: float, grant: Grant) -> None:
        super().__init__(calls, clock, patience_s)
        self.grant = grant

    async def _obtained(self) -> Held:
        return await self._fresh(self.grant)

    async def _renew(self, grant: Grant, timeout_s: float) -> float:
        return await self._calls.extend(grant.key, grant.token, timeout_s)

    async def _give_back(self, grant: Grant) -> None:
        await self._calls.give_back(grant.key, grant.token, FAREWELL_S)

    async def _give_back_unknown(self) -> None:
        await self._give_back(self.grant)
