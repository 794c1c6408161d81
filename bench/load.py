"""The load: prepared and signed requests over raw sockets, as cheap as can be, so that the generator is no bottleneck.

What is here runs in a process of its own. Each connection sends its next request when the last has been answered. The
CPU time that a target's process uses meanwhile is read here, right before the first request and right after the last.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import cast

import uvloop

from gateway.s3.sigv4 import UNSIGNED_PAYLOAD, Credentials, sign_headers

BLOCK_BYTES = 1024 * 1024
READ_BYTES = 256 * 1024
LIMIT_S = 120.0
"""The longest one round may take."""
_NO_TRANSPORT = cast(asyncio.Transport, None)


class NotMeasured(Exception):
    """A request was not answered as it should have been; the message says how."""


@dataclass(frozen=True)
class Door:
    """Where requests go in: the store itself, or a process before it."""

    name: str
    port: int
    credentials: Credentials
    pid: int | None = None
    """The process whose CPU time counts."""
    token: int | None = None
    """The fencing token that its writes bear."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU time of the process so far, all its threads."""
        if self.pid is None:
            return 0.0
        # How Linux numbers the CPU clock of another process: clock_getcpuclockid(3).
        return time.clock_gettime((~self.pid << 3) | 2)


@dataclass(frozen=True)
class Load:
    """Requests of one kind."""

    method: str
    size_bytes: int
    bucket: str
    prefix: str
    connections: int
    keys: int = 1
    """Objects of each connection; each is used at least once a round."""
    seconds: float = 0.0
    """How long a round goes on, the requests under way then finished."""
    payload_signed: bool = True


@dataclass(frozen=True)
class Sample:
    """What one round has shown."""

    requests: int
    wall_s: float
    cpu_s: float
    took_s: tuple[float, ...] = ()
    """Of each request."""


@lru_cache(maxsize=4)
def _block(size_bytes: int) -> bytes:
    return os.urandom(size_bytes)


@lru_cache(maxsize=8)
def _digest(size_bytes: int, times: int) -> str:
    running, block = sha256(), _block(size_bytes)
    for _ in range(times):
        running.update(block)
    return running.hexdigest()


@dataclass(frozen=True)
class _Request:
    """The bytes to write: `first` once, then `block` so many `times`."""

    first: bytes
    block: bytes
    times: int


def _prepare(door: Door, load: Load, name: str, token: int | None, *, expect: bool = False) -> _Request:
    """A request, signed for the next quarter of an hour."""
    path = f"/{load.bucket}/{load.prefix}{name}"
    fields: list[tuple[str, str]] = []
    size, times = min(load.size_bytes, BLOCK_BYTES), max(1, load.size_bytes // BLOCK_BYTES)
    digest = sha256(b"").hexdigest()
    if load.method == "PUT":
        digest = _digest(size, times) if load.payload_signed else UNSIGNED_PAYLOAD
        if token is not None:
            fields.append(("x-fencing-token", str(token)))
    signed = sign_headers(
        load.method,
        door.host,
        path,
        "",
        fields,
        payload_hash=digest,
        credentials=door.credentials,
        region="us-east-1",
        now=time.time(),
    )
    if load.method == "PUT":
        fields.append(("content-length", str(load.size_bytes)))
    if expect:
        fields.append(("expect", "100-continue"))
    lines = [f"{load.method} {path} HTTP/1.1", f"host: {door.host}", *(f"{n}: {v}" for n, v in (*fields, *signed))]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    if load.method != "PUT" or expect:
        return _Request(head, b"", 0)
    if times == 1:
        return _Request(head + _block(size), b"", 0)
    return _Request(head, _block(size), times)


class _Connection(asyncio.BufferedProtocol):
    """A client that reads no more of an answer than its status and its length."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport = _NO_TRANSPORT
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._left = 0
        self._status = 0
        self._answer: asyncio.Future[int] | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    async def ask(self, request: _Request) -> int:
        """The status of the answer, once it has come whole. Raises `NotMeasured`."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answer = answer
        self._transport.write(request.first)
        for _ in range(request.times):
            await self._drained.wait()
            self._transport.write(request.block)
        return await answer

    def told(self) -> str:
        """The beginning of the last answer, for people."""
        return self._head[:600].decode(errors="replace")

    def end(self) -> None:
        """Say that no request will come."""
        self._transport.write_eof()

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BLOCK_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left > nbytes:
            self._left -= nbytes
        elif self._left:
            self._left = 0
            self._done()
        else:
            self._head += self._buffer[:nbytes]
            self._read_head()

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drained.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NotMeasured(f"the connection ended without an answer: {exc or 'closed'}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _read_head(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return
        self._status = int(self._head[9:12])
        length = 0
        for line in self._head[:end].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self._left = length - (len(self._head) - end - 4)
        if self._left <= 0:
            self._done()

    def _done(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._status)
        if self._status == 200:
            self._head = b""


async def _connect(door: Door) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, "127.0.0.1", door.port)
    return connection


async def _in_turn(connection: _Connection, requests: list[_Request], end: float, took: list[float]) -> None:
    """Ask one after another, each at least once, until the time is over. Raises `NotMeasured`."""
    number = 0
    while (began := time.perf_counter()) < end or number < len(requests):
        status = await connection.ask(requests[number % len(requests)])
        took.append(time.perf_counter() - began)
        if status != 200:
            raise NotMeasured(f"answered {status}: {connection.told()}")
        number += 1


async def _round(door: Door, load: Load) -> Sample:
    connections = [await _connect(door) for _ in range(load.connections)]
    requests = [
        [_prepare(door, load, f"{number}-{key}", door.token) for key in range(load.keys)]
        for number in range(load.connections)
    ]
    took: list[float] = []
    cpu_s, began = door.cpu_s(), time.perf_counter()
    end = began + load.seconds
    async with asyncio.TaskGroup() as group:
        for connection, mine in zip(connections, requests, strict=True):
            group.create_task(_in_turn(connection, mine, end, took))
    sample = Sample(len(took), time.perf_counter() - began, door.cpu_s() - cpu_s, tuple(took))
    for connection in connections:
        connection.close()
    return sample


async def _refused_once(door: Door, request: _Request) -> None:
    """A stale write, which closes its connection. Raises `NotMeasured` unless it is refused before its body."""
    connection = await _connect(door)
    status = await connection.ask(request)
    if status != 412:
        raise NotMeasured(f"a stale write was answered {status}: {connection.told()}")
    await connection.closed


async def _connected_once(door: Door, request: _Request) -> None:
    """What a connection alone costs: opened, ended by the client, closed by the server."""
    connection = await _connect(door)
    connection.end()
    await connection.closed


async def _one_shots(door: Door, load: Load, once: Callable[[Door, _Request], Awaitable[None]]) -> Sample:
    assert door.token is not None
    request = _prepare(door, load, "0-0", door.token - 1, expect=True)
    took: list[float] = []

    async def caller() -> None:
        while (start := time.perf_counter()) < end:
            await once(door, request)
            took.append(time.perf_counter() - start)

    cpu_s, began = door.cpu_s(), time.perf_counter()
    end = began + load.seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(load.connections):
            group.create_task(caller())
    return Sample(len(took), time.perf_counter() - began, door.cpu_s() - cpu_s, tuple(took))


async def _bounded(what: Awaitable[Sample]) -> Sample:
    async with asyncio.timeout(LIMIT_S):
        return await what


def _run(what: Awaitable[Sample]) -> Sample:
    try:
        return uvloop.run(_bounded(what))
    except* (NotMeasured, OSError, TimeoutError) as group:
        fault: BaseException = group
        while isinstance(fault, BaseExceptionGroup):
            fault = fault.exceptions[0]
        raise NotMeasured(str(fault) or f"not within {LIMIT_S:g} s") from None


def exchange(door: Door, load: Load) -> Sample:
    """One round of requests that are all answered 200. Raises `NotMeasured`."""
    return _run(_round(door, load))


def refused(door: Door, load: Load) -> Sample:
    """One round of stale writes with `Expect: 100-continue`, each on a connection of its own. Raises `NotMeasured`."""
    return _run(_one_shots(door, load, _refused_once))


def connected(door: Door, load: Load) -> Sample:
    """One round of connections without a request. Raises `NotMeasured`."""
    return _run(_one_shots(door, load, _connected_once))
