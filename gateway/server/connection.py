"""One client's connection: what it sends is parsed as it comes (`Receiver`), and one task answers it in turn.

After an answer that leaves a body unread no further request is taken: what follows might be taken for one.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from gateway.core.errors import TryAgain
from gateway.outgoing import Outgoing
from gateway.server.http import ClientGone, Request
from gateway.server.receiving import Receiver

if TYPE_CHECKING:
    from gateway.server.listener import Listener

LINGER_S = 10.0
"""How long a client may go on sending a body that nobody reads; until then it should have read its answer."""
LINGER_AT_END_S = 2.0
"""How long what a client sends behind its last answer is taken in, if it does not close the connection itself."""


class Connection(asyncio.Protocol):
    """One client's connection (`gateway.server.receiving.Answerer`)."""

    __slots__ = (
        "_answering",
        "_ended",
        "_gone",
        "_half_closes",
        "_listener",
        "_loop",
        "_outgoing",
        "_receiver",
        "_task",
        "_transport",
        "_waiter",
        "_writable",
        "address",
        "due_s",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._answering = False
        self._half_closes = False
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
        if self._receiver.paused:
            # With the next turn of the loop: a pipeline is not answered whole before anybody else.
            self._loop.call_soon(self._receiver.advance)

    def cut(self) -> None:
        self._transport.abort()

    def finish(self) -> asyncio.Task[None] | None:
        """Take no further request; the task that still answers one, if there is one."""
        self._receiver.last = True
        if self._answering or self._receiver.queue:
            return self._task
        self._outgoing.flush()
        self._transport.close()
        return None

    def refuse(self, fault: TryAgain) -> None:
        """Let this be the connection's only answer, whatever the client asks."""
        self._receiver.last = True
        self._receiver.take(fault)

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outgoing = Outgoing(self._transport)
        limits = self._listener.limits
        self._receiver = Receiver(self, self._transport, limits.max_header_bytes, limits.max_header_field_bytes)
        self._half_closes = self._transport.can_write_eof()
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._listener.welcome(self)
        self._idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)
        self._client_ended()
        self.resume_writing()
        self._receiver.close()

    def eof_received(self) -> bool:
        self._outgoing.flush()  # before the transport closes
        self._client_ended()
        # A client that has said all may still read its answer.
        return self._half_closes and (self._answering or bool(self._receiver.queue))

    def data_received(self, data: bytes) -> None:
        self._receiver.received(data)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _client_ended(self) -> None:
        self._ended = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._receiver.end()

    # --- the receiver's

    def head_begins(self) -> None:
        if not self._answering:
            self.due_s = self._loop.time() + self._listener.limits.header_timeout_s

    def wake(self) -> None:
        if self._task is None:
            if self._receiver.queue:
                self._task = self._loop.create_task(self._answer_all())
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- answering

    def _idle(self) -> None:
        self._answering = False
        limits = self._listener.limits
        timeout_s = limits.header_timeout_s if self._receiver.in_head else limits.keepalive_timeout_s
        self.due_s = self._loop.time() + timeout_s
        self._listener.waiting[self] = None

    async def _answer_all(self) -> None:
        listener, receiver = self._listener, self._receiver
        try:
            while receiver.queue or not receiver.last:
                if not receiver.queue:
                    self._idle()
                    self._waiter = self._loop.create_future()
                    await self._waiter
                    continue
                item = receiver.queue.popleft()
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
                if receiver.queue or not reply.keep_alive:  # else it goes out with the next turn
                    await self.drained()
                if not reply.keep_alive:
                    receiver.last = True
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
        self._receiver.drop()
        self._outgoing.flush()
        if request is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await request.body.discard()
            if request.body.ended and not request.keep_alive and not self._receiver.broken:
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
