"""One HTTP/1.1 connection to the upstream, and the one exchange that runs on it at a time.

- Nothing is ever sent twice.
- An exchange that does not end cleanly resets its connection with SO_LINGER 0: the kernel drops what it still
  holds, so that the upstream never gets it later (R5).
- A connection goes back to its pool when the request has been sent whole, the answer read whole, nothing came
  after it and both sides keep it open; else it is closed.
- Every wait is bounded; one task at a time waits on an exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
from typing import Protocol, cast

import httptools

from gateway.outgoing import Outgoing
from gateway.tls import refused_by_server, said_farewell
from gateway.upstream.exchange import READ_BUFFER_BYTES, Exchange, Response

WRITE_BUFFER_BYTES = 64 * 1024
"""Body bytes waiting for the socket beyond which `write` waits."""
MAX_HEAD_BYTES = 64 * 1024
"""The longest head of an answer that is taken (S3 answers less than 10 KiB)."""

_RESET = struct.pack("ii", 1, 0)
_NO_TRANSPORT = cast(asyncio.Transport, None)


class Owner(Protocol):
    """Who keeps the connection while no exchange runs on it."""

    @property
    def lends_one(self) -> bool:
        """No other connection is in use."""
        ...

    def released(self, connection: Connection) -> None:
        """The exchange has ended cleanly: the connection can carry another."""
        ...

    def lost(self, connection: Connection) -> None:
        """The connection is closed. Called once."""
        ...

    def refused(self, error: ssl.SSLError) -> str:
        """The upstream has ended the TLS handshake after all; answers the reason for people."""
        ...


class Connection(asyncio.Protocol):
    """The transport's side: bytes in, an `Exchange` and its `Response` moved on. Works over TCP and TLS."""

    __slots__ = (
        "_exchange",
        "_fields",
        "_gone",
        "_keep_alive",
        "_left",
        "_outgoing",
        "_owner",
        "_parser",
        "_readable",
        "_reading_paused",
        "_received",
        "_response",
        "_stray",
        "_transport",
        "closed",
        "idle_since_s",
        "reused",
        "writing_paused",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport = _NO_TRANSPORT
        self._gone = asyncio.get_running_loop().create_future()
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._response: Response | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._received = 0
        self._left = 0
        """Bytes of the answer's body still to come, where its head has told; they pass the parser by."""
        self._keep_alive = False
        self._stray = False
        self._reading_paused = False
        self.writing_paused = False
        self.closed = False
        self.reused = False
        """An exchange has already run on it: the upstream may have closed it since."""
        self.idle_since_s = 0.0

    def prepare(self, user_timeout_ms: int) -> None:
        """Set TCP_USER_TIMEOUT, once for all exchanges: what the upstream's kernel does not acknowledge within that
        time is given up, also when this process has been killed (R5). Raises `ConnectionResetError` if it is gone
        already."""
        if self._transport.is_closing():
            raise ConnectionResetError("closed at once")
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
        self._readable = select.poll()
        self._readable.register(sock.fileno(), select.POLLIN | select.POLLRDHUP)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def start(self, method: str, head: bytes, body: bytes, unsent: int, silence_timeout_s: float) -> Exchange:
        """Send `head` and `body` together, by the loop's next turn; answer the exchange, which awaits `unsent` more
        body bytes."""
        assert self._exchange is None
        exchange = self._exchange = Exchange(self, method == "HEAD", unsent, silence_timeout_s)
        self._response = None
        self._received = 0
        self._left = 0
        self._stray = False
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        pieces = (head, body) if body else (head,)
        self._outgoing.send(*pieces, alone=not unsent and self._owner.lends_one)
        return exchange

    def send(self, data: bytes) -> None:
        self._outgoing.flush()
        self._transport.write(data)

    def has_news(self) -> bool:
        """Whether the socket is readable, by asking the kernel: on an idle connection that can only be its end."""
        return self._transport.is_closing() or bool(self._readable.poll(0))

    def resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def reset(self, reason: str) -> None:
        """Close at once; in mid-exchange by RST, telling the exchange the reason. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._cut()
        self._end(reason, untaken=self._outgoing.waits)

    def _cut(self) -> None:
        """Close the socket; in mid-exchange by RST, so that the kernel delivers nothing any more."""
        if self._transport.is_closing():
            return
        if self._exchange is not None:
            with contextlib.suppress(OSError):
                sock = self._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    async def gone(self) -> None:
        """Wait until the transport has let go of the socket."""
        await self._gone

    # The transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outgoing = Outgoing(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None or self._parser is None or self._outgoing.waits:
            self.reset("the upstream sent something unasked")
            return
        exchange = self._exchange
        if self._left and self._response is not None:
            self._body_received(exchange, self._response, data)
            return
        if self._response is None:
            self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._response is None or not self._response.complete:
                self.reset(f"the upstream's answer is malformed: {error}")
                return
            self._stray = True
        response = self._response
        if response is None:
            if self._received > MAX_HEAD_BYTES:
                self.reset("the head of the upstream's answer is too long")
            return
        if response.complete:
            self._finish(exchange)
        else:
            self._hold_back(response)
        exchange.wake()

    def _body_received(self, exchange: Exchange, response: Response, data: bytes) -> None:
        """Part of a body whose length is known: the parser would only copy it."""
        left = self._left - len(data)
        response.feed(data if left >= 0 else data[:left])
        self._left = max(left, 0)
        if left > 0:
            self._hold_back(response)
        else:
            self._stray = left < 0
            self._parser = None  # it still waits for the body that it has not seen
            response.complete = True
            self._finish(exchange)
        exchange.wake()

    def _hold_back(self, response: Response) -> None:
        if response.buffered > READ_BUFFER_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        exchange, response = self._exchange, self._response
        tls = self._transport.get_extra_info("ssl_object")
        whole = tls is None or said_farewell(tls)
        if exchange is not None and response is not None and response.ends_with_connection and whole:
            response.complete = True
            self._finish(exchange)
            exchange.wake()
            return
        self._cut()
        self._lost("the upstream closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        if isinstance(exc, ssl.SSLError) and refused_by_server(exc) and not self.reused and not self._received:
            self._lost(self._owner.refused(exc), untaken=True)
        else:
            self._lost(f"the connection to the upstream broke: {exc or 'closed'}")

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._exchange is not None and self._exchange.unsent:
            self._exchange.wake()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        if self._response is not None:
            self._stray = True
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:  # afterwards these are a trailer's fields
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._exchange is not None
        status = self._parser.get_status_code()
        if self._response is not None or status < 200:  # RFC 9110, 15.2: interim answers may come at any time
            return
        if self._received > MAX_HEAD_BYTES and sum(len(n) + len(v) + 4 for n, v in self._fields) > MAX_HEAD_BYTES:
            raise ValueError("the head is too long")  # comes out of `feed_data`
        self._keep_alive = self._parser.should_keep_alive()
        self._response = self._exchange.answered(status, self._fields)
        if self._exchange.head_only:
            self._response.complete = True
        elif self._response.header("transfer-encoding") is None and status not in (204, 304):
            length = self._response.header("content-length") or ""
            self._left = int(length) if length.isascii() and length.isdigit() else 0

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None or response.complete:
            self._stray = True
        else:
            response.feed(data)
            self._left = max(0, self._left - len(data))

    def on_message_complete(self) -> None:
        self._left = 0
        if self._response is not None:
            self._response.complete = True

    # The end of an exchange

    def _finish(self, exchange: Exchange) -> None:
        """The answer is complete: give the connection back, or close it where it can carry no other exchange."""
        exchange.detach()
        self._response = None
        sent_whole = exchange.unsent == 0 and self._transport.get_write_buffer_size() == 0
        if sent_whole:
            self._exchange = None
        if not (sent_whole and self._keep_alive) or self._stray:
            self.reset("it can carry no other exchange")
            return
        if exchange.head_only:
            self._parser = None  # it would take the next answer for the body that HEAD does not have
        self.resume_reading()
        self.reused = True
        self._owner.released(self)

    def _lost(self, reason: str, *, untaken: bool = False) -> None:
        """The upstream's side closed it. `untaken`: see `Exchange.fail`."""
        if not self.closed:
            self.closed = True
            self._end(reason, unanswered=self._received == 0 and self._response is None, untaken=untaken)

    def _end(self, reason: str, *, unanswered: bool = False, untaken: bool = False) -> None:
        exchange, self._exchange = self._exchange, None
        self._parser = None
        if exchange is not None:
            exchange.fail(reason, unanswered=unanswered, untaken=untaken)
        self._owner.lost(self)
