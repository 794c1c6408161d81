"""A small TCP proxy between two processes that knows where an HTTP/1.1 request begins and ends, and harms some of them.

What it holds up it delivers, whatever has become of the sender meanwhile. The fence's settle time-out has to be longer
than anything is held up; everything up to it has to be borne.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Self

HEAD_LIMIT_BYTES = 256 * 1024
PIECE_BYTES = 65536
ANSWER_BOUND_S = 20.0
"""No answer to a request whose sender is gone is waited for longer."""
LONGEST_DELAY_S = 1.2
Address = tuple[str, int]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:", re.IGNORECASE)
_FALSE_500 = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Harm(StrEnum):
    """What may happen to a request."""

    NONE = "none"
    CUT_BEFORE = "cut-before"
    """Its head is received, and nothing of it is passed on."""
    CUT_DURING = "cut-during"
    """Part of its body is passed on, of a request without one the whole; then both sides are reset."""
    SWALLOW = "answer-swallowed"
    """It is passed on whole; when its answer comes, both sides are reset."""
    CUT_ANSWER = "answer-cut"
    """The same after some bytes of the answer have been passed on."""
    SILENCE = "silence"
    """It is passed on whole; its answer never is, and the connection stays."""
    LATE = "late"
    """Its sender is reset when all of it has been received; it is passed on later."""
    FALSE_500 = "false-500"
    """The same, with an answer 500 instead of a reset."""
    DELAY_REQUEST = "request-delayed"
    DELAY_ANSWER = "answer-delayed"


TO_GATEWAY: Mapping[Harm, int] = {
    Harm.CUT_BEFORE: 2,
    Harm.CUT_DURING: 3,
    Harm.SWALLOW: 3,
    Harm.CUT_ANSWER: 1,
    Harm.LATE: 2,
    Harm.DELAY_REQUEST: 3,
    Harm.DELAY_ANSWER: 2,
}
TO_STORE: Mapping[Harm, int] = {
    **TO_GATEWAY,
    Harm.SILENCE: 1,
    Harm.LATE: 4,
    Harm.FALSE_500: 4,
}


class Chance:
    """Harms a share of the requests at random."""

    def __init__(self, seed: str, weights: Mapping[Harm, int], share: float) -> None:
        self._random = random.Random(seed)
        self._harms, self._weights = list(weights), list(weights.values())
        self.share = share

    def __call__(self, head: bytes) -> Harm:
        if self._random.random() >= self.share:
            return Harm.NONE
        return self._random.choices(self._harms, self._weights)[0]


def unharmed(head: bytes) -> Harm:
    """Every request gets through."""
    return Harm.NONE


async def at_once() -> None:
    """Holds up nothing."""


def held_for(seed: str, longest_s: float) -> Callable[[], Awaitable[None]]:
    """Holds up for a random time."""
    chance = random.Random(seed)

    async def hold() -> None:
        await asyncio.sleep(chance.uniform(0.02, 1) * longest_s)

    return hold


class Proxy:
    """Listens on a loopback port of its own for as long as the context lasts. `target` and `harm` are asked for each
    connection and for each head; `hold` is awaited where something is held up."""

    def __init__(
        self,
        target: Callable[[], Address],
        harm: Callable[[bytes], Harm] = unharmed,
        hold: Callable[[], Awaitable[object]] = at_once,
        seed: str = "",
    ) -> None:
        self.target = target
        self.harm = harm
        self.hold = hold
        self.harmed: Counter[Harm] = Counter()
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_LIMIT_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> Address:
        host, port = self._server.sockets[0].getsockname()
        return host, port

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def part(self) -> float:
        """At random, which part of something is passed on."""
        return self._random.random()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_Link(self, reader, writer).run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Link:
    """One connection, and its own to the other side."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._harm = Harm.NONE
        self._answered = asyncio.Event()

    async def run(self) -> None:
        try:
            async with asyncio.timeout(5):
                connected = await asyncio.open_connection(*self._proxy.target(), limit=HEAD_LIMIT_BYTES)
            self._up_reader, self._up_writer = connected
        except (OSError, TimeoutError):
            _reset(self._writer)
            return
        answers = asyncio.ensure_future(self._answers())
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while await self._request():
                    pass
        finally:
            answers.cancel()
            _reset(self._up_writer)
            _reset(self._writer)

    async def _request(self) -> bool:
        """One request, from its head to its body's end; whether another one may follow."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        left = int(length[1]) if length else 0
        harm = self._proxy.harm(head)
        if harm in (Harm.LATE, Harm.FALSE_500) and (_EXPECTS.search(head) or _CHUNKED.search(head)):
            harm = Harm.NONE  # all of it would never come
        if harm is not Harm.NONE:
            self._proxy.harmed[harm] += 1
        self._harm = harm
        if harm is Harm.CUT_BEFORE:
            return False
        if harm in (Harm.LATE, Harm.FALSE_500):
            await self._late(head, left, harm)
            return False
        if harm is Harm.DELAY_REQUEST:
            await self._proxy.hold()
        passed = int(left * self._proxy.part()) if harm is Harm.CUT_DURING else left
        await self._pass_on(head)
        while passed:
            piece = await self._reader.read(min(PIECE_BYTES, passed))
            if not piece:
                return False
            passed -= len(piece)
            await self._pass_on(piece)
        if _CHUNKED.search(head):
            while piece := await self._reader.read(PIECE_BYTES):
                await self._pass_on(piece)
        return harm is not Harm.CUT_DURING

    async def _pass_on(self, data: bytes) -> None:
        self._up_writer.write(data)
        await self._up_writer.drain()

    async def _late(self, head: bytes, left: int, harm: Harm) -> None:
        request = head + await self._reader.readexactly(left)
        if harm is Harm.FALSE_500:
            self._writer.write(_FALSE_500)
            self._writer.close()
        else:
            _reset(self._writer)
        await self._proxy.hold()
        await self._pass_on(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_BOUND_S):
                await self._answered.wait()

    async def _answers(self) -> None:
        with suppress(OSError):
            while data := await self._up_reader.read(PIECE_BYTES):
                self._answered.set()
                if self._harm in (Harm.LATE, Harm.FALSE_500, Harm.SILENCE):
                    continue
                if self._harm in (Harm.SWALLOW, Harm.CUT_ANSWER):
                    kept = int(len(data) * self._proxy.part()) if self._harm is Harm.CUT_ANSWER else 0
                    self._writer.write(data[:kept])
                    break
                if self._harm is Harm.DELAY_ANSWER:
                    await self._proxy.hold()
                    self._harm = Harm.NONE
                self._writer.write(data)
                await self._writer.drain()
        self._answered.set()
        if self._harm in (Harm.LATE, Harm.FALSE_500):
            return
        _reset(self._up_writer)
        if self._harm is Harm.SWALLOW:
            _reset(self._writer)
        else:
            self._writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST: nothing that is still to be sent is."""
    endpoint = writer.get_extra_info("socket")
    if endpoint is not None and endpoint.fileno() >= 0:
        with suppress(OSError):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
