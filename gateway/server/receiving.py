"""What one client sends, parsed by llhttp into requests that wait for their turn.

After bytes that are no HTTP no further request is taken: what follows might be taken for one. Whatever a client sends,
what it can have the gateway keep is bounded: see the constants.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain
from typing import Protocol, cast

import httptools

from gateway.core.errors import TryAgain
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers
from gateway.server.http import READ_BUFFER_BYTES, BadFraming, Carrier, ClientGone, Request

MAX_FIELDS = 512
MAX_QUEUE = 16
"""Requests of a pipeline that wait for their turn, beyond which no more is parsed."""
SLICE_BYTES = 16 * 1024
"""What is parsed at once: one packet may hold thousands of requests, or of fields."""


class Answerer(Carrier, Protocol):
    """Who answers the requests, in turn."""

    def head_begins(self) -> None:
        """The first byte of a request's head has come."""
        ...

    def wake(self) -> None:
        """There is more in the queue, or there will never be."""
        ...


class Receiver:
    """Takes what the transport brings, and reads on as long as there is room for it."""

    __slots__ = (
        "_ahead",
        "_answerer",
        "_fault",
        "_fields",
        "_fruitless_bytes",
        "_left",
        "_max_field_bytes",
        "_max_head_bytes",
        "_parser",
        "_receiving",
        "_target",
        "_transport",
        "_upgrades",
        "broken",
        "in_head",
        "last",
        "paused",
        "queue",
    )

    def __init__(
        self, answerer: Answerer, transport: asyncio.Transport, max_head_bytes: int, max_field_bytes: int
    ) -> None:
        """`max_head_bytes` bounds the names and values of all of a head's fields, `max_field_bytes` each of them, and
        the target."""
        self._answerer = answerer
        self._transport = transport
        self._max_head_bytes = max_head_bytes
        self._max_field_bytes = max_field_bytes
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._ahead = b""
        """What has been received and not yet parsed."""
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._fruitless_bytes = 0
        """What the parser has taken since it last gave something: fields, line ends, extensions of chunks."""
        self._upgrades = False
        self._fault: S3Error | None = None
        self._receiving: Request | None = None
        """The request whose body is arriving."""
        self._left = 0
        """Bytes of that body still to come, where its head has told; they pass the parser by."""
        self.queue: deque[Request | S3Error | TryAgain] = deque()
        """What waits to be answered: requests, and what never became one."""
        self.in_head = False
        self.last = False
        """What is being received is the connection's last request."""
        self.broken = False
        """What came was no HTTP."""
        self.paused = False
        """The transport reads no further until somebody calls `advance`."""

    def received(self, data: bytes) -> None:
        self._ahead = self._ahead + data if self._ahead else data
        self.advance()

    def take(self, item: Request | S3Error | TryAgain) -> None:
        self.queue.append(item)
        self._answerer.wake()

    def drop(self) -> None:
        """Nobody wants what waits, nor the rest of the body that is arriving."""
        self.queue.clear()
        if self._receiving is not None:
            self._receiving.body.drop()

    def end(self) -> None:
        """The client will send no more."""
        self.last = True
        if self._receiving is not None:
            self._receiving.body.fail(ClientGone("the client has closed the connection in mid-body"))
            self._receiving = None
            self._left = 0
        self._answerer.wake()

    def close(self) -> None:
        """The connection is gone."""
        # Parser and answerer refer to us: without the circles nothing is left to the collector.
        self._parser = None
        del self._answerer
        self._ahead = b""

    def advance(self) -> None:
        """Parse what is ahead, as far as it may be."""
        data, at = self._ahead, 0
        while at < len(data):
            if self._left:
                at += self._take_body(data[at : at + self._left] if at or len(data) > self._left else data)
            elif self._parser is None or self.broken or (self.last and self._receiving is None):
                at = len(data)
            elif len(self.queue) >= MAX_QUEUE:
                break
            else:
                at += self._parse(data[at : at + SLICE_BYTES] if at or len(data) > SLICE_BYTES else data)
        self._ahead = data[at:]
        full = self._full()
        if full != self.paused and not self._transport.is_closing():
            self.paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _full(self) -> bool:
        """Whether as much waits for whoever answers as may."""
        waiting = self.queue
        if not waiting:
            return self._receiving is not None and self._receiving.body.buffered > READ_BUFFER_BYTES
        # The last of them is the one being received, if any is.
        buffered = sum(item.body.buffered for item in waiting if isinstance(item, Request))
        return buffered > READ_BUFFER_BYTES or len(waiting) >= MAX_QUEUE

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        self.in_head = True
        self._fruitless_bytes = 0
        self._target = b""
        self._fields = []
        self._answerer.head_begins()

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # else these are a trailer's
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

    # --- what is parsed

    def _parse(self, data: bytes) -> int:
        """Let the parser take these bytes; how many of them it has taken."""
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
            if self._fruitless_bytes > 2 * self._max_head_bytes:
                self._no_http(_head_too_large(self._max_head_bytes))
            elif len(self._fields) > MAX_FIELDS:
                self._no_http(_field_too_large(self._max_field_bytes))
        return len(data)

    def _received_head(self) -> None:
        """Raises `S3Error`."""
        self.in_head = False
        self._fruitless_bytes = 0
        parser, fields = self._parser, self._fields
        assert parser is not None
        size = len(self._target) + len(b"".join(chain.from_iterable(fields)))  # sooner done than to add up lengths
        if size > min(self._max_head_bytes, self._max_field_bytes) or len(fields) > MAX_FIELDS:
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
        method, target = parser.get_method().decode("latin-1"), self._target.decode("latin-1")
        self._receiving = request = Request(self._answerer, method, target, headers, version, keep_alive)
        self._left = int(headers.first.get("content-length", "0"))
        self.last = self.last or not keep_alive
        self.take(request)

    def _refuse_too_large(self, size: int) -> None:
        """Raises `S3Error` where target, fields (of `size` bytes) or one of them are more than may be."""
        if len(self._target) > self._max_field_bytes:
            raise _bad_request(f"The request's target has more than {self._max_field_bytes} bytes.")
        if size > self._max_head_bytes:
            raise _head_too_large(self._max_head_bytes)
        longest = max(map(len, chain.from_iterable(self._fields)), default=0)
        if len(self._fields) > MAX_FIELDS or longest > self._max_field_bytes:
            raise _field_too_large(self._max_field_bytes)

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
        self.last = self.broken = True
        self._left = 0
        if self._receiving is not None:
            self._receiving.body.fail(BadFraming(fault.message))
            self._receiving = None
        else:
            self.take(fault)


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
