"""The lock service of a run: leases with ever higher tokens, over a socket in its directory.

It keeps time by its own clock and knows nothing of what becomes of a holder: it gives a lease that has run out to the
next who asks, as every lock service does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

SOCKET = "referee.sock"


class Referee:
    """Serves for as long as the context lasts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SOCKET
        self._tokens: Counter[str] = Counter()
        self._held_until: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def _next(self, key: str) -> int:
        self._tokens[key] += 1
        return self._tokens[key]

    def _answer(self, key: str, ttl_s: float) -> dict[str, float]:
        """A lease, or 0 where somebody holds it. A `ttl_s` of 0 takes the next token whoever holds the last."""
        now = time.monotonic()
        if ttl_s and self._held_until.get(key, now) > now:
            return {"token": 0}
        self._held_until[key] = now + ttl_s
        return {"token": self._next(key)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            asked = json.loads(await reader.readline() or b"{}")
            if asked:
                writer.write(json.dumps(self._answer(asked["key"], asked["ttl_s"])).encode() + b"\n")
                await writer.drain()
        writer.close()


async def next_token(directory: Path, key: str, ttl_s: float = 0) -> int:
    """Ask the run's referee; 0: somebody holds the key."""
    reader, writer = await asyncio.open_unix_connection(directory / SOCKET)
    try:
        writer.write(json.dumps({"key": key, "ttl_s": ttl_s}).encode() + b"\n")
        return int(json.loads(await reader.readline())["token"])
    finally:
        writer.close()
