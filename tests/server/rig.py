"""A whole gateway in this process, and a client of raw sockets that says exactly what it is told to say."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree

import structlog

from gateway.clock import SystemClock
from gateway.core.keys import Mode, Rule, Ruleset, WithoutToken, compile_rule
from gateway.s3.sigv4 import Credentials, sign_headers
from gateway.server.app import Gateway, Parts
from gateway.server.clients import Client
from gateway.service.waits import Timing
from gateway.stores.base import Store
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind, Fence
from gateway.telemetry import configure_logging
from gateway.upstream.base import (
    Capabilities,
    CapabilitySource,
    Upstream,
    UpstreamExchange,
    UpstreamRequest,
    UpstreamResponse,
)
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.memory import MemoryResponse, MemoryUpstream, StoredObject
from gateway.upstream.probe import FixedCapabilities
from tests.conftest import REGION, StoreServer

CREDENTIALS = Credentials("AKIDRIGEXAMPLE", "secret-of-the-rig/EXAMPLE+KEY")
HOST = "s3.rig.example"
BUCKET = "b"
BOUND_S = 10.0
"""No step of a conversation may take longer."""

QUICK = Timing(handover_wait_s=0.2)
PROVED = Capabilities(
    conditional_put=True, conditional_copy=True, conditional_delete=True, files_paths=False, overlooks=False
)
"""What the store in memory would prove."""

Pairs = Sequence[tuple[str, str]]


class ShiftedClock(SystemClock):
    """The machine's clock, its wall hand moved by `ahead_s`."""

    ahead_s = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead_s


class Watched:
    """An upstream, and what has been asked of it."""

    def __init__(self, inner: Upstream) -> None:
        self.inner = inner
        self.writes: list[str] = []
        """`METHOD bucket/key?query` of each request that was not a mere read."""
        self.requests: list[UpstreamRequest] = []
        """All requests."""
        self.bodies: list[bytes] = []
        """The bodies that were at hand."""

    async def open(self, request: UpstreamRequest, content_length: int) -> UpstreamExchange:
        self._note(request)
        return await self.inner.open(request, content_length)

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> UpstreamResponse:
        self._note(request)
        self.bodies.append(body)
        return await self.inner.send(request, body, timeout_s)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> UpstreamResponse:
        self.requests.append(request)
        return await self.inner.read(request, body)

    async def close(self) -> None:
        await self.inner.close()

    def _note(self, request: UpstreamRequest) -> None:
        self.requests.append(request)
        self.writes.append(
            f"{request.method} {request.bucket}/{request.raw_key}" + (request.raw_query and f"?{request.raw_query}")
        )


class Stalled(MemoryUpstream):
    """Holds each PUT back until it is told to go on."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.arrived, self.release = asyncio.Event(), asyncio.Event()

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if request.method == "PUT":
            self.arrived.set()
            await self.release.wait()
        return await super().send(request, body, timeout_s)


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response as it came."""

    status: int
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The only field of that lower-case name; None where there is none."""
        found = [v for n, v in self.headers if n == name]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def xml(self) -> dict[str, str]:
        """The elements of an error document."""
        root = ElementTree.fromstring(self.body)
        assert root.tag == "Error", self.body
        return {child.tag: child.text or "" for child in root}

    @property
    def code(self) -> str:
        return self.xml["Code"]

    @property
    def closes(self) -> bool:
        return self.header("connection") == "close"


class Wire:
    """One connection to the S3 listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send all of it, with back pressure."""
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), BOUND_S)

    async def head(self) -> tuple[int, str, list[tuple[str, str]]]:
        """The next response's status, version and fields."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), BOUND_S)
        first, *lines = head[:-4].split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        fields = [line.split(b": ", 1) for line in lines]
        pairs = [(n.decode().lower(), v.decode("utf-8", "surrogateescape")) for n, v in fields]
        return int(status), version.decode(), pairs

    async def answer(self, method: str = "GET") -> Answer:
        """The next response, whole; `method` is what it answers."""
        status, version, fields = await self.head()
        named = dict(fields)
        if method == "HEAD" or status in (204, 304) or status < 200:
            body = b""
        elif named.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        elif "content-length" in named:
            body = await asyncio.wait_for(self._reader.readexactly(int(named["content-length"])), BOUND_S)
        else:
            body = await self.rest()
        return Answer(status, version, tuple(fields), body)

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int(await asyncio.wait_for(self._reader.readline(), BOUND_S), 16)
            body += (await asyncio.wait_for(self._reader.readexactly(size + 2), BOUND_S))[:-2]
            if not size:
                return body

    async def rest(self) -> bytes:
        """All that still comes until the gateway closes. Raises `ConnectionResetError` for a reset."""
        return await asyncio.wait_for(self._reader.read(), BOUND_S)

    async def nothing_for(self, seconds: float) -> bool:
        """Whether the gateway says nothing for that long; it costs that long."""
        try:
            await asyncio.wait_for(self._reader.readexactly(1), seconds)
        except TimeoutError:
            return True
        return False

    def finish(self) -> None:
        """Say that no more will come, by FIN."""
        self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


@dataclass
class Rig:
    """A running gateway and what stands around it."""

    gateway: Gateway
    store: Store
    upstream: Watched
    stream: io.BytesIO
    clock: ShiftedClock
    trust: ssl.SSLContext | None = None
    """Whom the client believes where the gateway speaks TLS."""
    wires: list[Wire] = field(default_factory=list)

    # --- sending

    async def wire(self) -> Wire:
        tls: dict[str, Any] = {} if self.trust is None else {"ssl": self.trust, "server_hostname": HOST}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.s3_port, limit=1 << 20, **tls)
        wire = Wire(reader, writer)
        self.wires.append(wire)
        return wire

    async def ask(self, method: str, target: str, headers: Pairs = (), body: bytes | None = None, **how: Any) -> Answer:
        """Send one signed request on a connection of its own and answer what comes back; `how` is `signed`'s."""
        wire = await self.wire()
        try:
            await wire.send(signed(method, target, headers, body, **how) + (body or b""))
            return await wire.answer(method)
        finally:
            wire.close()

    async def say(self, data: bytes, method: str = "GET") -> Answer:
        """Send these bytes on a connection of their own and answer what comes back."""
        wire = await self.wire()
        try:
            await wire.send(data)
            return await wire.answer(method)
        finally:
            wire.close()

    async def put(self, key: str, body: bytes, token: int | str | None = None, *headers: tuple[str, str]) -> Answer:
        """PUT an object under a token."""
        said = () if token is None else (("x-fencing-token", str(token)),)
        return await self.ask("PUT", f"/{BUCKET}/{key}", (*said, *headers), body)

    # --- looking

    @property
    def logged(self) -> str:
        """The log as it is written."""
        return self.stream.getvalue().decode()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every line of the log."""
        return [json.loads(line) for line in self.logged.splitlines()]

    @property
    def told(self) -> list[str]:
        """The events of the log since the gateway has started."""
        events = [line["event"] for line in self.log]
        return events[events.index("started") + 1 :]

    @property
    def record(self) -> dict[str, Any]:
        """The log's line of the last request."""
        return [line for line in self.log if line["event"] == "request"][-1]

    def stored(self, key: str, bucket: str = BUCKET) -> StoredObject | None:
        """An object as it lies in the store in memory."""
        assert isinstance(self.upstream.inner, MemoryUpstream)
        return self.upstream.inner.buckets[bucket].get(key)

    async def fence(self, key: str) -> Fence:
        return await self.store.fence(key)

    async def floor(self, key: str, floor: int) -> None:
        """Wait until the floor of `key` is that."""
        async with asyncio.timeout(BOUND_S):
            while (await self.store.fence(key)).floor != floor:
                await asyncio.sleep(0)

    async def answered(self, count: int) -> None:
        """Wait until that many requests have been answered, or given up, and logged."""
        async with asyncio.timeout(BOUND_S):
            while sum(line["event"] == "request" for line in self.log) < count:
                await asyncio.sleep(0)

    async def events(self, key: str, kind: EventKind) -> list[Event]:
        return [event for event in await self.store.events(key, None, 1000) if event.kind is kind]


@asynccontextmanager
async def running(
    *,
    upstream: Upstream | None = None,
    store: Store | None = None,
    rules: Iterable[Rule] = (),
    clients: Iterable[Client] = (Client(CREDENTIALS),),
    timing: Timing = QUICK,
    capabilities: CapabilitySource | None = None,
    trust: ssl.SSLContext | None = None,
    **parts: Any,
) -> AsyncIterator[Rig]:
    """A gateway on a free port of loopback, by default over stores in memory with one bucket, its log captured."""
    stream = io.BytesIO()
    configure_logging("debug", stream)
    store = store or MemoryStore()
    watched = Watched(upstream or MemoryUpstream(BUCKET, "other"))
    clock = ShiftedClock()
    gateway = Gateway(
        Parts(
            store=store,
            store_start=await store.start("rules"),
            upstream=watched,
            capabilities=capabilities or FixedCapabilities(PROVED),
            rules=Ruleset(list(rules)),
            clients=tuple(clients),
            clock=clock,
            timing=timing,
            virtual_host_suffixes=(HOST,),
            drain_timeout_s=2.0,
            **parts,
        )
    )
    await gateway.start()
    rig = Rig(gateway, store, watched, stream, clock, trust)
    try:
        yield rig
    finally:
        for wire in rig.wires:
            wire.close()
        try:
            await gateway.stop()
        finally:
            structlog.reset_defaults()


def rule(
    match: str,
    key: str | None = None,
    mode: Mode = Mode.ENFORCE,
    without_token: WithoutToken = WithoutToken.UNTIL_FENCED,
    *,
    rekey: bool = False,
) -> Rule:
    return Rule(*compile_rule(match, key), ("*",), mode, without_token, rekey)


def signed(
    method: str,
    target: str,
    headers: Pairs = (),
    body: bytes | None = None,
    *,
    unsigned: Pairs = (),
    credentials: Credentials = CREDENTIALS,
    payload: str | None = None,
    host: str = HOST,
    now: float | None = None,
    version: str = "HTTP/1.1",
) -> bytes:
    """The head of a signed request, its last empty line included. `payload` is `x-amz-content-sha256`, by default the
    body's digest; Content-Length is the body's, unless it is None or `headers` frame the body. `unsigned` fields
    follow what is signed."""
    path, _, query = target.partition("?")
    lower = [(name.lower(), value) for name, value in headers]
    proof = sign_headers(
        method,
        host,
        path,
        query,
        lower,
        payload_hash=payload or sha256(body or b"").hexdigest(),
        credentials=credentials,
        region=REGION,
        now=time.time() if now is None else now,
    )
    fields = [("host", host), *headers, *proof, *unsigned]
    framed = {"content-length", "transfer-encoding"} & {name.lower() for name, _ in fields}
    if body is not None and not framed:
        fields.append(("content-length", str(len(body))))
    return raw(f"{method} {target} {version}", fields)


def raw(line: str, fields: Pairs) -> bytes:
    """A head, byte for byte."""
    lines = [line, *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def real(server: StoreServer) -> UpstreamClient:
    """A client of the real store, to be closed by the gateway."""
    return UpstreamClient(server.url, region=REGION, credentials=StaticCredentials(server.credentials))
