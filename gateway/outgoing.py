"""Bytes on their way to a peer, handed to its transport at the next turn of the event loop, all peers' together.

Waking a peer that sleeps costs more than the bytes that it is sent (some 50 µs of CPU, where a core has to be woken for
it). Sent between requests that are worked on, each lot wakes its peer anew; sent together, most find it awake. Where
one request is worked on alone, to wait for the turn would only delay it.
"""

from __future__ import annotations

import asyncio


class Outgoing:
    """What is to be sent over one transport."""

    __slots__ = ("_loop", "_pieces", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._pieces: list[bytes] = []

    def send(self, *pieces: bytes, alone: bool = False) -> None:
        """Have them sent with the next turn, or by `flush`; at once if they are `alone`, with nothing else under way
        that could go out together with them."""
        if not self._pieces and not alone:
            self._loop.call_soon(self.flush)
        self._pieces += pieces
        if alone:
            self.flush()

    @property
    def waits(self) -> bool:
        """Something has not been sent yet."""
        return bool(self._pieces)

    def flush(self) -> None:
        """Send now what has not been sent."""
        if self._pieces and not self._transport.is_closing():
            self._transport.writelines(self._pieces)
        self._pieces = []
