"""One request and its answer, as those see them who sent it; the bytes move in `gateway.upstream.connection`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.s3.request import decoded
from gateway.upstream.base import UpstreamLost, UpstreamNotReached

READ_BUFFER_BYTES = 256 * 1024
"""Body bytes waiting for their reader beyond which the socket is no longer read."""


class Carrier(Protocol):
    """The connection, while it serves an exchange."""

    @property
    def reused(self) -> bool: ...

    @property
    def writing_paused(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def reset(self, reason: str) -> None: ...

    def resume_reading(self) -> None: ...


class Exchange:
    """One request and its answer (`gateway.upstream.base.UpstreamExchange`).

    A failure before `commit()` is `UpstreamNotReached`, afterwards `UpstreamLost`; a request without a
    streamed body is committed from the start."""

    __slots__ = (
        "_committed",
        "_connection",
        "_failure",
        "_silence_timeout_s",
        "_waiter",
        "answer",
        "head_only",
        "on_reused_connection",
        "unanswered",
        "unsent",
    )

    def __init__(self, connection: Carrier, head_only: bool, unsent: int, silence_timeout_s: float) -> None:
        self._connection: Carrier | None = connection
        self._committed = unsent == 0
        self._failure: str | None = None
        self._silence_timeout_s = silence_timeout_s
        self._waiter: asyncio.Future[None] | None = None
        self.head_only = head_only
        self.unsent = unsent
        """Body bytes still to be written."""
        self.answer: Response | None = None
        self.on_reused_connection = connection.reused
        self.unanswered = False
        """The upstream closed the connection before it sent a single byte."""

    async def write(self, data: bytes) -> None:
        """Send body bytes, waiting while too many lie ahead of the socket.

        Raises ValueError for more bytes than the request announced, and for those that complete it before
        `commit()`; `UpstreamNotReached` or `UpstreamLost` if the connection is gone; `UpstreamNotReached` if the
        upstream has answered already (then `response` gives the answer)."""
        size = len(data)
        if size > self.unsent:
            raise ValueError(f"{size} bytes written where {self.unsent} are left")
        if size == 0:
            return
        connection = self._writable()
        if size == self.unsent and not self._committed:
            raise ValueError("the bytes that complete a request need commit() before them")
        connection.send(data)
        self.unsent -= size
        while self.unsent and connection.writing_paused:
            await self.wait(self._silence_timeout_s, "the upstream takes no more of the body")
            self._writable()

    def commit(self) -> None:
        """From now on a failure means doubt; one that has come before does not. The socket has had TCP_USER_TIMEOUT
        since it was opened."""
        self._committed = self._connection is not None

    async def response(self, timeout_s: float) -> Response:
        """Wait for the answer's head. `timeout_s` bounds it and the answer's `read` together, from now on.

        Raises ValueError if the body has not been written whole and no answer came early; `UpstreamLost`, or
        `UpstreamNotReached` if the connection was lost before the commit point."""
        left_s = timeout_s
        if self.answer is None and self._failure is None:
            if self.unsent:
                raise ValueError(f"{self.unsent} bytes of the body are still to be written")
            clock = asyncio.get_running_loop().time
            begun_s = clock()
            await self.wait(timeout_s, f"no answer from the upstream within {timeout_s:g} s")
            left_s -= clock() - begun_s
        if self.answer is None:
            raise self._broken()
        self.answer.timeout_s = left_s
        return self.answer

    def abort(self) -> None:
        """Reset the connection if it still serves this exchange. Idempotent, at any time."""
        if self._connection is not None:
            self._connection.reset("the exchange was aborted")

    async def wait(self, timeout_s: float, reason: str) -> None:
        """Wait until the connection has news of this exchange; after `timeout_s`, or when cancelled, reset it."""
        if self._waiter is not None:
            raise RuntimeError("another task waits on this exchange")
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._expire, reason)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def answered(self, status: int, fields: list[tuple[bytes, bytes]]) -> Response:
        """The head of the final answer has arrived."""
        self.answer = Response(self, status, fields, self._silence_timeout_s)
        return self.answer

    def detach(self) -> None:
        """The answer is complete: the connection serves this exchange no longer."""
        self._connection = None
        if self.answer is not None:
            self.answer.detach()

    def fail(self, reason: str, *, unanswered: bool, untaken: bool) -> None:
        """The connection is gone. `untaken`: the upstream cannot have read the request."""
        if self._connection is None:
            return
        if untaken:
            self._committed = False
        self._connection = None
        self._failure = reason
        self.unanswered = unanswered
        if self.answer is not None:
            self.answer.failure = reason
            self.answer.detach()
        self.wake()

    def resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def _expire(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.reset(reason)

    def _writable(self) -> Carrier:
        if self.answer is not None:
            raise UpstreamNotReached(f"the upstream answered early, with status {self.answer.status}")
        if self._connection is None:
            raise self._broken()
        return self._connection

    def _broken(self) -> UpstreamLost | UpstreamNotReached:
        return (UpstreamLost if self._committed else UpstreamNotReached)(self._failure or "the exchange is over")


class Response:
    """An answer whose head has arrived (`gateway.upstream.base.UpstreamResponse`)."""

    __slots__ = (
        "_exchange",
        "_fields",
        "_first",
        "_headers",
        "_pieces",
        "_silence_timeout_s",
        "buffered",
        "complete",
        "failure",
        "status",
        "timeout_s",
    )

    def __init__(
        self, exchange: Exchange, status: int, fields: list[tuple[bytes, bytes]], silence_timeout_s: float
    ) -> None:
        self._exchange: Exchange | None = exchange
        self._fields = fields
        self._headers: list[tuple[str, str]] | None = None
        self._first: dict[str, str] = {}
        self._pieces: deque[bytes] = deque()
        self.status = status
        self.buffered = 0
        self.complete = False
        self.failure: str | None = None
        self._silence_timeout_s = silence_timeout_s
        self.timeout_s = silence_timeout_s

    @property
    def headers(self) -> list[tuple[str, str]]:
        if self._headers is None:
            self._headers = decoded(self._fields)
            self._first = dict(reversed(self._headers))
        return self._headers

    def header(self, name: str) -> str | None:
        return self._first.get(name) if self.headers else None

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the connection's end tells where the body ends (RFC 9112, 6.3)."""
        return self.header("content-length") is None and self.header("transfer-encoding") is None

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body, within the time that its head was allowed.

        Raises `UpstreamLost` if it breaks off, is longer than `limit_bytes`, or takes longer."""
        pieces: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        while (piece := await self._next(deadline_s - loop.time())) is not None:
            pieces.append(piece)
            size += len(piece)
            if size > limit_bytes:
                self.close()
                raise UpstreamLost(f"the upstream's answer is longer than {limit_bytes} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrived, reading no further ahead than `READ_BUFFER_BYTES`.

        Raises `UpstreamLost` if it breaks off, or falls silent for longer than the read time-out."""
        while (piece := await self._next(self._silence_timeout_s)) is not None:
            yield piece

    def close(self) -> None:
        """Drop what was not read; reset the connection if more would come. Idempotent."""
        if self._exchange is not None:
            self._exchange.abort()
        self._pieces.clear()

    def detach(self) -> None:
        """Nothing more will come."""
        self._exchange = None  # also ends the cycle of references, so that nothing is left to the collector

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self.buffered += len(data)

    async def _next(self, timeout_s: float) -> bytes | None:
        while not self._pieces:
            if self.complete:
                return None
            if self._exchange is None:
                raise UpstreamLost(self.failure or "the answer was closed")
            await self._exchange.wait(timeout_s, "the upstream's answer fell silent")
        piece = self._pieces.popleft()
        self.buffered -= len(piece)
        if self._exchange is not None and self.buffered <= READ_BUFFER_BYTES // 4:
            self._exchange.resume_reading()
        return piece
