"""Who calls the control API, and what he may: API tokens, their roles and key patterns; without any, this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from hmac import compare_digest
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes, urlsplit

from aiohttp import web

from gateway.core.errors import Reason
from gateway.core.keys import OBJECT_NAMESPACE, FencingKey, key_fault
from gateway.server.control.problems import Problem


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A bearer of the control API."""

    secret: str
    operator: bool
    keys: tuple[str, ...] = ("*",)
    client: str | None = None
    """The access key of the S3 client whose rights the credentials of its leases have; None: the only one's."""


Authorise = Callable[[web.Request], ApiToken | None]
"""Who asks; None on an open listener. Raises `Problem` for who may not."""


class Access:
    """What the configured API tokens open; without any, the listener is open to this machine."""

    def __init__(self, tokens: tuple[ApiToken, ...]) -> None:
        self._tokens = tokens
        self.operator: Authorise = partial(self.caller, operator=True)

    def caller(self, request: web.Request, *, operator: bool = False) -> ApiToken | None:
        """Who asks; None on an open listener. Raises `Problem` (401, 403)."""
        if not self._tokens:
            _refuse_pages(request)
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        found = None
        for token in self._tokens:
            # Every one is compared, so that the time tells nothing.
            if compare_digest(token.secret.encode(), given.strip().encode()) and scheme.lower() == "bearer":
                found = token
        if found is None:
            raise Problem(401, "unauthenticated", "send Authorization: Bearer with one of the configured API tokens")
        if operator and not found.operator:
            raise Problem(403, "forbidden", "this call is an operator's")
        return found

    def key(self, request: web.Request, *, operator: bool = False) -> FencingKey:
        """The key in the path, one percent-encoded segment, for who may use it. Raises `Problem`."""
        caller = self.caller(request, operator=operator)
        raw = request.rel_url.raw_path.split("/")[3]
        try:
            key = unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            key = ""
        checked_key(key)
        if not may_use(caller, key):
            raise Problem(403, "forbidden", f"this API token may not use the fencing key {key!r}", key=key)
        return FencingKey(key)


def may_use(caller: ApiToken | None, key: str) -> bool:
    """Whether one of the caller's patterns takes the key."""
    return caller is None or any(fnmatchcase(key, pattern) for pattern in caller.keys)


def checked_key(key: str) -> FencingKey:
    """Raises `Problem` for what no key can be; an object's own may be named here."""
    if not key.startswith(OBJECT_NAMESPACE) and (fault := key_fault(key)):
        raise Problem(400, Reason.KEY_INVALID.value, f"this fencing key {fault}")
    return FencingKey(key)


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
