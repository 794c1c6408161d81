"""One client's connection: llhttp parses its requests, one task answers them in turn.

After an answer that leaves a body unread, and after bytes that are no HTTP, it takes no further request: what follows
might be taken for one. Whatever a client sends, what it can have the gateway keep is bounded: see the constants.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, cast

import httptools

from gateway.core.errors import TryAgain
from gateway.outgoing import Outgoing
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers
from gateway.server.http import READ_BUFFER_BYTES, BadFraming, ClientGone, Request

if TYPE_CHECKING:
    from gateway.server.listener import Listener

LINGER_S = 10.0
"""How long a client may go on sending a body that nobody reads; until then it should have read its answer."""
LINGER_AT_END_S = 2.0
"""How long what a client sends behind its last answer is taken in, if it does not close the connection itself."""
MAX_FIELDS = 512
MAX_QUEUE = 16
"""Requests of a pipeline that wait for their turn, beyond which no more is parsed."""
SLICE_BYTES = 16 * 1024
"""What is parsed at once: one packet may hold thousands of requests, or of fields."""


class Connection(asyncio.Protocol):
    """One client's connection (`gateway.server.http.Carrier`)."""

    __slots__ = (
        "_ahead",
        "_answering",
        "_broken",
        "_ended",
        "_fault",
        "_fields",
        "_fruitless_bytes",
        "_gone",
        "_half_closes",
        "_in_head",
        "_last",
        "_left",
        "_listener",
        "_loop",
        "_outgoing",
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
        self._ahead = b""
        """What has been received and not yet parsed."""
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._fruitless_bytes = 0
        """What the parser has taken since it last gave something: fields, line ends, extensions of chunks."""
        self._upgrades = False
        self._fault: S3Error | None = None
        self._receiving: Request | None = None
        """The request whose body is arriving."""
        self._left = 0
        """Bytes of that body still to come, where its head has told; they pass the parser by."""
        self._queue: deque[Request | S3Error | TryAgain] = deque()
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
        self._ended = False
        """The client will send no more."""
        self.address = ""
        self.due_s = math.inf
        """When the connection is cut unless a whole head comes before, by the loop's clock."""

    # --- as those see it who answer

    @property
    def scheme(self) -> str:
        return "http" if self._transport.get_extra_info("sslcontext") is None else "https"

    def write(self, data: bytes, *, whole: bool = False) -> None:
        if self._transport.is_closing():
            raise ClientGone("the client has closed the connection")
        self._outgoing.send(data, alone=whole and self._listener.serves_one)

    async def drained(self) -> None:
        self._outgoing.flush()
        if self._writable is None:
            return
        try:
            async with asyncio.timeout(self._listener.limits.idle_timeout_s):
                await self._writable
        except TimeoutError:
            self.cut()
            raise ClientGone("the client has stopped reading the answer") from None

    def read_on(self) -> None:
        if self._reading_paused:
            # With the next turn of the loop: a pipeline is not answered whole before anybody else.
            self._loop.call_soon(self._advance)

    def cut(self) -> None:
        self._transport.abort()

    def finish(self) -> asyncio.Task[None] | None:
        """Take no further request; the task that still answers one, if there is one."""
        self._last = True
        if self._answering or self._queue:
            return self._task
        self._outgoing.flush()
        self._transport.close()
        return None

    def refuse(self, fault: TryAgain) -> None:
        """Let this be the connection's only answer, whatever the client asks."""
        self._last = True
        self._take(fault)

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outgoing = Outgoing(self._transport)
        self._half_closes = self._transport.can_write_eof()
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._listener.welcome(self)
        self._idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)
        self._client_ended()
        self.resume_writing()
        # Parser and transport refer to us: without the circle nothing is left to the collector.
        self._parser = None
        self._ahead = b""

    def eof_received(self) -> bool:
        self._outgoing.flush()  # before the transport closes
        self._client_ended()
        # A client that has said all may still read its answer.
        return self._half_closes and (self._answering or bool(self._queue))

    def data_received(self, data: bytes) -> None:
        self._ahead = self._ahead + data if self._ahead else data
        self._advance()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        self._fruitless_bytes = 0
        self._target = b""
        self._fields = []
        if not self._answering:
            self.due_s = self._loop.time() + self._listener.limits.header_timeout_s

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else these are a trailer's
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        try:
            self._received_head()
        except S3Error as fault:
            self._fault = fault
            raise

    def on_body(self, data: bytes) -> None:
        self._fruitless_bytes = 0
        if self._receiving is not None:
            self._receiving.body.feed(data)
            self._left = max(0, self._left - len(data))

    def on_message_complete(self) -> None:
        if not self._upgrades:
            self._received_body()

    # --- receiving

    def _advance(self) -> None:
        """Parse what is ahead, as far as it may be."""
        data, at = self._ahead, 0
        while at < len(data):
            if self._left:
                at += self._take_body(data[at : at + self._left] if at or len(data) > self._left else data)
            elif self._parser is None or self._broken or (self._last and self._receiving is None):
                at = len(data)
            elif len(self._queue) >= MAX_QUEUE:
                break
            else:
                at += self._parse(data[at : at + SLICE_BYTES] if at or len(data) > SLICE_BYTES else data)
        self._ahead = data[at:]
        full = self._full()
        if full != self._reading_paused and not self._transport.is_closing():
            self._reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _parse(self, data: bytes) -> int:
        """Let the parser take these bytes; how many of them it has taken."""
        limits = self._listener.limits
        assert self._parser is not None
        self._fruitless_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http()
            return cast(int, upgrade.args[0])
        except httptools.HttpParserError as error:
            self._no_http(self._fault or _bad_request(f"The request is not valid HTTP: {error}."))
        else:
            # Line ends and white space are borne with, and count.
            if self._fruitless_bytes > 2 * limits.max_header_bytes:
                self._no_http(_head_too_large(limits.max_header_bytes))
            elif len(self._fields) > MAX_FIELDS:
                self._no_http(_field_too_large(limits.max_header_field_bytes))
        return len(data)

    def _received_head(self) -> None:
        """Raises `S3Error`."""
        self._in_head = False
        self._fruitless_bytes = 0
        parser, fields, limits = self._parser, self._fields, self._listener.limits
        assert parser is not None
        size = len(self._target) + len(b"".join(chain.from_iterable(fields)))  # sooner done than to add up lengths
        if size > min(limits.max_header_bytes, limits.max_header_field_bytes) or len(fields) > MAX_FIELDS:
            self._refuse_too_large(size - len(self._target))
        version = parser.get_http_version()
        headers = Headers.of_raw(fields)
        if version not in ("1.0", "1.1"):
            raise _bad_request(f"HTTP/{version} is not spoken here, HTTP/1.1 is.")
        if len(headers.all("host")) != 1 and (version == "1.1" or "host" in headers):
            raise _bad_request("The request is not valid HTTP: it needs one Host header.")
        self._upgrades = parser.should_upgrade()
        # An HTTP/1.0 client that would keep the connection waits to be told so, or for its end.
        keep_alive = version == "1.1" and parser.should_keep_alive()
        request = Request(
            self, parser.get_method().decode("latin-1"), self._target.decode("latin-1"), headers, version, keep_alive
        )
        self._receiving = request
        length = headers.first.get("content-length", "0")
        self._left = int(length)
        self._last = self._last or not keep_alive
        self._take(request)

    def _refuse_too_large(self, size: int) -> None:
        """Raises `S3Error` where target, fields (of `size` bytes) or one of them are more than may be."""
        limits = self._listener.limits
        if len(self._target) > limits.max_header_field_bytes:
            raise _bad_request(f"The request's target has more than {limits.max_header_field_bytes} bytes.")
        if size > limits.max_header_bytes:
            raise _head_too_large(limits.max_header_bytes)
        longest = max(map(len, chain.from_iterable(self._fields)), default=0)
        if len(self._fields) > MAX_FIELDS or longest > limits.max_header_field_bytes:
            raise _field_too_large(limits.max_header_field_bytes)

    def _received_body(self) -> None:
        if self._receiving is not None:
            self._receiving.body.end()
            self._receiving = None
            self._left = 0

    def _take_body(self, data: bytes) -> int:
        """Part of a body whose length is known: the parser would only copy it."""
        assert self._receiving is not None
        self._receiving.body.feed(data)
        self._left -= len(data)
        if not self._left:
            self._received_body()
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for the body
        return len(data)

    def _stay_with_http(self) -> None:
        """The client offers another protocol, which a server may pass over (RFC 9110, 7.8); its parser may not."""
        self._upgrades = False
        if self._receiving is not None and "transfer-encoding" in self._receiving.headers:
            self._no_http(_bad_request("Upgrade together with a chunked body is not supported."))
            return
        self._parser = httptools.HttpRequestParser(self)
        if not self._left:
            self._received_body()

    def _no_http(self, fault: S3Error) -> None:
        """Nothing that follows can be understood."""
        self._last = self._broken = True
        self._left = 0
        if self._receiving is not None:
            self._receiving.body.fail(BadFraming(fault.message))
            self._receiving = None
        else:
            self._take(fault)

    def _client_ended(self) -> None:
        self._last = self._ended = True
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone("the client has closed the connection in mid-body"))
            self._receiving = None
            self._left = 0
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._wake()

    def _full(self) -> bool:
        """Whether as much waits for whoever answers as may."""
        waiting = self._queue
        if not waiting:
            return self._receiving is not None and self._receiving.body.buffered > READ_BUFFER_BYTES
        # The last of them is the one being received, if any is.
        buffered = sum(item.body.buffered for item in waiting if isinstance(item, Request))
        return buffered > READ_BUFFER_BYTES or len(waiting) >= MAX_QUEUE

    # --- answering

    def _take(self, item: Request | S3Error | TryAgain) -> None:
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
        self._listener.waiting[self] = None

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
                listener.waiting.pop(self, None)
                self.due_s = math.inf
                if not isinstance(item, Request):
                    listener.answer_fault(self, item)
                    await self._linger(None)
                    return
                self.read_on()
                if self._writable is not None:  # the last answer has not been taken
                    await self.drained()
                reply = await listener.answer(item)
                if self._queue or not reply.keep_alive:  # else it goes out with the next turn
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
            self._outgoing.flush()
            self._transport.close()

    async def _linger(self, request: Request | None) -> None:
        """Take in what the client still sends: to close on it is a reset, which would take the answer from it."""
        self._queue.clear()
        if self._receiving is not None:
            self._receiving.body.drop()
        self._outgoing.flush()
        if request is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await request.body.discard()
            if request.body.ended and not request.keep_alive and not self._broken:
                return  # the client itself has said that nothing follows
        if self._ended or self._transport.is_closing():
            return
        if self._half_closes:
            self._transport.write_eof()
        self._gone = self._loop.create_future()
        self.read_on()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_AT_END_S):
                await self._gone


def _bad_request(message: str) -> S3Error:
    return S3Error("BadRequest", message)


def _field_too_large(limit_bytes: int) -> S3Error:
    return _bad_request(
        f"The request has a header of more than {limit_bytes} bytes, or more than {MAX_FIELDS} headers."
    )


def _head_too_large(limit_bytes: int) -> S3Error:
    return S3Error(
        "RequestHeaderSectionTooLarge",
        "Your request header section exceeds the maximum allowed request header section size.",
        MaxSizeAllowed=str(limit_bytes),
    )
