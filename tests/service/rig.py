"""The service layer on a table: real gates and writes, a store and an upstream in memory, faults on order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256

from gateway.core.errors import FenceError
from gateway.core.keys import Rule, Ruleset, Token, agree, compile_rule, key_of_object
from gateway.s3.fencing import NOTHING_CLAIMED, Claimed
from gateway.s3.recognise import recognise
from gateway.s3.request import Headers, RequestHead, parse_head
from gateway.service.fences import Fences
from gateway.service.objects import Objects
from gateway.service.records import FencedBefore, Records
from gateway.service.uploads import Uploads
from gateway.service.values import Result, Write
from gateway.service.waits import Timing
from gateway.service.writes import Writes
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import Capabilities, UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream, StoredObject
from gateway.upstream.probe import FixedCapabilities
from tests.virtual_time import VirtualClock

HONEST = Capabilities(conditional_put=True, conditional_copy=True, conditional_delete=True)
DEAF = Capabilities()
BUCKET = "bkt"
JOB = "renders/j/out"
"""An object that the rule maps to the key `j`."""


class Fault(Enum):
    """What happens to the next write that passes its commit point."""

    LOST_APPLIED = auto()
    """It is applied at once, the answer is lost."""
    LOST_DROPPED = auto()
    """It is never applied, the answer is lost."""
    LOST_LATE = auto()
    """The answer is lost; it lands when `land` is called."""
    ERROR_500_APPLIED = auto()
    ERROR_500_DROPPED = auto()
    REFUSED_403 = auto()
    SILENT = auto()
    """No answer before `answer` is called; then it is applied and answered."""
    NOT_REACHED = auto()
    APPLIED_412 = auto()
    """It is applied, and then answered as if its condition had failed: the server tried it twice."""
    ERROR_IN_200 = auto()
    """A 200 whose body is an error; nothing is applied."""
    EMPTY_200 = auto()
    """A 200 whose body breaks off before it says how it went; nothing is applied."""


class FaultyUpstream(MemoryUpstream):
    """A store in memory that fails on order. Writes are counted; reads are honest."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self.faults: list[Fault] = []
        self.late: list[tuple[UpstreamRequest, bytes]] = []
        self.sent: list[UpstreamRequest] = []
        self.silent = asyncio.Event()
        self.reached = asyncio.Event()

    def land(self) -> None:
        """The writes that were under way take effect now, the oldest first."""
        for request, body in self.late:
            self.apply(request, body)
        self.late.clear()

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        self.sent.append(request)
        self.reached.set()
        if not self.faults:
            return await super().send(request, body, timeout_s)
        fault = self.faults.pop(0)
        if fault is Fault.NOT_REACHED:
            raise UpstreamNotReached("connection refused")
        if fault is Fault.SILENT:
            await asyncio.wait_for(self.silent.wait(), timeout_s)
            return await super().send(request, body, timeout_s)
        if fault in (Fault.LOST_APPLIED, Fault.ERROR_500_APPLIED, Fault.APPLIED_412):
            self.apply(request, body)
        if fault is Fault.LOST_LATE:
            self.late.append((request, body))
        if fault in (Fault.ERROR_500_APPLIED, Fault.ERROR_500_DROPPED):
            return MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>")
        if fault is Fault.APPLIED_412:
            return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
        if fault is Fault.ERROR_IN_200:
            return MemoryResponse(200, [], b"<Error><Code>InternalError</Code></Error>")
        if fault is Fault.EMPTY_200:
            return MemoryResponse(200, [], b"   ")
        if fault is Fault.REFUSED_403:
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        raise UpstreamLost("connection reset")


class Payload:
    """A body whose pieces come when the test gives them; all at once if it names them before."""

    def __init__(self, *pieces: bytes, length: int | None = None) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.length = sum(map(len, pieces)) if length is None else length
        self.sha256 = sha256(b"".join(pieces)).hexdigest() if length is None else None
        self.wanted = asyncio.Event()
        for piece in pieces:
            self.give(piece)
        if length is None:
            self.end()

    def give(self, piece: bytes) -> None:
        self._queue.put_nowait(piece)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def read(self) -> bytes:
        return b"".join([piece async for pieces in self.pieces() for piece in pieces])

    async def pieces(self) -> AsyncIterator[list[bytes]]:
        self.wanted.set()
        while (piece := await self._queue.get()) is not None:
            yield [piece]

    trailer = None

    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        return ()


def rule(match: str = "renders/{job}/**", key: str | None = "{job}", **policy: object) -> Rule:
    pattern, template = compile_rule(match, key)
    return Rule(pattern, template, **policy)  # type: ignore[arg-type]


@dataclass
class Rig:
    """One gateway's service layer."""

    upstream: FaultyUpstream
    store: MemoryStore
    fences: Fences
    writes: Writes
    uploads: Uploads
    rules: Ruleset

    def data(self, key: str = JOB) -> bytes | None:
        """What a reader sees."""
        stored = self.object(key)
        return None if stored is None else stored.data

    def object(self, key: str = JOB) -> StoredObject | None:
        return self.upstream.buckets[BUCKET].get(key)

    def write(self, method: str, key: str, token: int, body: Payload | None, **options: object) -> Write:
        """A write as the server would understand it. Options: `fence_key`, `query`, `headers`."""
        headers = Headers(options.get("headers", ()))  # type: ignore[arg-type]
        target = f"/{BUCKET}/{key}{options.get('query', '')}"
        head: RequestHead = parse_head(method, target, headers)
        mapping = self.rules.map(BUCKET, key)
        named, was_named = agree(
            key_of_object(BUCKET, key),
            rule=mapping.key,
            header=options.get("fence_key"),  # type: ignore[arg-type]
        )
        return Write(
            operation=recognise(head),
            head=head,
            bucket=BUCKET,
            object_key=key,
            token=Token(token),
            key=named,
            named=was_named,
            rule=mapping.rule,
            ruled=mapping.key is not None,
            body=body,
            request_id="request",
        )

    async def put(self, token: int, data: bytes | Payload, key: str = JOB, **options: object) -> Result:
        body = data if isinstance(data, Payload) else Payload(data)
        return await self.writes.fenced(self.write("PUT", key, token, body, **options))

    async def delete(self, token: int, key: str = JOB, **options: object) -> Result:
        return await self.writes.fenced(self.write("DELETE", key, token, None, **options))

    async def copy(self, token: int, key: str, source: str = f"{BUCKET}/{JOB}", **headers: str) -> Result:
        """A copy of `source` to `key`, of token 0 without one. `headers` by their names with underscores."""
        fields = [("x-amz-copy-source", source), *((n.replace("_", "-"), v) for n, v in headers.items())]
        write = self.write("PUT", key, token, None, headers=fields)
        return await (self.writes.fenced(write) if token else self.writes.unfenced(write))

    async def create(self, token: int, key: str = JOB, **options: object) -> str:
        """Begin a multipart upload; answers its id."""
        result = await self.uploads.create(self.write("POST", key, token, None, query="?uploads", **options))
        assert result.status == 200
        return result.body.split(b"<UploadId>")[1].split(b"</UploadId>")[0].decode()

    async def part(
        self, upload_id: str, data: bytes | Payload, said: Claimed = NOTHING_CLAIMED, number: int = 1, key: str = JOB
    ) -> Result:
        body = data if isinstance(data, Payload) else Payload(data)
        write = self.write("PUT", key, 0, body, query=f"?partNumber={number}&uploadId={upload_id}")
        await self.uploads.bound(write, said)
        return await self.uploads.part(write)

    async def complete(self, upload_id: str, said: Claimed = NOTHING_CLAIMED, etag: str = "", key: str = JOB) -> Result:
        part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        xml = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>"
        write = self.write("POST", key, 0, Payload(xml.encode()), query=f"?uploadId={upload_id}")
        upload = await self.uploads.bound(write, said)
        return await self.uploads.complete(write, upload)

    async def floor(self, key: str = "j") -> int:
        return (await self.store.fence(key)).floor


async def rig(
    *rules: Rule,
    capabilities: Capabilities = HONEST,
    timing: Timing | None = None,
    small_body_bytes: int = 16,
    store: MemoryStore | None = None,
    upstream: FaultyUpstream | None = None,
    clock: VirtualClock | None = None,
    fenced_before: FencedBefore = False,
) -> Rig:
    """A service layer that has started; with `store` or `upstream` of an earlier one, after a restart."""
    clock = clock or VirtualClock()
    store = store or MemoryStore(clock=clock.wall)
    start = await store.start("rules")
    upstream = upstream or FaultyUpstream(BUCKET)
    fences = Fences(store, clock, timing or Timing())
    writes = Writes(
        fences,
        Objects(),
        upstream,
        FixedCapabilities(capabilities),
        clock,
        small_body_bytes=small_body_bytes,
        records=Records(store, upstream, FixedCapabilities(capabilities), clock, fenced_before=fenced_before),
    )
    uploads = Uploads(writes)
    keys = await uploads.bindings.start()
    if not start.clean:
        fences.earlier_run.started_unclean(keys if start.bindings_known else None)
    return Rig(upstream, store, fences, writes, uploads, Ruleset(rules or (rule(),)))


async def refusal(call: object) -> FenceError:
    """The refusal that a call must end in."""
    try:
        result = await call  # type: ignore[misc]
    except FenceError as error:
        return error
    raise AssertionError(f"not refused: {result}")


async def elapsed(call: object) -> tuple[object, float]:
    """A call's result and how long it took, virtual seconds."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    result = await call  # type: ignore[misc]
    return result, loop.time() - before
