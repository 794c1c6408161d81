"""HTTP as the S3 listener speaks it: a request whose body still comes, and an answer that is exact to the byte."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from gateway.s3.request import Headers

READ_BUFFER_BYTES = 128 * 1024
"""Body bytes waiting for their reader beyond which the socket is no longer read."""

_REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_FORBIDDEN = re.compile(r"[\r\n\0]")


@lru_cache(maxsize=8)
def http_date(second: int) -> str:
    """A second since the epoch as a Date field tells it (RFC 9110, 5.6.7)."""
    return formatdate(second, usegmt=True)


class ClientGone(ConnectionError):
    """The client has closed its connection; nobody waits for the answer."""


class BadFraming(Exception):
    """A body's chunks are no HTTP."""


class Carrier(Protocol):
    """The connection that a request came on."""

    address: str
    """The peer's IP address."""

    @property
    def scheme(self) -> str:
        """`http`, or `https` over TLS."""
        ...

    def write(self, data: bytes, *, whole: bool = False) -> None:
        """Send; `whole`: it is all of an answer. Raises `ClientGone`."""
        ...

    async def drained(self) -> None:
        """Wait until the client has taken so much that more may be written. Raises `ClientGone`."""
        ...

    def read_on(self) -> None:
        """A body's reader has caught up."""
        ...

    def cut(self) -> None:
        """Break the connection at once."""
        ...


class RequestStream:
    """A request's body as it arrives, for one reader."""

    __slots__ = ("_carrier", "_failure", "_pieces", "_waiter", "buffered", "discards", "ended")

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._pieces: deque[bytes] = deque()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.buffered = 0
        self.ended = False
        """The last byte has arrived, read or not."""
        self.discards = False
        """Nobody will read it: what comes is dropped."""

    async def read(self) -> bytes:
        """What has arrived next, empty at the end. Raises what `fail` was given."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.ended:
                return b""
            await self._change()
        piece = self._pieces.popleft()
        self.buffered -= len(piece)
        if not self.ended and self.buffered <= READ_BUFFER_BYTES // 4:
            self._carrier.read_on()
        return piece

    async def discard(self) -> None:
        """Drop the rest; returns when it has all come, or none of it will."""
        self.drop()
        while not self.ended and self._failure is None:
            self._carrier.read_on()
            await self._change()

    def drop(self) -> None:
        """Keep nothing of what has come or still comes."""
        self.discards = True
        self._pieces.clear()
        self.buffered = 0

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def feed(self, data: bytes) -> None:
        if not self.discards:
            self._pieces.append(data)
            self.buffered += len(data)
            self._wake()

    def end(self) -> None:
        """The body is whole."""
        self.ended = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        """The rest will not come, for this reason; what has arrived can still be read."""
        if not self.ended and self._failure is None:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Request:
    """A request up to its body, as it stood on the wire."""

    __slots__ = ("body", "carrier", "has_body", "headers", "keep_alive", "method", "target", "version")

    def __init__(
        self, carrier: Carrier, method: str, target: str, headers: Headers, version: str, keep_alive: bool
    ) -> None:
        self.carrier = carrier
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        """`1.0` or `1.1`."""
        self.keep_alive = keep_alive
        """The client would use the connection again."""
        self.body = RequestStream(carrier)
        self.has_body = headers.get("content-length") not in (None, "0") or "transfer-encoding" in headers

    @property
    def expects_continue(self) -> bool:
        """The client holds its body back until it is told to go on (RFC 9110, 10.1.1)."""
        return self.version == "1.1" and (self.headers.get("expect") or "").lower() == "100-continue"


class Reply:
    """An answer: at once, or head first and then the body in pieces."""

    __slots__ = (
        "_carrier",
        "_chunked",
        "_head_only",
        "_version",
        "bytes_sent",
        "keep_alive",
        "lingers",
        "started",
        "status",
    )

    def __init__(self, carrier: Carrier, request: Request | None) -> None:
        """`request` is None where none could be understood; then the connection ends with the answer."""
        self._carrier = carrier
        self._chunked = False
        self._head_only = request is not None and request.method == "HEAD"
        self._version = "1.1" if request is None else request.version
        self.keep_alive = request is not None and request.keep_alive
        self.lingers = True
        """Before it closes, the connection takes in what the client still sends, so that the client reads this answer
        and no reset. Off for a body that the client holds back for our `100 Continue`."""
        self.status = 0
        self.started = False
        self.bytes_sent = 0

    def send(self, status: int, headers: Iterable[tuple[str, str]], body: bytes = b"") -> None:
        """The whole answer at once, its body left out where the request or the status wants none."""
        if self._head_only or status in (204, 304):
            self.send_head(status, headers, len(body))
        else:
            self._write(self._head(status, headers, len(body)) + body, whole=True)

    def send_head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> None:
        """An answer without a body: to HEAD, where `length` is that of the body which GET would bring, or 204, 304."""
        self._write(self._head(status, headers, None if status in (204, 304) else length), whole=True)

    def start(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> None:
        """The head alone; the body follows by `write`. Without a length it is chunked, for an HTTP/1.0 client ended by
        the connection's end."""
        head = self._head(status, headers, length)
        if length is None and self._version == "1.1":
            self._chunked = True
            head = head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
        self._write(head)

    async def write(self, data: bytes) -> None:
        """A piece of the body, with back pressure."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(data)
        await self._carrier.drained()

    def end(self) -> None:
        """The body is whole."""
        if self._chunked:
            self._write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break the connection, so that a body that broke off upstream is not taken for whole."""
        self.keep_alive = False
        self._carrier.cut()

    def _head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        self.status = status
        lines = [_REASONS.get(status) or f"HTTP/1.1 {status} Status", *map(": ".join, headers)]
        if length is not None:
            lines.append(f"content-length: {length}")
        if not self.keep_alive:
            lines.append("connection: close")
        text = "".join(lines)
        if "\n" in text or "\r" in text or "\0" in text:
            # An upstream's metadata must not begin a header of its own.
            lines = [_FORBIDDEN.sub("", line) for line in lines]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")

    def _write(self, data: bytes, *, whole: bool = False) -> None:
        self._carrier.write(data, whole=whole)
        self.started = True
        self.bytes_sent += len(data)
