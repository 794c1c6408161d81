"""How the control API writes what travels in its JSON: tokens, times."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from aiohttp import web

_MAX_EXACT_JSON_INTEGER = 2**53


def number(token: int) -> int | str:
    """A token as JSON: a number where every reader has it exact, a string above."""
    return token if token <= _MAX_EXACT_JSON_INTEGER else str(token)


def moment(seconds: float) -> str | None:
    """Seconds since the epoch in RFC 3339, UTC; None for never."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else None


def json_answer(value: object, status: int = 200) -> web.Response:
    """A JSON document."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
