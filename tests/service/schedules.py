"""Random schedules over the real service in virtual time: writers with tokens, faults, late landings, restarts.

A seed makes a schedule, the same each time. A `Judge` stands at the upstream and at admission, and judges what takes
effect there; it knows nothing of how the service decides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from gateway.core.errors import FenceError, Outcome
from gateway.core.write import Answer
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject
from gateway.service.batches import Batches
from gateway.service.values import Result, Write
from gateway.service.waits import Timing
from gateway.stores.base import Event, Fence
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import Capabilities, UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse
from tests.service.rig import BUCKET, JOB, FaultyUpstream, Payload, Rig, rig
from tests.virtual_time import VirtualClock

OTHER = "renders/j/other"
TIMING = Timing()
TOKENS = range(5)
ERROR_500 = MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>")
ERROR_403 = MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")

writer_token: ContextVar[int] = ContextVar("writer_token", default=-1)
"""Whose request it is; -1 for the gateway's own (aborts)."""


class Violation(AssertionError):
    """A guarantee is broken."""


@dataclass
class Judge:
    """What has been promised, held against what takes effect."""

    admitted: int = 0
    """The highest token that has been admitted: nothing lower may take effect any more (G2)."""
    floor: int = 0
    denied: set[bytes] = field(default_factory=set)
    """Bodies whose writers were told that nothing of them was or can be applied (G5)."""
    seen: set[tuple[str, bytes | None]] = field(default_factory=set)
    """What each object has been; None for absent."""
    log: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time() - 1000:8.2f} {line}")

    def fail(self, line: str) -> None:
        self.note(line)
        raise Violation("\n".join(self.log))

    def effect(self, token: int, key: str, before: bytes | None, after: bytes | None) -> None:
        """A write of `token` has changed an object."""
        self.seen.add((key, after))
        self.note(f"effect of {token}: {key} {before!r} -> {after!r}")
        if token < self.admitted:
            self.fail(f"G2: {token} took effect on {key} after {self.admitted} had been admitted")
        if after in self.denied:
            self.fail(f"G5: {after!r} took effect after its writer was told that it could not")

    def look(self, fence: Fence) -> None:
        """The floor as the store has it now."""
        if fence.floor < self.floor or fence.completed_floor > fence.floor:
            self.fail(f"G0: the floor is {fence.floor} after {self.floor}, completed {fence.completed_floor}")
        self.floor = fence.floor


class SlowStore(MemoryStore):
    """A store whose disk takes its time before and after a raise."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(clock=VirtualClock().wall)
        self._chance = chance

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        await asyncio.sleep(self._chance.choice([0, 0, 0.1, 2]))
        fence = await super().raise_floor(key, token, event)
        await asyncio.sleep(self._chance.choice([0, 0, 0.1, 2]))
        return fence


class Chaos(FaultyUpstream):
    """A store whose answers are lost and whose writes land late, but within the settle time-out of their loss."""

    def __init__(self, judge: Judge, chance: random.Random) -> None:
        super().__init__(BUCKET)
        self.judge, self.chance = judge, chance
        self.under_way: dict[asyncio.TimerHandle, Callable[[], None]] = {}

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        return await self._way(request, body, timeout_s)

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        await asyncio.sleep(self.chance.choice([0, 0.5]))
        if self.chance.random() < 0.03:
            raise UpstreamNotReached("connection refused")
        return ChaoticExchange(self, request, content_length)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        await asyncio.sleep(self.chance.choice([0, 0, 0.3]))
        if self.chance.random() < 0.05:
            raise UpstreamLost("reset")
        answer = super().apply(request, body)
        await asyncio.sleep(self.chance.choice([0, 0, 0.3, 3]))
        return answer

    async def _way(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        """What becomes of a request that has been sent whole."""
        chance, token = self.chance, writer_token.get()
        staging = "partNumber" in request.raw_query or request.raw_query == "uploads"
        kinds, weights = ["answered", "lost", "not reached", "error", "refused", "silent"], [60, 18, 4, 12, 4, 2]
        kind = chance.choices(kinds[:3] if staging else kinds, weights[:3] if staging else weights)[0]
        self.judge.note(f"send of {token}: {request.method} {request.raw_key}?{request.raw_query} {body!r} {kind}")
        if kind == "not reached":
            raise UpstreamNotReached("connection refused")
        if kind == "refused":
            await asyncio.sleep(chance.choice([0, 1]))
            return ERROR_403
        loop = asyncio.get_running_loop()
        applied: asyncio.Future[MemoryResponse] = loop.create_future()

        def land() -> None:
            applied.set_result(self._effect(token, request, body))

        ends_s = timeout_s if kind == "silent" else chance.choice([0, 0.2, 3])
        if kind == "answered":
            self._land_in(chance.choice([0, ends_s]), land)
            answer = await asyncio.shield(applied)
            await asyncio.sleep(chance.choice([0, 0, 1]))
            return answer
        if chance.random() < 0.8:
            self._land_in(chance.choice([0, ends_s, ends_s + chance.uniform(0, self._patience_s(request))]), land)
        try:
            await asyncio.sleep(ends_s)
        except asyncio.CancelledError:
            self.hurry(TIMING.settle_timeout_s - 1)  # the connection is reset now
            raise
        if kind == "error":
            return ERROR_500
        raise UpstreamLost("connection reset")

    def _patience_s(self, request: UpstreamRequest) -> float:
        """How long after its loss a request may still land."""
        completes = request.method == "POST" and "uploadId" in request.raw_query
        return (TIMING.settle_timeout_assembly_s if completes else TIMING.settle_timeout_s) - 1

    def _land_in(self, delay_s: float, land: Callable[[], None]) -> None:
        def landed() -> None:
            del self.under_way[handle]
            land()

        handle = asyncio.get_running_loop().call_later(delay_s, landed)
        self.under_way[handle] = land

    def hurry(self, within_s: float) -> None:
        """Connections have been cut: what has been sent lands within that time, or never."""
        now = asyncio.get_running_loop().time()
        for handle, land in list(self.under_way.items()):
            if handle.when() > now + within_s:
                handle.cancel()
                del self.under_way[handle]
                self._land_in(self.chance.uniform(0, within_s), land)

    def _effect(self, token: int, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        before = {key: self._data(key) for key in (JOB, OTHER)}
        answer = super().apply(request, body)
        for key, data in before.items():
            if self._data(key) != data:
                self.judge.effect(token, key, data, self._data(key))
        return answer

    def _data(self, key: str) -> bytes | None:
        stored = self.buckets[BUCKET].get(key)
        return None if stored is None else stored.data


class ChaoticExchange(MemoryExchange):
    """A streamed request that goes the way of all requests once its last byte is written."""

    def __init__(self, store: Chaos, request: UpstreamRequest, content_length: int) -> None:
        super().__init__(store, request, content_length)
        self._chaos = store
        self._way: asyncio.Task[MemoryResponse] | None = None

    async def write(self, data: bytes) -> None:
        assert len(data) < self._unsent or self._committed, "the tail went out before the commit point"
        self._body += data
        self._unsent -= len(data)
        if not self._unsent:
            self._way = asyncio.create_task(self._chaos._way(self._request, bytes(self._body), TIMING.commit_timeout_s))

    async def response(self, timeout_s: float) -> MemoryResponse:
        assert self._way is not None
        return await self._way


class Schedule:
    """One run: a gateway that is restarted now and then, and its writers."""

    def __init__(self, seed: int, capabilities: Capabilities, *, steps: int = 25) -> None:
        self.chance = random.Random(seed)
        self.capabilities = capabilities
        self.steps = steps
        self.judge = Judge()
        self.upstream = Chaos(self.judge, self.chance)
        self.store = SlowStore(self.chance)
        self.clock = VirtualClock()
        self.writers: set[asyncio.Task[None]] = set()
        self.faults: list[BaseException] = []
        self.bodies = 0
        self.rig: Rig

    async def run(self) -> None:
        """Run it to its end. Raises `Violation` with the whole story."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._fault)
        await self._start()
        for _ in range(self.steps):
            self._step()
            await asyncio.sleep(self.chance.choice([0, 0, 0.1, 1, 5, 15]))
            if self.chance.random() < 0.06:
                await self._restart(crash=self.chance.random() < 0.7)
            self._look()
        await asyncio.sleep(700)
        assert all(task.done() for task in self.writers), "a writer waits for ever"
        self._look()
        await self._end_rig()

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Whatever ends in the loop's own hands is a fault, but for a raise that failed after its caller had gone."""
        error = context.get("exception") or AssertionError(context["message"])
        if not isinstance(error, FenceError):
            self.faults.append(error)

    def _look(self) -> None:
        self.judge.look(self.store._fences.get("j") or Fence("j"))
        if self.faults:
            raise self.faults[0]
        for task in self.writers:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _start(self) -> None:
        self.rig = await rig(
            capabilities=self.capabilities, timing=TIMING, store=self.store, upstream=self.upstream, clock=self.clock
        )
        admit = self.rig.fences.admit

        async def admitted(key, token, **options):
            live = await admit(key, token, **options)
            self.judge.admitted = max(self.judge.admitted, token)
            self.judge.note(f"admitted {token}")
            return live

        self.rig.fences.admit = admitted

    async def _restart(self, *, crash: bool) -> None:
        self.judge.note("crash" if crash else "stop")
        if crash:
            await self.store.stop(clean=False)
        await self._cut()
        if not crash:
            fences = self.rig.fences
            clean = not fences.unsettled() and not fences.earlier_run_unsettled
            self.judge.note(f"stopped, clean: {clean}")
            await self.store.stop(clean=clean)
        self.upstream.hurry(TIMING.settle_timeout_s - 1)
        await self._start()

    async def _cut(self) -> None:
        for task in self.writers:
            task.cancel()
        await asyncio.gather(*self.writers, return_exceptions=True)
        self.writers.clear()
        await self._end_rig()

    async def _end_rig(self) -> None:
        await self.rig.uploads.stop()
        await self.rig.writes.close()

    # --- the writers

    def _step(self) -> None:
        chance = self.chance
        if chance.random() < 0.05 and self.writers:
            chance.choice(sorted(self.writers, key=lambda task: task.get_name())).cancel()
            return
        token = min(chance.choice(TOKENS), chance.choice(TOKENS)) + self.judge.floor // 2
        what = chance.choices([self._put, self._delete, self._upload, self._batch, self._check], [6, 2, 2, 2, 1])[0]
        self.bodies += 1
        task = asyncio.create_task(self._write(what, token, chance.choice([JOB, OTHER])), name=f"{self.bodies:04}")
        self.writers.add(task)

    async def _write(self, what: Callable[[int, str], Awaitable[None]], token: int, key: str) -> None:
        writer_token.set(token)
        try:
            await what(token, key)
        except (FenceError, S3Error) as error:
            self.judge.note(f"{what.__name__} of {token} on {key}: {error!r}")

    def _body(self, token: int, size: int) -> bytes:
        self.bodies += 1
        return f"{token}/{self.bodies}".encode().ljust(size, b".")

    async def _put(self, token: int, key: str) -> None:
        data = self._body(token, self.chance.choice([8, 100]))
        body = Payload(length=len(data))
        feeding = asyncio.create_task(self._feed(body, data))
        try:
            await self._answered(data, key, self.rig.put(token, body, key))
        finally:
            feeding.cancel()

    async def _feed(self, body: Payload, data: bytes) -> None:
        for start in range(0, len(data), 40):
            await asyncio.sleep(self.chance.choice([0, 0, 1, 10]))
            body.give(data[start : start + 40])
        body.end()

    async def _answered(self, data: bytes, key: str, call: Awaitable[Result]) -> None:
        """Hold the answer to a write of `data` against G5."""
        try:
            result = await call
        except FenceError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                self._deny(data, key)
            raise
        self.judge.note(f"answer {result.status} to {data!r}")
        if result.answer is Answer.REFUSED:
            self._deny(data, key)
        elif (key, data) not in self.judge.seen:
            self.judge.fail(f"G5: {data!r} was answered {result.status} and has never been seen")

    def _deny(self, data: bytes, key: str) -> None:
        self.judge.denied.add(data)
        if (key, data) in self.judge.seen:
            self.judge.fail(f"G5: {data!r} has been seen, and its writer is told that it was not applied")

    async def _delete(self, token: int, key: str) -> None:
        result = await self.rig.delete(token, key)
        self.judge.note(f"answer {result.status} to a delete of {token}")

    async def _upload(self, token: int, key: str) -> None:
        """A multipart upload; its client asks once more when the answer to Complete is lost. Only a Complete's own
        answer is held against G5, for an earlier one may be under way."""
        upload_id = await self.rig.create(token, key)
        data = self._body(token, 8)
        await asyncio.sleep(self.chance.choice([0, 1, 10]))
        part = await self.rig.part(upload_id, data, key=key)
        etag = part.header("etag") or ""
        await asyncio.sleep(self.chance.choice([0, 1, 10]))
        for _ in range(2):
            try:
                result = await self.rig.complete(upload_id, etag=etag, key=key)
            except FenceError as error:
                self.judge.note(f"complete of {token}: {error.reason}")
            else:
                if result.answer is Answer.APPLIED and (key, data) not in self.judge.seen:
                    self.judge.fail(f"G5: {data!r} is completed and has never been seen")
                return
            await asyncio.sleep(self.chance.choice([0, 2, 40]))

    async def _batch(self, token: int, key: str) -> None:
        wanted: list[tuple[BatchObject, Write | FenceError | None]] = [
            (BatchObject(one, None, (("Key", one),)), self.rig.write("DELETE", one, token, None))
            for one in (JOB, OTHER)
        ]
        head = parse_head("POST", f"/{BUCKET}?delete", Headers([]))
        await Batches(self.rig.writes).delete(head, BUCKET, wanted, quiet=False, on_refusal=lambda error, asked: None)

    async def _check(self, token: int, key: str) -> None:
        if token:
            self.rig.fences.unpin(await self.rig.fences.admit("j", token, cause="check"))  # type: ignore[arg-type]
