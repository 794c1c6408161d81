"""The same request to the real store and through a gateway before it, on raw sockets, and what differs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.clock import SystemClock
from gateway.upstream.probe import Prober
from tests.conftest import StoreServer
from tests.server.rig import HOST, Answer, Pairs, Rig, Wire, raw, real, rule, running, signed

OWN = frozenset({"date", "connection", "last-modified", "x-amz-request-id", "x-amz-id-2"})
"""Fields that differ from request to request, or belong to whoever answers."""
_VARYING = re.compile(rb"<(RequestId|HostId|LastModified|UploadId|Initiated|Location)>[^<]*<")
DIRECT, THROUGH = "sides-direct", "sides-through"


@dataclass(frozen=True)
class Both:
    """Two answers to one request."""

    direct: Answer
    through: Answer

    def alike(self) -> None:
        """Fail unless status, fields and body are the same."""
        assert _comparable(self.through) == _comparable(self.direct)

    def alike_in_status(self) -> None:
        """Fail unless status and S3 error code are the same."""
        for answer in (self.direct, self.through):
            assert answer.status >= 300, answer
        assert (self.through.status, _code(self.through)) == (self.direct.status, _code(self.direct))


def _code(answer: Answer) -> str:
    return answer.code if answer.body else ""


def _comparable(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """An answer without what differs from request to request, as if both buckets had one name."""
    body = _VARYING.sub(rb"<\1>*<", answer.body).replace(THROUGH.encode(), DIRECT.encode())
    fields = sorted((n, v.replace(THROUGH, DIRECT)) for n, v in answer.headers if n not in OWN)
    if body != answer.body:
        fields = [(n, v) for n, v in fields if n != "content-length"]
    return answer.status, fields, body


@dataclass
class Sides:
    """The store, and a gateway before it. In targets and fields `{b}` stands for each side's own bucket."""

    rig: Rig
    server: StoreServer

    async def ask(self, method: str, target: str, fields: Pairs = (), body: bytes | None = None, **how: Any) -> Both:
        """Send one signed request to both; `how` is that of `tests.server.rig.signed`."""
        return Both(
            await self.direct(method, target, fields, body, **how),
            await self.through(method, target, fields, body, **how),
        )

    async def direct(
        self, method: str, target: str, fields: Pairs = (), body: bytes | None = None, **how: Any
    ) -> Answer:
        """Send it to the store alone."""
        head = signed(
            method,
            target.replace("{b}", DIRECT),
            [(n, v.replace("{b}", DIRECT)) for n, v in fields],
            body,
            credentials=self.server.credentials,
            host=self._netloc,
            **how,
        )
        return await self._say(head + (body or b""), method)

    async def through(
        self, method: str, target: str, fields: Pairs = (), body: bytes | None = None, **how: Any
    ) -> Answer:
        """Send it to the gateway alone."""
        own = [(n, v.replace("{b}", THROUGH)) for n, v in fields]
        return await self.rig.ask(method, target.replace("{b}", THROUGH), own, body, **how)

    async def unsigned(self, line: str, fields: Pairs = ()) -> Both:
        """Send one request without a signature to both; `line` is method and target."""
        method, _, target = line.partition(" ")
        first = raw(f"{method} {target.replace('{b}', DIRECT)} HTTP/1.1", [("host", self._netloc), *fields])
        second = raw(f"{method} {target.replace('{b}', THROUGH)} HTTP/1.1", [("host", HOST), *fields])
        return Both(await self._say(first, method), await self.rig.say(second, method))

    @property
    def _netloc(self) -> str:
        return self.server.url.removeprefix("http://")

    async def _say(self, data: bytes, method: str) -> Answer:
        host, _, port = self._netloc.rpartition(":")
        wire = Wire(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        try:
            await wire.send(data)
            return await wire.answer(method)
        finally:
            wire.close()


@asynccontextmanager
async def sides(server: StoreServer) -> AsyncIterator[Sides]:
    """A gateway before the store, which it has probed; both buckets are there, from the first test on."""
    upstream = real(server)
    rules = (rule("renders/{job}/**", "{job}"),)
    async with running(upstream=upstream, rules=rules, capabilities=Prober(upstream, SystemClock())) as rig:
        yield Sides(rig, server)
