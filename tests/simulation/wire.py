"""The network to the simulated object store: delays, refusals, resets before and after the commit.

What has been sent whole lands at once, later, or never; after its connection is lost, within the settle time-out, as
the kernel delivers for a gateway that has reset it or died (R5). A `Wire` is one run's way there; the store outlives
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.service.waits import Timing
from gateway.upstream.base import UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse
from tests.checker.history import Fault, Sent
from tests.simulation.chance import Chance
from tests.simulation.life import Life
from tests.simulation.objects import Calls, ObjectStore, calls, what_may_change

TIMING = Timing()
NETWORK_S = (0, 0, 0, 0.01, 0.2, 3)
NEVER_LANDS = 0.15
TOO_LATE = 0.4
"""The share of what is lost, of operations that the store has proved conditions for, that lands when nobody counts with
it any more."""
TOO_LATE_S = (5, 90)
"""So long after the settle time-out."""
FATES = ("lost", "lost", "lost", "not-reached", "error-500", "error-500", "refused-403", "silent")
FATES_OF_CONDITIONS = (*FATES, "applied-then-412", "applied-then-412")
FATES_OF_DOCUMENTS = (*FATES, "error-in-200", "empty-200", "error-in-200", "empty-200")
FATES_OF_BATCHES = (*FATES, "partial", "partial", "partial")
STAGING_FATES = ("lost", "not-reached", "error-500")


def is_staging(request: UpstreamRequest) -> bool:
    query = request.raw_query
    return query == "uploads" or "partNumber" in query or (request.method == "DELETE" and "uploadId" in query)


class Wire:
    """One run's way to the store (`gateway.upstream.base.Upstream`)."""

    def __init__(self, store: ObjectStore, chance: Chance, life: Life, database: str) -> None:
        """`database`: whose run it is; empty where the bucket's record is not looked at."""
        self.store, self.chance, self.life, self._database = store, chance, life, database
        self.story = store.story
        self._flying: list[tuple[asyncio.TimerHandle, UpstreamRequest]] = []

    def reset(self) -> None:
        """The run has ended. What has been sent whole lands within the settle time-out, or never."""
        for handle, request in self._flying:
            self._hurry(handle, request)

    def _hurry(self, handle: asyncio.TimerHandle, request: UpstreamRequest) -> None:
        self.store.hurry(handle, self.chance.stream("landing").uniform(0, _patience_s(request)))

    async def close(self) -> None:
        pass

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        self.life.step()
        self.passes(request, body)
        return await self.way(request, body, timeout_s)

    async def open(self, request: UpstreamRequest, content_length: int) -> SimulatedExchange:
        self.life.step()
        await self.delay()
        if self._happens("not-reached", self.chance.weather.upstream / 8, request):
            raise UpstreamNotReached("connection refused")
        return SimulatedExchange(self, request, content_length)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        self.life.step()
        await self.delay()
        if self._happens("read-lost", self.chance.weather.reads, request):
            raise UpstreamLost("reset")
        if self._happens("read-500", self.chance.weather.reads / 3, request):
            return _error(503, "SlowDown", request)
        answer = self.store.apply(request, body)
        await self.delay()
        return answer

    async def delay(self) -> None:
        if pause_s := self.chance.pause("network", *NETWORK_S):
            await asyncio.sleep(pause_s)
            self.life.check()

    def _happens(self, kind: str, share: float, request: UpstreamRequest) -> bool:
        happens = self.chance.happens("network", kind, share)
        if happens:
            self.story.fault(kind, _shown(request))
        return happens

    def passes(self, request: UpstreamRequest, body: bytes) -> None:
        """The commit point: from here on the request may take effect."""
        by = calls()
        for key in what_may_change(request, body) or by:
            if key in by:
                self.story.add(Sent(by[key][0], self.story.now, self._database))
                if by[key][1] and not _bears_condition(request) and self._has_none(request, key):
                    self.story.add(Fault(self.story.now, "without-condition", ("G3",)))

    def _has_none(self, request: UpstreamRequest, key: str) -> bool:
        """Whether there is no condition that could hold. The gate alone orders: until the object has been written where
        SeaweedFS refuses its own (decision 0016); where a DELETE leaves its mark on nothing."""
        if _conditional(request) == "DeleteObject":
            return bool(self.store.versioning) and self.store.value(key) is None
        return _conditional(request) == "PutObject" and self.store.refuses_itself(key)

    async def way(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        """What becomes of a request that has been sent whole."""
        kind = self.chance.fate("network", _fates(request), self.chance.weather.upstream)
        if kind:
            self.story.fault(kind, _shown(request))
        if kind == "not-reached":
            raise UpstreamNotReached("connection refused")
        if kind == "refused-403":
            await self.delay()
            return _error(403, "AccessDenied", request)
        if kind == "partial":
            return await self._partial(request, body)
        if kind == "applied-then-412":
            # R5 takes a 412 for final. The nonce finds most of these out; where it cannot, G5 rests on the store.
            self.story.add(Fault(self.story.now, kind, ("G5",)))
        by = calls()
        if kind in ("", "applied-then-412"):
            answer = await self._lands(request, body, by)
            await self.delay()
            return answer if not kind or answer.status >= 300 else _error(412, "PreconditionFailed", request)
        return await self._doubtful(kind, request, body, timeout_s)

    async def _lands(self, request: UpstreamRequest, body: bytes, by: Calls) -> MemoryResponse:
        applied: asyncio.Future[MemoryResponse] = asyncio.get_running_loop().create_future()
        pause_s = self.chance.pause("network", *NETWORK_S)
        if not pause_s:
            return self.store.effect(request, body, by)
        self._fly(pause_s, request, lambda: _set(applied, self.store.effect(request, body, by)))
        return await asyncio.shield(applied)

    async def _doubtful(self, kind: str, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        """No answer, or one that says nothing of the effect, which comes before it, later, or never."""
        stream, by = self.chance.stream("landing"), calls()
        ends_s = timeout_s if kind == "silent" else stream.choice((0, 0.2, 3))
        late_s = ends_s + stream.uniform(0, _patience_s(request))
        lands_s = stream.choice((0, ends_s, late_s, late_s))
        handle = None
        lands = stream.random() >= NEVER_LANDS
        if self._is_frozen(request, by):
            frozen_s = ends_s + _patience_s(request) + self.chance.stream("frozen").uniform(*TOO_LATE_S)
            self.store.land_in(frozen_s, lambda: self._lands_too_late(request, body, by))
        elif lands:
            if lands_s > ends_s:
                self.story.faults["late-landing"] += 1
            handle = self._fly(lands_s, request, lambda: self.store.effect(request, body, by))
        if self.chance.happens(
            "crash", "crash-in-doubt", self.chance.weather.crash * (6 if _assembles(request) else 2)
        ):
            self.story.fault("crash-in-doubt")
            asyncio.get_running_loop().call_later(ends_s + stream.choice((0, 1)), self.life.kill)
        try:
            await asyncio.sleep(ends_s)
        except asyncio.CancelledError:
            if handle is not None:
                self._hurry(handle, request)
            raise
        if kind == "error-500":
            return _error(*stream.choice(((500, "InternalError"), (503, "SlowDown"))), request)
        if kind == "error-in-200":
            return MemoryResponse(200, [], b"<Error><Code>InternalError</Code></Error>")
        if kind == "empty-200":
            return MemoryResponse(200, [], b"  ")
        raise UpstreamLost("connection reset")

    def _is_frozen(self, request: UpstreamRequest, by: Calls) -> bool:
        """What its gateway has sent before it was frozen, and is delivered when all others have gone on. Where the
        bucket's record is looked at, a rebuild could not count with it."""
        covered = _conditional(request) in self.chance.conditional and all(token for _, token in by.values())
        return covered and not self._database and self.chance.happens("frozen", "too-late", TOO_LATE)

    def _lands_too_late(self, request: UpstreamRequest, body: bytes, by: Calls) -> None:
        """Only its condition keeps it from doing harm (G3)."""
        self.story.faults["too-late"] += 1
        self.story.add(Fault(self.story.now, "too-late", ("G1", "G2", "R9")))
        self.store.effect(request, body, by)

    def _fly(self, delay_s: float, request: UpstreamRequest, land: Callable[[], object]) -> asyncio.TimerHandle:
        handle = self.store.land_in(delay_s, lambda: (land(), None)[1])
        self._flying = [entry for entry in self._flying if entry[0] in self.store.under_way]
        self._flying.append((handle, request))
        return handle

    async def _partial(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        """One object of a batch fails: surely, or with an error that says nothing of its effect."""
        stream, by = self.chance.stream("landing"), calls()
        asked = what_may_change(request, body)
        failed, code = stream.choice(list(asked)), stream.choice(("AccessDenied", "InternalError"))
        for key, version_id in asked.items():
            query = "" if version_id is None else f"versionId={version_id}"
            alone = replace(request, method="DELETE", raw_key=key, raw_query=query)
            if key != failed:
                self.store.effect(alone, b"", by)
            elif code == "InternalError" and stream.random() >= NEVER_LANDS:
                late = stream.choice((0, stream.uniform(0, _patience_s(request))))
                self._fly(late, alone, lambda alone=alone: self.store.effect(alone, b"", by))  # type: ignore[misc]
        await self.delay()
        named = {key: f"<Key>{key}</Key>" + (f"<VersionId>{v}</VersionId>" if v else "") for key, v in asked.items()}
        done = "".join(f"<Deleted>{names}</Deleted>" for key, names in named.items() if key != failed)
        error = f"<Error>{named[failed]}<Code>{code}</Code><Message></Message></Error>"
        return MemoryResponse(200, [], f"<DeleteResult>{done}{error}</DeleteResult>".encode())


class SimulatedExchange(MemoryExchange):
    """A streamed request: cut or refused while it is staged, or on its way once its last byte is written."""

    def __init__(self, wire: Wire, request: UpstreamRequest, content_length: int) -> None:
        super().__init__(wire.store, request, content_length)
        self._wire = wire
        self._early: MemoryResponse | None = None
        self._under_way: asyncio.Task[MemoryResponse] | None = None

    async def write(self, data: bytes) -> None:
        wire = self._wire
        assert len(data) < self._unsent or self._committed, "the tail went out before the commit point"
        if not self._committed:
            wire.life.step()
            await wire.delay()
        wire.life.check()
        kind = wire.chance.fate("network", ("cut-while-staged", "early-answer"), wire.chance.weather.upstream / 6)
        if kind:
            wire.story.fault(kind, _shown(self._request))
            if kind == "early-answer":
                status, code = wire.chance.stream("landing").choice(((403, "AccessDenied"), (503, "SlowDown")))
                self._early = _error(status, code, self._request)
            raise UpstreamNotReached("the connection is gone")
        self._body += data
        self._unsent -= len(data)
        if not self._unsent:
            wire.passes(self._request, b"")
            way = wire.way(self._request, bytes(self._body), TIMING.commit_timeout_s)
            self._under_way = asyncio.create_task(way)

    async def response(self, timeout_s: float) -> MemoryResponse:
        if self._under_way is None:
            if self._early is None:
                raise UpstreamLost("connection reset")
            return self._early
        try:
            return await self._under_way
        except UpstreamNotReached as error:
            raise UpstreamLost(str(error)) from error  # its bytes were written: nobody can say that

    def abort(self) -> None:
        super().abort()
        if self._under_way is not None:
            self._under_way.cancel()


def _fates(request: UpstreamRequest) -> tuple[str, ...]:
    if is_staging(request):
        return STAGING_FATES
    if request.method == "POST":
        return FATES_OF_BATCHES if request.raw_query == "delete" else FATES_OF_DOCUMENTS
    if _copies(request):
        return FATES_OF_DOCUMENTS
    return FATES_OF_CONDITIONS if _is_fenced_put(request) and _bears_condition(request) else FATES


def _conditional(request: UpstreamRequest) -> str:
    """The operation, if S3 knows a condition for it that holds."""
    if request.method == "PUT" and not request.raw_query:
        return "CopyObject" if _copies(request) else "PutObject"
    return "DeleteObject" if request.method == "DELETE" and not request.raw_query else ""


def _is_fenced_put(request: UpstreamRequest) -> bool:
    names = {name for name, _ in request.headers}
    return "x-amz-meta-fencing-nonce" in names and request.method == "PUT" and not _copies(request)


def _bears_condition(request: UpstreamRequest) -> bool:
    return any(name in ("if-match", "if-none-match") for name, _ in request.headers)


def _assembles(request: UpstreamRequest) -> bool:
    """A Complete or a copy."""
    return _copies(request) or (request.method == "POST" and "uploadId" in request.raw_query)


def _copies(request: UpstreamRequest) -> bool:
    return any(name == "x-amz-copy-source" for name, _ in request.headers)


def _patience_s(request: UpstreamRequest) -> float:
    """How long after its loss a request may still land; the operation's settle time-out is longer."""
    return (TIMING.settle_timeout_assembly_s if _assembles(request) else TIMING.settle_timeout_s) - 1


def _error(status: int, code: str, request: UpstreamRequest) -> MemoryResponse:
    body = b"" if request.method == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
    return MemoryResponse(status, [], body)


def _set(future: asyncio.Future[MemoryResponse], answer: MemoryResponse) -> None:
    if not future.done():
        future.set_result(answer)


def _shown(request: UpstreamRequest) -> str:
    return f"{request.method} {request.raw_key}?{request.raw_query}".rstrip("?")
