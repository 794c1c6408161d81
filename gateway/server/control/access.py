"""Who calls the control API, and what he may: API tokens, their roles and key patterns; without any, this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from hmac import compare_digest
from ipaddress import ip_address
from re import Pattern, split
from re import compile as compiled
from urllib.parse import urlsplit

from aiohttp import web

from gateway.server.control.problems import Problem


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A bearer of the control API."""

    secret: str = field(repr=False)
    operator: bool
    keys: tuple[str, ...] = ("*",)
    client: str | None = None
    """The access key of the S3 client whose rights the credentials of its leases have; None: the only one's."""


class Access:
    """What the configured API tokens open; without any, the listener is open to this machine."""

    def __init__(self, tokens: tuple[ApiToken, ...]) -> None:
        self._tokens = tokens

    def caller(self, request: web.Request, *, operator: bool = False) -> ApiToken | None:
        """Who asks; None on an open listener. Raises `Problem` (401, 403)."""
        if not self._tokens:
            _refuse_pages(request)
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        found = None
        for token in self._tokens:
            # Every one is compared, so that the time tells nothing.
            if compare_digest(token.secret.encode(), _bytes(given.strip())) and scheme.lower() == "bearer":
                found = token
        if found is None:
            told = "send Authorization: Bearer with one of the configured API tokens"
            if given.strip() and scheme.lower() == "bearer":
                told = "the bearer token that was sent is none of the configured API tokens"
            raise Problem(401, "unauthenticated", told)
        if operator and not found.operator:
            raise Problem(403, "forbidden", 'this call is an operator\'s: it wants an API token of role = "operator"')
        return found

    @staticmethod
    def permit(caller: ApiToken | None, key: str) -> None:
        """Raises `Problem` (403) for a key that the caller may not use."""
        if not may_use(caller, key):
            raise Problem(403, "forbidden", f"this API token may not use the fencing key {key!r}", key=key)


def may_use(caller: ApiToken | None, key: str) -> bool:
    """Whether one of the caller's patterns takes the key."""
    return caller is None or _any_of(caller.keys).match(key) is not None


def may_use_all(caller: ApiToken | None) -> bool:
    """Whether the caller is limited to no keys."""
    return caller is None or "*" in caller.keys


def key_prefixes(caller: ApiToken | None) -> tuple[str, ...]:
    """How each key begins that the caller may use: in order, and none of them begins with another."""
    return ("",) if caller is None else _beginnings(caller.keys)


@lru_cache
def _beginnings(patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for literal in sorted(split("[*?[]", pattern, maxsplit=1)[0] for pattern in patterns):
        if not found or not literal.startswith(found[-1]):
            found.append(literal)
    return tuple(found)


@lru_cache
def _any_of(patterns: tuple[str, ...]) -> Pattern[str]:
    """One for all: a queue's whole line is held against it. Of none it takes nothing."""
    return compiled("|".join(map(translate, patterns)) or "(?!)")


def _bytes(text: str) -> bytes:
    """A header as it was sent."""
    return text.encode("utf-8", "surrogateescape")


def _refuse_pages(request: web.Request) -> None:
    """Keep an open listener for those who are on this machine: a page from elsewhere can have its visitor's browser
    call it, under the page's own name even (DNS rebinding). Raises `Problem` (403)."""
    for said in (f"//{request.host}", request.headers.get("Origin")):
        if said is not None and not _names_this_machine(said):
            raise Problem(
                403,
                "forbidden",
                "without configured API tokens the gateway answers only calls to localhost or a loopback address, and"
                " none of a page from elsewhere; configure [[api_token]]",
            )


def _names_this_machine(address: str) -> bool:
    try:
        name = urlsplit(address).hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
