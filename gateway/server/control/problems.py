"""Every answer of the control API that is no success: problem+json (RFC 9457) with a stable `reason`."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.core.keys import token_in_json
from gateway.server.control.documents import SecondsShown, Shown, TokenShown, seconds_in_json
from gateway.service.job_errors import (
    AlreadyCompleted,
    JobError,
    JobExists,
    NoJob,
    NotDelivered,
    NotEnded,
    OutputNotVerified,
    RepeatedReceive,
    RepeatedSubmission,
    UnknownQueue,
)
from gateway.service.lease_errors import Capped, Completed, Held, LeaseError, Lost, Repeated
from gateway.stores.base import StoreUnavailable
from gateway.telemetry import Telemetry

PROBLEM = "application/problem+json"
REASONS: dict[str, tuple[int, str]] = {
    "invalid": (400, "the body, the query or a header is wrong; `detail` says how"),
    "TokenInvalid": (400, "no token"),
    "KeyInvalid": (400, "no key"),
    "TokenNotIssued": (400, "no lease on the key has ever been granted with this token"),
    "TokenJump": (400, "the token lies beyond `max_token_jump` or `max_first_token` of its key's rules"),
    "unauthenticated": (401, "no, or a wrong, bearer token"),
    "forbidden": (403, "not for this role or key"),
    "not-found": (404, "there is no such thing, or no such path"),
    "method-not-allowed": (405, "`Allow` says which methods the path has"),
    "timeout": (408, "the body has not come in time"),
    "unknown-queue": (404, "`[[queue]]` in the settings names the queues, and not this one"),
    "committing": (409, "nothing is in doubt, an answer is still awaited"),
    "lost": (409, "the lease is held no more: `floor` is the token that holds the key, or was given up"),
    "held": (409, "another holds the lease: `holder`, for `expires_in_s`; `free_in_s` adds `[lease] lock_delay_s`"),
    "limit": (409, "`[lease]` allows no further renewal: the lease ends in `expires_in_s`"),
    "completed": (409, "the job is done, by `token`; only an operator can have it done again"),
    "exhausted": (409, "the key's floor is the highest token there is: take another key"),
    "no-backup": (409, "the database is in memory"),
    "no-client": (409, "there are several S3 clients, and this API token names none as its `client`"),
    "not-held": (409, "the named token lies above the floor"),
    "exists": (409, "the key has its job already, of another queue or where none was wanted"),
    "not-delivered": (409, "the token holds the key by a lease that no queue has made"),
    "not-ended": (409, "only a completed or dead job can be reopened"),
    "output-not-verified": (409, "`output` is not there, or not by this key and token; nothing has been recorded"),
    "stale": (412, "the token is below the floor, or sealed"),
    "too-large": (413, "the body is above what this call takes"),
    "unsupported-media-type": (415, "the body's Content-Type says that it is no JSON"),
    "idempotency-key-reused": (422, "this `Idempotency-Key` was sent before with another body"),
    "internal": (500, "a fault of the gateway: its log has the traceback"),
    "HandoverPending": (503, "ask again after `Retry-After`; a floor that was to rise has risen"),
    "UpstreamUnavailable": (503, "the object store behind does not answer: ask again after `Retry-After`"),
    "StoreUnavailable": (503, "ask again after `Retry-After`"),
    "Overloaded": (503, "too many wait already: ask again after `Retry-After`"),
    "Draining": (503, "the gateway is being stopped: ask again after `Retry-After`"),
}
"""Every `reason`, the status that it comes with, and what it means."""
_NAMES: dict[Reason, str] = {Reason.STALE_TOKEN: "stale", Reason.SEALED: "stale", Reason.KEY_DENIED: "forbidden"}
"""Where the fence's reasons are called otherwise here than on the S3 listener."""
_OF_JOBS: dict[type[JobError], str] = {
    UnknownQueue: "unknown-queue",
    NoJob: "not-found",
    JobExists: "exists",
    NotDelivered: "not-delivered",
    AlreadyCompleted: "completed",
    NotEnded: "not-ended",
    OutputNotVerified: "output-not-verified",
    RepeatedSubmission: "idempotency-key-reused",
    RepeatedReceive: "idempotency-key-reused",
}
RETRY_AFTER_S = 1


class Problem(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, reason: str, detail: str, **members: object) -> None:
        """`reason` is one of `REASONS`, and `status` is its."""
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.members = members


class ProblemShown(Shown):
    """RFC 9457. `reason` is for programs and stays; `detail` is for people. Further members name what it is about."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    key: str | None = None
    floor: TokenShown | None = None
    token: TokenShown | None = None
    holder: str | None = None
    expires_in_s: SecondsShown | None = None
    free_in_s: SecondsShown | None = None
    output: str | None = None


def problems(telemetry: Telemetry) -> Middleware:
    """Turns what a handler raises into its answer; what nobody foresaw is told to the log alone."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as error:
            return answer_to(error)
        except FenceError as error:
            return _refusal(error)
        except LeaseError as error:
            return _lease_problem(error)
        except JobError as error:
            return _job_problem(error)
        except StoreUnavailable as error:
            return _answer(503, Reason.STORE_UNAVAILABLE.value, str(error), {}, {"Retry-After": str(RETRY_AFTER_S)})
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return no_such_call(error)
        except Exception:
            telemetry.failure("internal-error", path=request.path)
            return _answer(500, "internal", "the gateway has failed to answer; its log says why", {})

    return answer


def answer_to(problem: Problem) -> web.Response:
    """Its answer; a 401 says how to authenticate (RFC 9110, 11.6.1)."""
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return _answer(problem.status, problem.reason, problem.detail, problem.members, headers)


def no_such_call(error: web.HTTPException | None) -> web.Response:
    """The answer where no call has the path, or none the method there."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return _answer(405, "method-not-allowed", f"this path has {allowed}", {}, {"Allow": allowed})
    return _answer(404, "not-found", "there is no such path; a name in one must be percent-encoded, and not empty", {})


def _refusal(error: FenceError) -> web.Response:
    members: dict[str, object] = {"key": error.key} if error.key else {}
    if error.floor is not None:
        members["floor"] = token_in_json(error.floor)
    reason = _NAMES.get(error.reason, error.reason.value)
    again = isinstance(error, TryAgain)
    status, _ = REASONS.get(reason, (503 if again else 400, ""))
    headers = {"Retry-After": str(max(RETRY_AFTER_S, round(error.retry_after_s or 0)))} if again else {}
    return _answer(status, reason, error.message, members, headers)


def _job_problem(error: JobError) -> web.Response:
    members: dict[str, object] = {} if error.key is None else {"key": error.key}
    reason = _OF_JOBS[type(error)]
    if isinstance(error, AlreadyCompleted):
        members["token"] = token_in_json(error.token)
    elif isinstance(error, OutputNotVerified):
        members["output"] = f"{error.output.bucket}/{error.output.key}"
    return _answer(REASONS[reason][0], reason, error.message, members)


def _lease_problem(error: LeaseError) -> web.Response:
    members: dict[str, object] = {"key": error.key}
    match error:
        case Held():
            reason = "held"
            members["expires_in_s"] = seconds_in_json(error.expires_in_s)
            members["free_in_s"] = seconds_in_json(error.free_in_s)
            if error.holder is not None:
                members["holder"] = error.holder
        case Lost():
            reason = "lost"
            members |= {"token": token_in_json(error.token), "floor": token_in_json(error.floor)}
        case Capped():
            reason = "limit"
            members["token"] = token_in_json(error.token)
            members["expires_in_s"] = seconds_in_json(error.expires_in_s)
        case Completed():
            reason = "completed"
            members["token"] = token_in_json(error.token)
        case Repeated():
            reason = "idempotency-key-reused"
        case _:
            reason = "exhausted"
    return _answer(REASONS[reason][0], reason, error.message, members)


def _answer(
    status: int, reason: str, detail: str, members: dict[str, object], headers: dict[str, str] | None = None
) -> web.Response:
    title = HTTPStatus(status).phrase  # of a problem without a type of its own: RFC 9457, 4.2.1
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "reason": reason, **members}
    return web.Response(body=orjson.dumps(body), status=status, content_type=PROBLEM, headers=headers)
