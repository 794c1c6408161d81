"""One connection to an S3 server, its answers kept byte for byte."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field

BOUND_S = 60.0
"""No server may be silent for longer."""
_PIECE = 1 << 18


class Silent(Exception):
    """The server has not answered, or not whole. The message says what came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: the first line and the fields as they stand on the wire, the body without its framing."""

    status: int
    reason: bytes
    fields: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)
    interim: tuple[int, ...] = ()
    """The 1xx that came before."""

    def get(self, name: bytes) -> bytes | None:
        """The first field of that lower-case name."""
        return next((value for n, value in self.fields if n.lower() == name), None)


class Connection:
    """A connection that is opened anew when the server has closed it.

    A `patient` one sends a request again that a connection has not lived to answer with a single byte: SeaweedFS closes
    some without a word."""

    def __init__(self, address: tuple[str, int], *, patient: bool) -> None:
        self._address = address
        self._patient = patient
        self._again: tuple[bytes, bytes, bool] | None = None
        self._socket: socket.socket | None = None
        self._buffer = b""

    def send(self, head: bytes, body: bytes, *, expects: bool) -> None:
        """Send a request; with `expects` the body only once an interim or final answer has begun. Raises `Silent`."""
        self._again = (head, body, expects) if self._patient and self._socket is not None else None
        try:
            self._send(head + (b"" if expects else body))
            if expects:
                self._fill()
                if self._buffer.startswith(b"HTTP/1.1 100"):
                    self._send_on(body)
        except OSError as error:
            self.close()
            if self._again is None:
                raise Silent(f"the connection broke while the request was sent: {error!r}") from error

    def answer(self, method: str) -> Answer:
        """The next final answer, whole. Raises `Silent`."""
        interim = []
        if self._again is not None and not self._speaks():
            again, self._again = self._again, None
            self.close()
            self.send(again[0], again[1], expects=again[2])
        try:
            while True:
                status, reason, fields = self._head()
                if status >= 200:
                    break
                interim.append(status)
            named = {name.lower(): value for name, value in fields}
            body = b"" if method == "HEAD" or status in (204, 304) else self._body(named)
        except OSError as error:
            self.close()
            raise Silent(f"no whole answer: {error!r}") from error
        if named.get(b"connection", b"").lower() == b"close":
            self.close()
        return Answer(status, reason, fields, body, tuple(interim))

    def _speaks(self) -> bool:
        """Whether a first byte comes."""
        try:
            if not self._buffer and self._socket is not None:
                self._fill()
        except OSError:
            return False
        return self._buffer != b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def _send(self, data: bytes) -> None:
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()  # between requests a server says nothing, unless it has closed
        if self._socket is None:
            self._socket = socket.create_connection(self._address, BOUND_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send_on(data)

    def _send_on(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def _fill(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(_PIECE)
        if not data:
            raise ConnectionError(f"closed after {self._buffer[:200]!r}")
        self._buffer += data

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._fill()
        taken, _, self._buffer = self._buffer.partition(mark)
        return taken

    def _head(self) -> tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]:
        first, *lines = self._until(b"\r\n\r\n").split(b"\r\n")
        _, status, reason = (*first.split(b" ", 2), b"")[:3]
        fields = tuple((n, v.strip(b" \t")) for n, _, v in (line.partition(b":") for line in lines))
        return int(status), reason, fields

    def _body(self, named: dict[bytes, bytes]) -> bytes:
        if named.get(b"transfer-encoding") == b"chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._take(size + 2)[:-2]
            self._until(b"\r\n")
            return body
        if b"content-length" in named:
            return self._take(int(named[b"content-length"]))
        raise ConnectionError(f"an answer without length: {named}")
