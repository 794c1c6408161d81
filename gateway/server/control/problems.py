"""Every answer of the control API that is no success, as problem+json (RFC 9457) with a stable `reason`."""

from __future__ import annotations

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.server.control.documents import number
from gateway.stores.base import StoreUnavailable
from gateway.telemetry import Telemetry

PROBLEM = "application/problem+json"
STATUS: dict[Reason, int] = {
    Reason.STALE_TOKEN: 412,
    Reason.SEALED: 412,
    Reason.TOKEN_REQUIRED: 400,
    Reason.TOKEN_INVALID: 400,
    Reason.TOKEN_JUMP: 400,
    Reason.KEY_INVALID: 400,
    Reason.KEY_DENIED: 403,
    Reason.HANDOVER_PENDING: 503,
    Reason.STORE_UNAVAILABLE: 503,
}
"""What the fence's own reasons are answered with; 400 for all others."""
NAME: dict[Reason, str] = {Reason.STALE_TOKEN: "stale", Reason.SEALED: "stale"}
"""Where they are called otherwise here than on the S3 listener."""


class Problem(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, reason: str, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.members = members


def problems(telemetry: Telemetry) -> Middleware:
    """Turns what a handler raises into its answer; what nobody foresaw is told to the log alone."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as error:
            return _answer(error.status, error.reason, error.detail, error.members)
        except FenceError as error:
            return _refusal(error)
        except StoreUnavailable as error:
            return _answer(503, Reason.STORE_UNAVAILABLE.value, str(error), {})
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _answer(error.status, error.reason.lower().replace(" ", "-"), error.text or error.reason, {})
        except Exception:
            telemetry.failure("internal-error", path=request.path)
            return _answer(500, "internal", "the gateway has failed to answer; its log says why", {})

    return answer


def _refusal(error: FenceError) -> web.Response:
    members: dict[str, object] = {"key": error.key} if error.key else {}
    if error.floor is not None:
        members["floor"] = number(error.floor)
    reason = NAME.get(error.reason, error.reason.value)
    answer = _answer(STATUS.get(error.reason, 400), reason, error.message, members)
    if isinstance(error, TryAgain):
        answer.headers["Retry-After"] = str(max(1, round(error.retry_after_s or 1)))
    return answer


def _answer(status: int, reason: str, detail: str, members: dict[str, object]) -> web.Response:
    body = {"type": "about:blank", "title": reason, "status": status, "detail": detail, "reason": reason, **members}
    return web.Response(body=orjson.dumps(body), status=status, content_type=PROBLEM)
