"""A bad upstream, played by hand: a test accepts the client's connections and says what each of them gets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.s3.sigv4 import Credentials
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
PUT = UpstreamRequest("PUT", "bucket", "key", "", ())
GET = UpstreamRequest("GET", "bucket", "key", "", ())
HEAD = UpstreamRequest("HEAD", "bucket", "key", "", ())

BOUND_S = 5.0
"""No step of a conversation may take longer."""


class Peer:
    """The upstream's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pending = b""

    async def request(self) -> bytes:
        """One request with its body, as it came."""
        while b"\r\n\r\n" not in self._pending:
            self._pending += await self._receive()
        head, _, rest = self._pending.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n")[1:]:
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        while len(rest) < length:
            rest += await self._receive()
        self._pending = rest[length:]
        return head + b"\r\n\r\n" + rest[:length]

    async def head(self) -> bytes:
        """One request's head alone, its body left unread."""
        while b"\r\n\r\n" not in self._pending:
            self._pending += await self._receive()
        head, _, self._pending = self._pending.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self._sock, data), BOUND_S)

    async def end(self) -> str:
        """Read on until the client ends the connection; how it did: `fin` or `reset`."""
        try:
            while True:
                data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1 << 20), BOUND_S)
                if not data:
                    return "fin"
        except ConnectionResetError:
            return "reset"

    def close(self) -> None:
        self._sock.close()

    def finish(self) -> None:
        """Say that nothing more will come, by FIN."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    async def _receive(self) -> bytes:
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1 << 16), BOUND_S)
        if not data:
            raise ConnectionError("the client closed the connection")
        return data


class Listener:
    """The upstream's address, on loopback."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._sock.setblocking(False)
        self._peers: list[Peer] = []
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    async def accept(self) -> Peer:
        sock, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(self._sock), BOUND_S)
        peer = Peer(sock)
        self._peers.append(peer)
        return peer

    def nobody_waits(self) -> bool:
        """Whether no further connection has been made."""
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return True
        sock.close()
        return False

    def close(self) -> None:
        self._sock.close()
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def conversation(
    *, credentials: Credentials | None = None, **options: Any
) -> AsyncIterator[tuple[UpstreamClient, Listener]]:
    """A client and the upstream it talks to."""
    listener = Listener()
    options = {"silence_timeout_s": BOUND_S, "connect_timeout_s": BOUND_S} | options
    client = UpstreamClient(listener.url, region="us-east-1", credentials=StaticCredentials(credentials), **options)
    try:
        yield client, listener
    finally:
        await client.close()
        listener.close()


async def used_once(client: UpstreamClient, listener: Listener) -> Peer:
    """The peer of a connection that has carried one exchange and lies idle in the pool."""
    sending = asyncio.ensure_future(client.send(PUT, b"first", BOUND_S))
    peer = await listener.accept()
    await peer.request()
    await peer.send(OK)
    assert (await sending).status == 200
    return peer
