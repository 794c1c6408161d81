"""One page of a list by key, for who may see only some of the keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from gateway.server.control.access import ApiToken, may_use, may_use_all
from gateway.server.control.documents import MAX_PAGE


class Keyed(Protocol):
    """What a list is of."""

    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=Keyed)
Read = Callable[[str, int], Awaitable[Sequence[T]]]
"""What follows a key, by key, and how many at most."""


async def page_of(read: Read[T], caller: ApiToken | None, after: str, limit: int) -> tuple[list[T], str | None]:
    """What the caller may see, at most `limit`, and the key that the next page begins after; None at the end. It is the
    last one shown, always: any other would tell the name of a key that he may not use."""
    many = limit if may_use_all(caller) else MAX_PAGE
    shown: list[T] = []
    while True:
        found = await read(after, many)
        shown += [one for one in found if may_use(caller, one.key)]
        if len(shown) >= limit:
            return shown[:limit], shown[limit - 1].key
        if len(found) < many:
            return shown, None
        after = found[-1].key
