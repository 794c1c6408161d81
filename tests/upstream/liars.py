"""Stores in memory that each lie in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.core.names import filed_name
from gateway.s3.errors import S3Error
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse, MemoryUpstream

BUCKET = "bucket"
Where = Callable[[UpstreamRequest], bool]


def is_copy(request: UpstreamRequest) -> bool:
    return any(name == "x-amz-copy-source" for name, _ in request.headers)


def is_put(request: UpstreamRequest) -> bool:
    return request.method == "PUT" and not is_copy(request)


def is_delete(request: UpstreamRequest) -> bool:
    return request.method == "DELETE"


class Store(MemoryUpstream):
    """A store in memory that answers a little later, so that racers meet. Counts what it is sent."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.sent: list[UpstreamRequest] = []

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        self.sent.append(request)
        await asyncio.sleep(0.01)
        return await super().send(request, body, timeout_s)


class Ignoring(Store):
    """Ignores in silence the condition `name` on the requests that `where` picks."""

    def __init__(self, where: Where, name: str) -> None:
        super().__init__()
        self.where, self.name = where, name

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request):
            request = replace(request, headers=tuple(f for f in request.headers if f[0] != self.name))
        return super().apply(request, body)


class IgnoringStale(Store):
    """Takes an `If-Match` on the requests that `where` picks for right if it has ever named a state of the object."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where
        self.past: set[str] = set()

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request):
            request = replace(request, headers=tuple(f for f in request.headers if f[1] not in self.past))
        answer = super().apply(request, body)
        self.past |= {value for name, value in answer.headers if name == "etag"}
        return answer


class RefusingMatch(Store):
    """Answers 412 to every `If-Match` on the requests that `where` picks, right or wrong."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request) and any(name == "if-match" for name, _ in request.headers):
            return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().apply(request, body)


class Bare(Store):
    """Understands an ETag only without its quotes; with them it never matches."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        quoted = any(name == "if-match" and value.startswith('"') for name, value in request.headers)
        if quoted:
            return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().apply(request, body)


class Winners(Store):
    """Lets so many racers win, whatever their conditions say."""

    def __init__(self, winners: int) -> None:
        super().__init__()
        self.winners = winners

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if body.startswith(b"racer"):
            if int(body.removeprefix(b"racer")) >= self.winners:
                return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
            request = replace(request, headers=())
        return super().apply(request, body)


class Forgetting(Store):
    """Answers the winner of a race, and keeps what a loser sent."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(request, b"racer 999" if body.startswith(b"racer") else body)


class JudgingHeads(Store):
    """Judges the condition of an upload when its head arrives."""

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        named = dict(request.headers)
        now = self.buckets[BUCKET].get(request.raw_key)
        if "if-match" in named and (now is None or now.etag != named["if-match"]):
            return await super().open(request, content_length)
        return await super().open(replace(request, headers=()), content_length)


class AnsweringLate(Store):
    """Answers a failed condition with a server error, as if nobody knew."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        answer = super().apply(request, body)
        return MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>") if answer.status == 412 else answer


class Forbidding(Store):
    """Refuses whatever bears a condition, whether it holds or not, but not the first write."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.buckets[BUCKET] and any(name in ("if-match", "if-none-match") for name, _ in request.headers):
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        return super().apply(request, body)


class Filing(Store):
    """Files objects as paths."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(replace(request, raw_key=filed_name(request.raw_key)), body)


class Overlooking(Store):
    """Takes a request with a subresource that it does not know for the plain one."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(replace(request, raw_query=""), body)


class Versioned(Store):
    """Keeps every version until it is deleted by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: set[str] = set()

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if request.raw_query.startswith("versionId="):
            self.versions.discard(request.raw_query.removeprefix("versionId="))
            return MemoryResponse(204, [], b"")
        answer = super().apply(request, body)
        if answer.status < 300 and request.method in ("PUT", "DELETE") and not request.raw_query:
            version = f"v{len(self.sent)}"
            self.versions.add(version)
            answer.headers.append(("x-amz-version-id", version))
        return answer


class Suspended(Store):
    """Keeps versions no longer: a DELETE leaves a mark, which no id removes, but with an object in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: set[str] = set()

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        removing = request.method == "DELETE"
        if removing and request.raw_query == "versionId=null" and request.raw_key in self.marks:
            return MemoryResponse(204, [], b"")
        answer = super().apply(replace(request, raw_query="") if "null" in request.raw_query else request, body)
        if answer.status >= 300 or request.raw_query:
            return answer
        if removing:
            self.marks.add(request.raw_key)
            answer.headers += [("x-amz-version-id", "null"), ("x-amz-delete-marker", "true")]
        elif request.method == "PUT":
            self.marks.discard(request.raw_key)
        return answer


class NoAbsence(Store):
    """Does not take `If-None-Match` at all."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if any(name == "if-none-match" for name, _ in request.headers):
            return MemoryResponse(501, [], b"<Error><Code>NotImplemented</Code></Error>")
        return super().apply(request, body)


class Gone(Store):
    """Fails in some way until it is well again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how: str | None = how

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if self.how == "lost":
            raise UpstreamLost("reset")
        if self.how == "not reached":
            raise UpstreamNotReached("refused")
        if self.how is not None:
            error = S3Error(self.how, "")
            self.sent.append(request)
            return MemoryResponse(error.status, [], f"<Error><Code>{self.how}</Code></Error>".encode())
        return await super().send(request, body, timeout_s)


class BusyOnce(Store):
    """Is too busy for one request, the `nth` that comes to its end."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        self.left -= 1
        if self.left == 0:
            return MemoryResponse(503, [], b"<Error><Code>SlowDown</Code></Error>")
        return super().apply(request, body)


class SlowLosers(Store):
    """Lets the losers of a race wait for a while before they hear."""

    LOSERS_WAIT_S = 3.0

    def __init__(self, winners: int = 1) -> None:
        super().__init__()
        self.winners = winners
        self.losers_heard = False

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        return Racing(self, request, content_length)


class Racing(MemoryExchange):
    async def response(self, timeout_s: float) -> MemoryResponse:
        answer = await super().response(timeout_s)
        store = self._store
        if isinstance(store, SlowLosers) and self._body.startswith(b"racer") and answer.status == 412:
            await asyncio.sleep(store.LOSERS_WAIT_S)
            store.losers_heard = True
            if store.winners > 1:
                return store.apply(replace(self._request, headers=()), bytes(self._body))
        return answer


class NoDelete(Store):
    """Breaks off at every DELETE."""

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if is_delete(request):
            raise UpstreamLost("reset")
        return await super().send(request, body, timeout_s)


class NeverDeleting(Store):
    """Refuses every DELETE of an object."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if is_delete(request) and not request.raw_query:
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        return super().apply(request, body)


class SlowToForget(Store):
    """Says of the object of a race that it is gone before it is."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if is_delete(request) and request.raw_key.endswith("-race"):
            self.asked += 1
            if self.asked < 3:
                return MemoryResponse(204, [], b"")
        return super().apply(request, body)


class Showing(Store):
    """Shows an upload as far as it has come."""

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        return Shown(self, request, content_length)


class Shown(MemoryExchange):
    async def write(self, data: bytes) -> None:
        await super().write(data)
        if self._answer is None:
            self._store.apply(replace(self._request, headers=()), bytes(self._body))


class KeepingCuts(Store):
    """Keeps, some time later, what has come of an upload that was cut."""

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        return Kept(self, request, content_length)


class Kept(MemoryExchange):
    def abort(self) -> None:
        if self._answer is None and not self._aborted:
            super().abort()
            part = replace(self._request, headers=())
            asyncio.get_running_loop().call_later(0.5, self._store.apply, part, bytes(self._body))


class Impatient(Store):
    """Gives up an upload that falls silent."""

    PATIENCE_S = 6.0

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        return GivenUp(self, request, content_length)


class GivenUp(MemoryExchange):
    _came_at = 0.0

    async def write(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self._came_at and now - self._came_at > Impatient.PATIENCE_S:
            raise UpstreamLost("the upstream closed the connection")
        self._came_at = now
        await super().write(data)


class Careless(Store):
    """Drops metadata."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        kept = tuple(f for f in request.headers if not f[0].startswith("x-amz-meta-"))
        return super().apply(replace(request, headers=kept), body)


class Corrupting(Store):
    """Keeps something else than it was sent."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(request, body.replace(b"\x00", b" ") if is_put(request) else body)
