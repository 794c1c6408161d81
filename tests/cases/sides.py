"""The same request to the real store and through a gateway before it, on raw sockets, and what differs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.upstream.base import Capabilities
from gateway.upstream.probe import FixedCapabilities
from tests.conftest import StoreServer
from tests.server.rig import HOST, Answer, Pairs, Rig, Wire, raw, real, rule, running, signed

OWN = frozenset({"date", "connection", "last-modified", "x-amz-request-id", "x-amz-id-2"})
"""Fields that differ from request to request, or belong to whoever answers."""
_VARYING = re.compile(rb"<(RequestId|HostId|LastModified|UploadId|Initiated|Location)>[^<]*<")


@dataclass(frozen=True)
class Both:
    """Two answers to one request."""

    direct: Answer
    through: Answer
    bucket: str
    """What both buckets' names end in."""

    def alike(self) -> None:
        """Fail unless status, fields and body are the same."""
        direct, through = self._comparable(self.direct), self._comparable(self.through)
        assert through == direct

    def alike_in_status(self) -> None:
        """Fail unless status and S3 error code are the same."""
        for answer in (self.direct, self.through):
            assert answer.status >= 300, answer
        assert (self.through.status, _code(self.through)) == (self.direct.status, _code(self.direct))

    def _comparable(self, answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
        """An answer without what differs from request to request, as if both buckets had one name."""
        body = _VARYING.sub(rb"<\1>*<", answer.body)
        masked = body != answer.body  # what varies may vary in length
        for prefix in ("d-", "t-"):
            body = body.replace((prefix + self.bucket).encode(), b"bucket")
        fields = sorted((n, v) for n, v in answer.headers if n not in OWN and not (masked and n == "content-length"))
        return answer.status, fields, body


def _code(answer: Answer) -> str:
    return answer.code if answer.body else ""


@dataclass
class Sides:
    """The store, and a gateway before it. In targets and fields `{b}` stands for each side's own bucket."""

    rig: Rig
    server: StoreServer
    bucket: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def of_store(self) -> str:
        """The bucket that the store alone is asked for."""
        return f"d-{self.bucket}"

    @property
    def of_gateway(self) -> str:
        """The bucket that the gateway is asked for."""
        return f"t-{self.bucket}"

    async def ask(self, method: str, target: str, fields: Pairs = (), body: bytes | None = None, **how: Any) -> Both:
        """Send one signed request to both; `how` is that of `tests.server.rig.signed`."""
        return Both(
            await self.direct(method, target, fields, body, **how),
            await self.through(method, target, fields, body, **how),
            self.bucket,
        )

    async def direct(
        self, method: str, target: str, fields: Pairs = (), body: bytes | None = None, **how: Any
    ) -> Answer:
        """Send it to the store alone."""
        head = signed(
            method,
            target.replace("{b}", self.of_store),
            [(n, v.replace("{b}", self.of_store)) for n, v in fields],
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
        own = [(n, v.replace("{b}", self.of_gateway)) for n, v in fields]
        return await self.rig.ask(method, target.replace("{b}", self.of_gateway), own, body, **how)

    async def unsigned(self, line: str, fields: Pairs = ()) -> Both:
        """Send one request without a signature to both; `line` is method and target."""
        method, _, target = line.partition(" ")
        first = raw(f"{method} {target.replace('{b}', self.of_store)} HTTP/1.1", [("host", self._netloc), *fields])
        second = raw(f"{method} {target.replace('{b}', self.of_gateway)} HTTP/1.1", [("host", HOST), *fields])
        return Both(await self._say(first, method), await self.rig.say(second, method), self.bucket)

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
async def sides(server: StoreServer, proved: Capabilities) -> AsyncIterator[Sides]:
    """A gateway before the store, and an empty bucket for each side; `proved` is what the store does."""
    rules = (rule("renders/{job}/**", "{job}"),)
    async with running(upstream=real(server), rules=rules, capabilities=FixedCapabilities(proved)) as rig:
        both = Sides(rig, server)
        for name in (both.of_store, both.of_gateway):
            await asyncio.to_thread(server.client.create_bucket, Bucket=name)
        yield both
