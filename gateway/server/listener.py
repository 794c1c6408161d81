"""The S3 listener: connections whose requests llhttp parses and the handler answers, one after another.

After an answer that leaves a body unread, and after bytes that are no HTTP, a connection takes no further request: what
follows might be taken for one. Why this is not aiohttp's server: docs/decisions/0011-own-listener.md.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain
from typing import cast

import httptools

from gateway.s3.errors import S3Error
from gateway.s3.request import Headers
from gateway.server.http import READ_BUFFER_BYTES, BadFraming, ClientGone, Reply, Request

SWEEP_S = 1.0
LINGER_S = 10.0
"""How long a client may go on sending a body that nobody reads; until then it should have read its answer."""
LINGER_AFTER_NO_HTTP_S = 2.0
MAX_FIELDS = 512
MAX_QUEUE = 16
"""Requests of a pipeline that wait for their turn, beyond which the socket is no longer read."""

Answering = Callable[[Request], Awaitable[Reply]]
AnsweringFaults = Callable[["Connection", S3Error], Reply]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the listener bears."""

    max_concurrent_requests: int = 1024
    max_header_bytes: int = 65536
    """Names and values of all of a head's fields."""
    max_header_field_bytes: int = 16384
    """One field's name or value."""
    header_timeout_s: float = 30.0
    """From a head's first byte to its last."""
    keepalive_timeout_s: float = 75.0
    """From one answer to the next request."""
    idle_timeout_s: float = 60.0
    """The longest a client may make no progress, sending a body or reading an answer."""


class Listener:
    """Makes a connection for each that comes, as `asyncio.loop.create_server` wants it."""

    def __init__(self, answer: Answering, answer_fault: AnsweringFaults, limits: Limits) -> None:
        self.answer = answer
        self.answer_fault = answer_fault
        """Answers what never became a request."""
        self.limits = limits
        self.connections: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> Connection:
        return Connection(self)

    def start(self) -> None:
        """Begin to close connections that are silent, or whose heads come too slowly."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in [connection for connection in self.connections if connection.due_s < now_s]:
            connection.cut()
        self._sweep = loop.call_later(SWEEP_S, self.start)

    async def shutdown(self, timeout_s: float) -> None:
        """Close what is idle, wait at most `timeout_s` for what is being answered, and cut the rest."""
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [task for connection in list(self.connections) if (task := connection.finish()) is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Connection(asyncio.Protocol):
    """One client's connection (`gateway.server.http.Carrier`)."""

    __slots__ = (
        "_answering",
        "_broken",
        "_fault",
        "_fields",
        "_gone",
        "_half_closes",
        "_head_bytes",
        "_in_head",
        "_last",
        "_left",
        "_listener",
        "_loop",
        "_parser",
        "_queue",
        "_reading_paused",
        "_receiving",
        "_target",
        "_task",
        "_transport",
        "_upgrades",
        "_waiter",
        "_writable",
        "address",
        "due_s",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._head_bytes = 0
        self._upgrades = False
        self._fault: S3Error | None = None
        self._receiving: Request | None = None
        """The request whose body is arriving."""
        self._left = 0
        """Bytes of that body still to come, where its head has told; they pass the parser by."""
        self._queue: deque[Request | S3Error] = deque()
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._answering = False
        self._reading_paused = False
        self._half_closes = False
        self._last = False
        """What is being received is the connection's last request."""
        self._broken = False
        """What came was no HTTP."""
        self.address = ""
        self.due_s = math.inf
        """When the connection is cut unless a whole head comes before, by the loop's clock."""

    # --- as those see it who answer

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise ClientGone("the client has closed the connection")
        self._transport.write(data)

    async def drained(self) -> None:
        if self._writable is None:
            return
        try:
            async with asyncio.timeout(self._listener.limits.idle_timeout_s):
                await self._writable
        except TimeoutError:
            self.cut()
            raise ClientGone("the client has stopped reading the answer") from None

    def read_on(self) -> None:
        if self._reading_paused and len(self._queue) < MAX_QUEUE and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def cut(self) -> None:
        self._transport.abort()

    def finish(self) -> asyncio.Task[None] | None:
        """Take no further request; the task that still answers one, if there is one."""
        self._last = True
        if self._answering or self._queue:
            return self._task
        self._transport.close()
        return None

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._half_closes = self._transport.can_write_eof()
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._listener.connections.add(self)
        self._idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._client_ended()
        self.resume_writing()
        # Parser and transport refer to us: without the circle nothing is left to the collector.
        self._parser = None

    def eof_received(self) -> bool:
        self._client_ended()
        # A client that has said all may still read its answer.
        return self._half_closes and (self._answering or bool(self._queue))

    def data_received(self, data: bytes) -> None:
        if self._left:
            data = self._body_received(data)
        parser = self._parser
        if not data or parser is None or self._broken or (self._last and self._receiving is None):
            return
        self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._no_http(self._fault or _bad_request(f"The request is not valid HTTP: {error}."))
        else:
            # What came behind an earlier request, and the separators of fields, are borne with.
            if self._in_head and self._head_bytes > 2 * self._listener.limits.max_header_bytes:
                self._no_http(_head_too_large(self._listener.limits.max_header_bytes))
        self._hold_back()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        self._target = b""
        self._fields = []
        if not self._answering:
            self.due_s = self._loop.time() + self._listener.limits.header_timeout_s

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else these are a trailer's
            self._fields.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        try:
            self._received_head()
        except S3Error as fault:
            self._fault = fault
            raise

    def on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.body.feed(data)
            self._left = max(0, self._left - len(data))

    def on_message_complete(self) -> None:
        if not self._upgrades:
            self._received_body()

    # --- receiving

    def _received_head(self) -> None:
        """Raises `S3Error`."""
        self._in_head = False
        self._head_bytes = 0
        parser, fields, limits = self._parser, self._fields, self._listener.limits
        assert parser is not None
        sizes = [*map(len, chain.from_iterable(fields))]
        if sum(sizes) > limits.max_header_bytes:
            raise _head_too_large(limits.max_header_bytes)
        if len(fields) > MAX_FIELDS or (sizes and max(sizes) > limits.max_header_field_bytes):
            raise _bad_request(
                f"The request has a header of more than {limits.max_header_field_bytes} bytes, or more than"
                f" {MAX_FIELDS} headers."
            )
        version = parser.get_http_version()
        headers = Headers.of_raw(fields)
        if version not in ("1.0", "1.1"):
            raise _bad_request(f"HTTP/{version} is not spoken here, HTTP/1.1 is.")
        if len(headers.all("host")) != 1 and (version == "1.1" or "host" in headers):
            raise _bad_request("The request is not valid HTTP: it needs one Host header.")
        self._upgrades = parser.should_upgrade()
        keep_alive = parser.should_keep_alive() or (self._upgrades and version == "1.1")
        request = Request(
            self, parser.get_method().decode("latin-1"), self._target.decode("latin-1"), headers, version, keep_alive
        )
        self._receiving = request
        length = headers.first.get("content-length", "0")
        self._left = int(length)
        self._last = self._last or not keep_alive
        self._take(request)

    def _received_body(self) -> None:
        if self._receiving is not None:
            self._receiving.body.end()
            self._receiving = None
            self._left = 0

    def _body_received(self, data: bytes) -> bytes:
        """Part of a body whose length is known: the parser would only copy it. Answers what follows the body."""
        assert self._receiving is not None
        left = self._left - len(data)
        self._receiving.body.feed(data if left >= 0 else data[:left])
        self._left = max(left, 0)
        if left > 0:
            self._hold_back()
            return b""
        self._received_body()
        self._parser = httptools.HttpRequestParser(self)  # the old one still waits for the body
        return data[left:] if left < 0 else b""

    def _stay_with_http(self, rest: bytes) -> None:
        """The client offers another protocol, which a server may pass over (RFC 9110, 7.8); its parser may not."""
        self._upgrades = False
        if self._receiving is not None and "transfer-encoding" in self._receiving.headers:
            self._no_http(_bad_request("Upgrade together with a chunked body is not supported."))
            return
        self._parser = httptools.HttpRequestParser(self)
        if not self._left:
            self._received_body()
        if rest:
            self.data_received(rest)

    def _no_http(self, fault: S3Error) -> None:
        """Nothing that follows can be understood."""
        self._last = self._broken = True
        self._in_head = False
        self._left = 0
        if self._receiving is not None and self._fault is None:
            self._receiving.body.fail(BadFraming(fault.message))
            self._receiving = None
        else:
            self._take(fault)

    def _client_ended(self) -> None:
        self._last = True
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone("the client has closed the connection in mid-body"))
            self._receiving = None
            self._left = 0
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._wake()

    def _hold_back(self) -> None:
        too_much = self._receiving is not None and self._receiving.body.buffered > READ_BUFFER_BYTES
        if (too_much or len(self._queue) >= MAX_QUEUE) and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    # --- answering

    def _take(self, item: Request | S3Error) -> None:
        self._queue.append(item)
        if self._task is None:
            self._task = self._loop.create_task(self._answer_all())
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _idle(self) -> None:
        self._answering = False
        limits = self._listener.limits
        timeout_s = limits.header_timeout_s if self._in_head else limits.keepalive_timeout_s
        self.due_s = self._loop.time() + timeout_s

    async def _answer_all(self) -> None:
        listener = self._listener
        try:
            while self._queue or not self._last:
                if not self._queue:
                    self._idle()
                    self._waiter = self._loop.create_future()
                    await self._waiter
                    continue
                item = self._queue.popleft()
                self._answering = True
                self.due_s = math.inf
                if isinstance(item, S3Error):
                    listener.answer_fault(self, item)
                    await self._linger(None)
                    return
                self.read_on()
                reply = await listener.answer(item)
                await self.drained()
                if not reply.keep_alive:
                    self._last = True
                    if reply.lingers:
                        await self._linger(item)
                    return
        except ClientGone:
            pass
        finally:
            self.due_s = self._loop.time() + LINGER_S  # for what the client has not taken yet
            self._transport.close()

    async def _linger(self, request: Request | None) -> None:
        """Take in what the client still sends: to close on it is a reset, which would take the answer from it."""
        try:
            if self._broken and self._half_closes and not self._transport.is_closing():
                self._transport.write_eof()
                self._gone = self._loop.create_future()
                async with asyncio.timeout(LINGER_AFTER_NO_HTTP_S):
                    await self._gone
            elif request is not None:
                async with asyncio.timeout(LINGER_S):
                    await request.body.discard()
        except TimeoutError:
            pass


def _bad_request(message: str) -> S3Error:
    return S3Error("BadRequest", message)


def _head_too_large(limit_bytes: int) -> S3Error:
    return S3Error(
        "RequestHeaderSectionTooLarge",
        "Your request header section exceeds the maximum allowed request header section size.",
        MaxSizeAllowed=str(limit_bytes),
    )
