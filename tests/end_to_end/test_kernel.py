"""R5 on the kernel's side: what the gateway has handed to its kernel and the store has not taken is dropped in time.

The store is a receiver that stops reading in the middle of a request, so that the rest of it lies in the send buffer of
the gateway's end of the connection. That end outlives the gateway's process: the kernel goes on trying to deliver.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import queue
import socket
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.s3.sigv4 import Credentials
from tests.end_to_end.process import CLIENT, gateway_over, wait_until
from tests.end_to_end.wire import Answer, Conversation, Request, exchange, request
from tests.gateway_process import GatewayProcess, Target, before

SIZE = 40_000
"""More than the receiver's buffer takes, less than a send buffer."""
SETTLE_TIMEOUT_S = 6
USER_TIMEOUT_S = SETTLE_TIMEOUT_S / 3
BODIES = pytest.mark.parametrize("small_body_bytes", [0, 65536], ids=["streamed", "at hand"])


@dataclass
class Stalled:
    """A PUT whose head has been read, and perhaps the first of its body, and no more."""

    sock: socket.socket
    port: int
    """The gateway's end of the connection."""
    head: bytes
    taken: bytes

    @property
    def length(self) -> int:
        (length,) = [int(line[15:]) for line in self.head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return length

    @property
    def unread(self) -> int:
        """Bytes that wait for us in our own kernel: these have arrived, whatever happens to the gateway."""
        count = array.array("i", [0])
        fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, count)
        return count[0]

    @property
    def unsent(self) -> int | None:
        """Bytes that wait for us in the send buffer of the gateway's end; None once that end is no more."""
        ends = f":{self.port:04X}", f":{self.sock.getsockname()[1]:04X}"
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = row.split()
            if (local[-5:], remote[-5:]) == ends:
                return int(queues.partition(":")[0], 16)
        return None

    @property
    def sent(self) -> int:
        """How much of the body the gateway has handed to its kernel."""
        return len(self.taken) + self.unread + (self.unsent or 0)

    def read_on(self) -> tuple[bytes, str]:
        """Take all that still comes, and how it ends."""
        data = self.taken
        try:
            while piece := self.sock.recv(65536):
                data += piece
        except ConnectionResetError:
            return data, "reset"
        return data, "end"


class DeafStore:
    """A store without objects that stops reading in the middle of each PUT."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._stalled: queue.Queue[Stalled] = queue.Queue()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def target(self) -> Target:
        return Target("http://{}:{}".format(*self._listener.getsockname()), Credentials("access", "secret"))

    def stalled(self) -> Stalled:
        """The next PUT that has stalled."""
        return self._stalled.get(timeout=10)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, (_, port) = self._listener.accept()
            except OSError:
                return
            sock.settimeout(10)
            self._sockets.append(sock)
            self._threads.append(threading.Thread(target=self._serve, args=(sock, port)))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket, port: int) -> None:
        data = b""
        with suppress(OSError):
            while piece := sock.recv(1024):
                data += piece
                head, end, rest = data.partition(b"\r\n\r\n")
                if not end:
                    continue
                if head.startswith(b"PUT "):
                    self._stalled.put(Stalled(sock, port, head, rest))
                    return
                sock.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                data = rest


@pytest.fixture
def store() -> Iterator[DeafStore]:
    deaf = DeafStore()
    yield deaf
    deaf.close()


def gateway_before(store: DeafStore, directory: Path, *sets: str) -> GatewayProcess:
    return gateway_over(directory, "upstream.conditional=off", *sets, **before(store.target)).start()


def put(gateway: GatewayProcess, size: int = SIZE) -> Request:
    host = "{}:{}".format(*gateway.address)
    return request("PUT", host, "/bucket/renders/j/out", b"A" * size, CLIENT, headers=(("x-fencing-token", "33"),))


async def stalled_put(gateway: GatewayProcess, store: DeafStore) -> tuple[Stalled, asyncio.Task[Answer]]:
    """A PUT past its commit point: all of it in the kernels' hands, most of it in that of the gateway's end."""
    answer = asyncio.create_task(exchange(gateway.address, put(gateway)))
    stalled = await asyncio.to_thread(store.stalled)
    await asyncio.to_thread(wait_until, lambda: stalled.sent == stalled.length == SIZE)
    (send,) = (await asyncio.to_thread(gateway.fence, "j"))["unsettled"]
    assert send["phase"] == "committing"
    assert (stalled.unsent or 0) > SIZE // 2
    return stalled, answer


@BODIES
async def test_the_kernel_gives_up_what_a_killed_gateway_has_released(
    store: DeafStore, tmp_path: Path, small_body_bytes: int
) -> None:
    """TCP_USER_TIMEOUT: killed after the commit point, its kernel keeps the tail no longer than a third of the settle
    time-out, which the next token waits out. A store that reads on afterwards never gets it."""
    timing = (f"fencing.settle_timeout_s={SETTLE_TIMEOUT_S}", "fencing.settle_timeout_assembly_s=6")
    gateway = gateway_before(store, tmp_path, *timing, f"fencing.small_body_bytes={small_body_bytes}")
    try:
        stalled, answer = await stalled_put(gateway, store)
        gateway.kill()
        killed_at = time.monotonic()
        await asyncio.gather(answer, return_exceptions=True)
        assert stalled.unsent is not None, "the kernel has given up at once: this test proves nothing"
        await asyncio.to_thread(wait_until, lambda: stalled.unsent is None)
        # The time-out counts from the last byte that was acknowledged, which came before the kill.
        assert time.monotonic() - killed_at < USER_TIMEOUT_S + 1
        data, how = await asyncio.to_thread(stalled.read_on)
        assert (len(data) < SIZE // 2, how) == (True, "reset")
    finally:
        gateway.kill()


async def test_without_the_time_out_the_kernel_delivers_for_a_dead_gateway(store: DeafStore, tmp_path: Path) -> None:
    """The harm itself, by a time-out of hours: long after the kill the store reads on, and has the whole write."""
    timing = ("fencing.settle_timeout_s=86400", "fencing.settle_timeout_assembly_s=86400")
    gateway = gateway_before(store, tmp_path, *timing, "fencing.small_body_bytes=0")
    try:
        stalled, answer = await stalled_put(gateway, store)
        gateway.kill()
        await asyncio.gather(answer, return_exceptions=True)
        await asyncio.sleep(USER_TIMEOUT_S + 1)
        assert stalled.unsent is not None
        data, _ = await asyncio.to_thread(stalled.read_on)
        assert data == b"A" * SIZE
    finally:
        gateway.kill()


@BODIES
async def test_a_write_whose_answer_does_not_come_is_taken_back_as_far_as_it_can_be(
    store: DeafStore, tmp_path: Path, small_body_bytes: int
) -> None:
    """SO_LINGER: after the commit time-out the connection is reset, and the kernel drops at once what it holds."""
    timing = ("fencing.commit_timeout_s=0.5", f"fencing.small_body_bytes={small_body_bytes}")
    gateway = gateway_before(store, tmp_path, *timing)
    try:
        stalled, answer = await stalled_put(gateway, store)
        told = await answer
        assert (told.status, told.headers["x-fencing-reason"]) == (503, "InDoubt")
        assert told.headers["x-fencing-outcome"] == "Unknown"
        assert stalled.unsent is None
        data, how = await asyncio.to_thread(stalled.read_on)
        assert (len(data) < SIZE // 2, how) == (True, "reset")
    finally:
        gateway.kill()


async def test_what_is_staged_when_it_is_overtaken_is_never_delivered(store: DeafStore, tmp_path: Path) -> None:
    """R2, R3: most of 33's body lies in the kernel when 34 takes over. 34 waits for nothing, 33 is told that it is
    stale, and not a byte more reaches the store, however long it takes to read on."""
    gateway = gateway_before(store, tmp_path, "fencing.small_body_bytes=0")
    try:
        whole = put(gateway)
        conversation = await Conversation.open(gateway.address)
        await conversation.send(whole.head + whole.body[: -SIZE // 4])
        stalled = await asyncio.to_thread(store.stalled)
        await asyncio.to_thread(wait_until, lambda: stalled.sent > SIZE // 2)
        staged = stalled.sent
        raised = await asyncio.to_thread(gateway.ask, "fence", "raise", "j", "34", "--reason", "B takes over")
        assert raised.exit_code == 0
        told = await conversation.answer()
        assert (told.status, told.headers["x-fencing-reason"]) == (412, "StaleToken")
        conversation.close()
        await asyncio.to_thread(wait_until, lambda: stalled.unsent is None)
        data, how = await asyncio.to_thread(stalled.read_on)
        assert (len(data) < staged // 2, how) == (True, "reset")
        assert gateway.fence("j")["unsettled"] == []
    finally:
        gateway.kill()
