"""A client's connection without a socket, and a gateway without a network: bytes in at chosen cuts, answers out.

In virtual time, so that whatever waits for a time-out ends, and what waits for nothing is found out."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from gateway import telemetry
from gateway.core.errors import TryAgain
from gateway.core.keys import Ruleset
from gateway.s3.errors import S3Error
from gateway.server.app import Gateway, Parts
from gateway.server.clients import Client
from gateway.server.connection import Connection
from gateway.server.http import Carrier, Reply, Request
from gateway.server.listener import Limits, Listener
from gateway.stores.memory import MemoryStore
from gateway.telemetry import configure_logging
from gateway.upstream.memory import MemoryUpstream
from gateway.upstream.probe import FixedCapabilities
from tests.server.rig import BUCKET, CREDENTIALS, HOST, PROVED, rule
from tests.virtual_time import T, VirtualClock, run

NOW = 1_800_000_000.0
LONGEST_S = 400.0
"""No connection lasts longer than all time-outs together."""
RULES = (rule("renders/{job}/**", "{job}"),)


class FixedClock(VirtualClock):
    """The wall's hand stands still: signatures are the same in every run."""

    def wall(self) -> float:
        return NOW


class MemoryTransport(asyncio.Transport):
    """Keeps what is written. `takes`: how many bytes the client has room for, until it `reads` them."""

    def __init__(self, protocol: Connection, takes: int, *, half_closes: bool = True) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self._protocol = protocol
        self._takes = takes
        self._waiting = 0
        self.pauses_beyond = takes
        """How much may wait for the client until the gateway is told to write no more."""
        self._half_closes = half_closes
        self.sent = bytearray()
        self._reading = True
        self.closing = False
        self.closed = False
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written behind the end"
        if self.closing:
            return
        self.sent += data
        self._waiting += len(data)
        if self._waiting > self.pauses_beyond and self._protocol._writable is None:
            self._protocol.pause_writing()

    def take(self) -> None:
        """The client reads what has come."""
        self._waiting = 0
        if self.closing:
            self.abort()
        elif self._protocol._writable is not None:
            self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        assert self._half_closes
        self.ended = True

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        assert self._reading
        assert not self.closing, "uvloop's transports raise"
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        assert not self.closing, "uvloop's transports raise"
        self._reading = True

    def close(self) -> None:
        """As soon as the client has taken what it had no room for."""
        if not self.closing:
            self.closing = True
            if self._waiting <= self._takes:
                self.abort()

    def abort(self) -> None:
        self.closing = True
        asyncio.get_running_loop().call_soon(self._lose)

    def _lose(self) -> None:
        if not self.closed:
            self.closed = True
            self._protocol.connection_lost(None)


@dataclass(frozen=True)
class Ending:
    """How the client leaves once it has sent all."""

    name: str


SILENT, HALF_CLOSED, GONE = Ending("silent"), Ending("half-closed"), Ending("gone")


@dataclass
class Outcome:
    """What came of one connection."""

    answered: list[tuple[str, int, str]] = field(default_factory=list)
    """Method, status and S3's code of each answer."""
    sent: bytes = b""
    stored: dict[str, Any] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)


class World:
    """One gateway before a store in memory."""

    def __init__(self, upstream: MemoryUpstream | None = None, limits: Limits | None = None) -> None:
        self.log = io.BytesIO()
        configure_logging("info", self.log)
        self.upstream = upstream or MemoryUpstream(BUCKET)
        self.limits = limits or Limits()
        self.store = MemoryStore()
        self.faults: list[dict[str, Any]] = []
        self.outcome = Outcome()

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        self.gateway = Gateway(
            Parts(
                store=self.store,
                store_start=await self.store.start("rules"),
                upstream=self.upstream,
                capabilities=FixedCapabilities(PROVED),
                rules=Ruleset(list(RULES)),
                clients=(Client(CREDENTIALS),),
                clock=FixedClock(),
                virtual_host_suffixes=(HOST,),
            )
        )
        await self.gateway.uploads.bindings.start()
        self.gateway._progress.start()
        self.listener = Listener(self._answer, self._answer_fault, self.limits)
        self.listener.start()
        self.tasks = asyncio.all_tasks()

    async def _answer(self, request: Request) -> Reply:
        reply = await self.gateway.handler.handle(request)
        self._note(request.method, reply)
        return reply

    def _answer_fault(self, carrier: Connection, error: S3Error | TryAgain) -> Reply:
        reply = self.gateway.handler.answer_fault(cast(Carrier, carrier), error)
        self._note("", reply)
        return reply

    def _note(self, method: str, reply: Reply) -> None:
        telemetry._output.stream.flush()
        line = json.loads(self.log.getvalue().splitlines()[-1])
        self.outcome.answered.append((method, reply.status, line["reason"] or ""))

    def connect(self, *, takes: int = 1 << 16, half_closes: bool = True) -> tuple[Connection, MemoryTransport]:
        """A new client. `half_closes`: as over TCP, and not over TLS."""
        connection = self.listener()
        transport = MemoryTransport(connection, takes, half_closes=half_closes)
        connection.connection_made(transport)
        return connection, transport

    async def converse(self, pieces: Sequence[bytes], ending: Ending, pause_s: float, takes: int) -> None:
        """Send the pieces as fast as they are taken, with pauses, end so, and wait until the connection is gone."""
        loop = asyncio.get_running_loop()
        connection, transport = self.connect(takes=takes)
        until = loop.time() + LONGEST_S
        for piece in pieces:
            await quiet()
            while not transport.is_reading() and not transport.closing:
                assert loop.time() < until, "reading is paused for ever"
                transport.take()
                await asyncio.sleep(1)
                await quiet()
            if transport.closing:
                break
            connection.data_received(piece)
            if pause_s:
                await asyncio.sleep(pause_s)
        await quiet()
        hears = transport.is_reading() and not transport.closing
        if ending is GONE:
            transport.abort()
        elif ending is HALF_CLOSED and hears and not connection.eof_received():
            transport.close()
        while not transport.closed:
            assert loop.time() < until, "the connection is never closed"
            transport.take()
            await asyncio.sleep(1)
        await quiet()
        self.outcome.sent = bytes(transport.sent)

    async def look(self) -> Outcome:
        """What is there now that all clients have gone: nothing of theirs but what is stored."""
        await quiet()
        gateway = self.gateway
        assert self.faults == []
        assert asyncio.all_tasks() - self.tasks == set(), "a task is left"
        assert not self.listener.connections
        assert not self.listener.waiting
        assert gateway.handler.running == 0
        assert not any(gateway.handler.running_of.values())
        assert not gateway._progress._bodies
        assert gateway.fences.unsettled() == []
        assert all(not live.pins and not live.passages for live in gateway.fences.gates), "a gate is pinned"
        assert all(entry.idle for entry in gateway.writes.objects._entries.values()), "an object is pinned"
        events = [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]
        assert set(events) <= {"request"}, events
        for bucket, objects in self.upstream.buckets.items():
            for key, stored in objects.items():
                shown = tuple(sorted((n, v) for n, v in stored.metadata if n != "x-amz-meta-fencing-nonce"))
                self.outcome.stored[f"{bucket}/{key}"] = (stored.data, stored.etag, shown)
        for live in gateway.fences.gates:
            self.outcome.floors[live.gate.key] = live.gate.floor
        await self.gateway._progress.stop()
        return self.outcome


async def quiet() -> None:
    """Wait until nothing moves any more but time."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)


def talk(pieces: Iterable[bytes], ending: Ending = SILENT, *, pause_s: float = 0.0, takes: int = 1 << 16) -> Outcome:
    """One connection to a new gateway, from its first byte to its end."""

    async def whole() -> Outcome:
        world = World()
        await world.start()
        await world.converse(list(pieces), ending, pause_s, takes)
        return await world.look()

    return in_virtual_time(whole())


def in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, and leave the log as it was."""
    try:
        return run(main)
    finally:
        structlog.reset_defaults()
