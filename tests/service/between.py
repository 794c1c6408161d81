"""Calls that a store or an upstream is made to answer in another way than at once, so that something else comes in
between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.stores.base import StoreUnavailable

Call = Callable[..., Awaitable[Any]]


def next_call(owner: Any, name: str, instead: Call) -> None:
    """The next call of this method is `instead`'s, which is given the method, and then what that is called with."""
    call: Call = getattr(owner, name)
    due = [instead]

    async def once(*given: Any, **named: Any) -> Any:
        setattr(owner, name, call)
        if due:  # others may have taken hold of the method before
            return await due.pop()(call, *given, **named)
        return await call(*given, **named)

    setattr(owner, name, once)


def answers_late(owner: Any, name: str, *, before_s: float = 0.0, after_s: float = 0.0, denied: bool = False) -> None:
    """The next call of this method does what it is asked after `before_s`, and tells of it `after_s` later; `denied`:
    it tells that it has failed."""

    async def late(call: Call, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(before_s)
        done = await call(*given, **named)
        await asyncio.sleep(after_s)
        if denied:
            raise StoreUnavailable("the disk is away")
        return done

    next_call(owner, name, late)


def fails(owner: Any, name: str, error: Exception, *, after_s: float = 0.0) -> None:
    """The next call of this method does nothing, and raises `error` after a while."""

    async def failing(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(after_s)
        raise error

    next_call(owner, name, failing)


def preceded(owner: Any, name: str, by: Callable[[], Awaitable[object]]) -> None:
    """Something else happens at the very moment of the next call of this method, just before."""

    async def second(call: Call, *given: Any, **named: Any) -> Any:
        await by()
        return await call(*given, **named)

    next_call(owner, name, second)


class Held:
    """A call that waits."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()


def held(owner: Any, name: str, *, done: bool = False) -> Held:
    """The next call of this method waits before it does what it is asked; `done`: after that, and before it tells."""
    moment = Held()

    async def waiting(call: Call, *given: Any, **named: Any) -> Any:
        answer = await call(*given, **named) if done else None
        moment.reached.set()
        await moment.go_on.wait()
        return answer if done else await call(*given, **named)

    next_call(owner, name, waiting)
    return moment
