"""One page of a list by key, for who may see only some of the keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from sys import maxunicode
from typing import Protocol, TypeVar

from gateway.server.control.access import ApiToken, key_prefixes, may_use, may_use_all
from gateway.server.control.documents import MAX_PAGE


class Keyed(Protocol):
    """What a list is of."""

    @property
    def key(self) -> str: ...


_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000
"""Halves of characters lie between them, which no key has."""

T = TypeVar("T", bound=Keyed)
Read = Callable[[str, int], Awaitable[Sequence[T]]]
"""What follows a key, by key, and how many at most."""


async def page_of(read: Read[T], caller: ApiToken | None, after: str, limit: int) -> tuple[list[T], str | None]:
    """What the caller may see, at most `limit`, and the key that the next page begins after; None at the end. It is the
    last one shown, always: any other would tell the name of a key that he may not use. Of those that he may not, what
    no pattern's beginning admits is passed over unread, but for the rest of a page."""
    many = limit if may_use_all(caller) else MAX_PAGE
    shown: list[T] = []
    while True:
        begin = _next(key_prefixes(caller), after)
        if begin is None:
            return shown, None
        found = await read(begin, many)
        shown += [one for one in found if may_use(caller, one.key)]
        if len(shown) >= limit:
            return shown[:limit], shown[limit - 1].key
        if len(found) < many:
            return shown, None
        after = found[-1].key


def _next(prefixes: Sequence[str], after: str) -> str | None:
    """After which key to read on, so that nothing is missed that follows `after` and begins so; None: nothing does."""
    for prefix in prefixes:
        if after.startswith(prefix):
            return after
        if after < prefix:
            return max(after, _below(prefix))
    return None


def _below(prefix: str) -> str:
    """A key below all that begin so, and above nearly all others that are."""
    last = ord(prefix[-1])
    if last == 0:
        return prefix[:-1]
    below = last - 1 if last != _AFTER_SURROGATES else _BEFORE_SURROGATES
    return f"{prefix[:-1]}{chr(below)}{chr(maxunicode)}"
