"""What a call asks for: the members of its JSON body, and which page of a list."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from gateway.core.errors import Reason
from gateway.core.keys import Token, parse_token
from gateway.server.control.problems import Problem

MAX_BODY_BYTES = 65536
MAX_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call's body says."""

    token: Token | None
    reason: str

    @property
    def named(self) -> Token:
        """The token, where the call demands one."""
        assert self.token is not None
        return self.token


async def asked(request: web.Request, *, token: bool = False, reason: bool = False) -> Asked:
    """The members of a small JSON body; the token may be left out unless the call demands one, and the reason is only
    taken where the call does. Tokens come as numbers up to 2^53, as strings above."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise Problem(400, "invalid", "the body must be a JSON object") from error
    if not isinstance(body, dict):
        raise Problem(400, "invalid", "the body must be a JSON object")
    known = {"token", "reason"} if reason else {"token"}
    if unknown := set(body) - known:
        raise Problem(400, "invalid", f"unknown member {sorted(unknown)[0]!r}; allowed: {', '.join(sorted(known))}")
    given = body.get("token")
    named = token or "token" in body
    if named and (isinstance(given, bool) or not isinstance(given, int | str)):
        raise Problem(400, Reason.TOKEN_INVALID.value, "`token` must be a whole number, or a string of digits")
    why = body.get("reason", "")
    if reason and (not isinstance(why, str) or not why.strip()):
        raise Problem(400, "invalid", "`reason` must say why, for the key's history")
    return Asked(parse_token(str(given), "token") if named else None, str(why)[:500])


def limit_of(request: web.Request) -> int:
    """How many a page may hold. Raises `Problem`."""
    text = request.query.get("limit", "100")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PAGE:
        raise Problem(400, "invalid", f"`limit` must be a number from 1 to {MAX_PAGE}")
    return int(text)
