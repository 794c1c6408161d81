"""The S3 listener's HTTP: aiohttp's low-level server, with answers written by hand so that their heads are byte-exact.

The server is built without an Application: it has one handler, no router, and sends no `100 Continue` by itself, so
that admission comes first. Its own errors are S3's too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

_REASONS = {status.value: status.phrase for status in HTTPStatus}
HEAD_SWEEP_S = 1.0
_FORBIDDEN = re.compile(r"[\r\n\0]")


class ClientGone(ConnectionError):
    """The client has closed its connection; nobody waits for the answer."""


class BadFraming(TimeoutError):
    """A body's chunks are no HTTP. A TimeoutError, because aiohttp takes nothing else in silence while it discards the
    rest of a body."""


class Reply:
    """An answer that the handler has written itself, or writes now: head first, then the body in pieces.

    It stands in for aiohttp's response object: aiohttp asks it to prepare itself and to end, which are done, and
    whether the connection stays."""

    __slots__ = ("_chunked", "_idle_timeout_s", "_request", "bytes_sent", "keep_alive", "started", "status")

    def __init__(self, request: web.BaseRequest, idle_timeout_s: float) -> None:
        self._request = request
        self._idle_timeout_s = idle_timeout_s
        self._chunked = False
        self.keep_alive = request.keep_alive
        self.status = 0
        self.started = False
        self.bytes_sent = 0
        if isinstance(request.protocol, _Connection):
            request.protocol.serve(request.content)

    def send(self, status: int, headers: Iterable[tuple[str, str]], body: bytes = b"") -> None:
        """The whole answer at once, its body left out where the request or the status wants none."""
        if status in (204, 304) or self._request.method == "HEAD":
            self.send_head(status, headers, len(body))
        else:
            self._write(self._head(status, headers, len(body)) + body)

    def send_head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> None:
        """An answer without a body: to HEAD, where `length` is that of the body which GET would bring, or 204, 304."""
        self._write(self._head(status, headers, None if status in (204, 304) else length))

    def start(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> None:
        """The head alone; the body follows by `write`. Without a length it is chunked, for an HTTP/1.0 client ended by
        the connection's end."""
        head = self._head(status, headers, length)
        if length is None and self._request.version >= (1, 1):
            self._chunked = True
            head = head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
        elif length is None:
            self.keep_alive = False
        self._write(head)

    async def write(self, data: bytes) -> None:
        """A piece of the body, with back pressure."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(data)
        await self._drained()

    async def _drained(self) -> None:
        """Wait until the client has taken what it was sent, so far as it lies ahead of the socket."""
        transport = self._request.transport
        if transport is None or not transport.get_write_buffer_size():
            return
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                await self._request.writer.drain()
        except TimeoutError:
            self.cut()
            raise ClientGone("the client has stopped reading the answer") from None

    def end(self) -> None:
        """The body is whole."""
        if self._chunked:
            self._write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break the connection, so that a body that broke off upstream is not taken for whole."""
        self.keep_alive = False
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def close_at_once(self) -> None:
        """Close after the answer without waiting for a body that the client holds back for our `100 Continue`."""
        self.keep_alive = False
        self._request.protocol.force_close()

    def _head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        self.status = status
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}", *map(": ".join, headers)]
        if length is not None:
            lines.append(f"content-length: {length}")
        if not self.keep_alive:
            lines.append("connection: close")
        text = "".join(lines)
        if not text.isprintable() and _FORBIDDEN.search(text):
            # An upstream's metadata must not begin a header of its own.
            lines = [_FORBIDDEN.sub("", line) for line in lines]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")

    def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone("the client has closed the connection")
        self.started = True
        self.bytes_sent += len(data)
        transport.write(data)

    # --- what aiohttp asks of a response

    async def prepare(self, request: web.BaseRequest) -> None:
        """Written already."""

    async def write_eof(self) -> None:
        """Ended already."""
        await self._drained()


Handler = Callable[[web.BaseRequest], Awaitable[Reply]]
ErrorReply = Callable[[web.BaseRequest, int, str], Reply]


class _Connection(RequestHandler):
    """aiohttp's connection, whose own errors (a request that its parser refuses) are answered as S3's."""

    __slots__ = ("_body", "_error_reply", "head_since")

    def __init__(self, manager: web.Server, error_reply: ErrorReply, **options: object) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)  # type: ignore[arg-type]
        self._error_reply = error_reply
        self.head_since: float | None = None
        """When the first byte of a head came that is not yet whole, by the loop's clock."""
        self._body: StreamReader = EMPTY_PAYLOAD

    def serve(self, body: StreamReader) -> None:
        """The body of the request that is being answered."""
        self._body = body
        self._end_bad_body()

    def _end_bad_body(self) -> None:
        # aiohttp tells bad chunks to the next request alone. Behind a body that has not ended there is no other.
        if self._messages and not self._body.is_eof():
            self._body.set_exception(BadFraming())

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._end_bad_body()
        # Over TLS the first bytes may come before aiohttp's task has begun to wait for them.
        if self._request_count and (self._waiter is None or self._waiter.done()):
            self.head_since = None
        elif self.head_since is None:
            self.head_since = self._loop.time()

    def handle_error(  # type: ignore[override]
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> Reply:
        return self._error_reply(request, status, message or "")


class Server(web.Server):
    """The low-level server. Options are given to each connection as they are: a misspelt one is a TypeError, where
    aiohttp's own factory drops all of them in silence."""

    def __init__(
        self, handler: Handler, error_reply: ErrorReply, *, header_timeout_s: float, **options: object
    ) -> None:
        super().__init__(handler)  # type: ignore[arg-type]
        self._options = options
        self._error_reply = error_reply
        self._header_timeout_s = header_timeout_s
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> RequestHandler:
        return _Connection(self, self._error_reply, **self._options)

    def start(self) -> None:
        """Begin to close connections whose heads come too slowly; aiohttp bounds only the time between requests."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._header_timeout_s
        for connection in self.connections:
            since = connection.head_since if isinstance(connection, _Connection) else None
            if since is not None and since < oldest:
                connection.force_close()
        self._sweep = loop.call_later(HEAD_SWEEP_S, self.start)

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own signature
        if self._sweep is not None:
            self._sweep.cancel()
        await super().shutdown(timeout)


def s3_server(
    handler: Handler,
    error_reply: ErrorReply,
    *,
    max_header_field_bytes: int,
    header_timeout_s: float,
    keepalive_timeout_s: float,
) -> Server:
    """A server for S3: bodies untouched, small read buffers, refusals that a client can still read."""
    return Server(
        handler,
        error_reply,
        header_timeout_s=header_timeout_s,
        auto_decompress=False,
        access_log=None,
        read_bufsize=65536,
        lingering_time=10.0,
        max_line_size=max_header_field_bytes,
        max_field_size=max_header_field_bytes,
        max_headers=512,
        keepalive_timeout=keepalive_timeout_s,
        tcp_keepalive=True,
    )
