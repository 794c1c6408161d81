"""The S3 client: addresses, signs and sends a request, once, byte for byte as it was given.

Our own and small, on httptools, since the commit point, the reset and the byte-exact head are what the gateway
is for (docs/decisions/0002-libraries.md)."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Literal

from gateway.clock import SystemClock
from gateway.s3.request import BUCKET_NAME
from gateway.s3.sigv4 import UNSIGNED_PAYLOAD, sign_headers
from gateway.tls import client_context
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamRequest
from gateway.upstream.credentials import CredentialsProvider
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.exchange import Exchange, Response
from gateway.upstream.pool import Pool
from gateway.upstream.signed_chunks import announced, framed, framed_length

OWN_HEADERS = frozenset(
    (
        "authorization",
        "connection",
        "content-length",
        "host",
        "transfer-encoding",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    )
)
"""What a request must not bring: the client sets them, or they would change where the request ends."""

_REQUEST_LINE = re.compile(r"[A-Z]+ /[^\x00-\x20\x7f]* HTTP/1\.1\r\n")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, 5.1; in lower case
_NAME = itemgetter(0)


@lru_cache(maxsize=256)
def _refuse_bad_names(names: tuple[str, ...]) -> None:
    """Raise ValueError for names that a request must not bring. The same names come in request after request."""
    for name in names:
        if name in OWN_HEADERS:
            raise ValueError(f"the client itself sets the header {name}")
        if _TOKEN.fullmatch(name) is None:
            raise ValueError(f"not the lower-case name of a header: {name!r}")


class UpstreamClient:
    """An S3 store behind an endpoint (`gateway.upstream.base.Upstream`).

    `addressing`: `path` puts the bucket into the path, `virtual` before the host, unless it has capitals; connections
    go to the endpoint's host either way. TCP_USER_TIMEOUT is `settle_timeout_s` / 3. A request's first byte leaves
    within `connect_timeout_s` of the call, or never. `silence_timeout_s` bounds each wait for the upstream that has
    no time-out of its own. `tls` answers what each new connection to an `https://` endpoint is opened with, by default
    the system's authorities. `now` is the wall clock that signatures need, seconds since the epoch."""

    def __init__(
        self,
        endpoint: str,
        *,
        region: str,
        credentials: CredentialsProvider,
        addressing: Literal["path", "virtual"] = "path",
        settle_timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        silence_timeout_s: float = 60.0,
        max_connections: int = 256,
        idle_s: float = 20.0,
        tls: Callable[[], ssl.SSLContext] | None = None,
        now: Callable[[], float] = SystemClock.wall,
    ) -> None:
        self._endpoint = Endpoint.parse(endpoint)
        self._region = region
        self._credentials = credentials
        self._virtual = addressing == "virtual"
        self._silence_timeout_s = silence_timeout_s
        self._now = now
        if self._endpoint.secure and tls is None:
            context = client_context()
            tls = lambda: context  # noqa: E731
        self._pool = Pool(
            self._endpoint.host,
            self._endpoint.port,
            tls=tls if self._endpoint.secure else None,
            user_timeout_ms=max(1, int(settle_timeout_s * 1000 / 3)),
            connect_timeout_s=connect_timeout_s,
            max_connections=max_connections,
            idle_s=idle_s,
        )

    @property
    def tls_fault(self) -> str | None:
        """Why the last TLS handshake failed, until something could be read since."""
        return self._pool.tls_fault

    async def open(self, request: UpstreamRequest, content_length: int) -> Exchange:
        """Send the head of a request whose `content_length` body bytes (at least 1) will be written.

        Raises `UpstreamNotReached`; ValueError for a request that cannot be sent as it is."""
        if content_length < 1:
            raise ValueError("a request without a body has no staging: its head commits it, use send")
        head = await self._head(request, content_length)
        connection = await self._pool.acquire()
        return connection.start(request.method, head, b"", content_length, self._silence_timeout_s)

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> Response:
        """Send the whole request and wait at most `timeout_s` for the head of its answer.

        Raises `UpstreamNotReached` if nothing was sent, `UpstreamLost` afterwards; ValueError."""
        exchange = await self._start(request, await self._head(request, len(body)), body)
        return await exchange.response(timeout_s)

    async def send_in_signed_chunk(self, request: UpstreamRequest, payload: bytes, timeout_s: float) -> Response:
        """Send `payload` as one signed chunk (STREAMING-AWS4-HMAC-SHA256-PAYLOAD), to see whether the store understands
        that: no client's body goes upstream so. Raises as `send`; ValueError without credentials."""
        credentials = await self._credentials.credentials()
        if credentials is None:
            raise ValueError("there are no credentials to sign chunks with")
        head = await self._head(announced(request, payload), framed_length(payload))
        exchange = await self._start(request, head, framed(payload, head, credentials, self._region))
        return await exchange.response(timeout_s)

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> Response:
        """Send a request without effect; once more if a connection that had been idle turned out dead.

        Raises `UpstreamNotReached`, `UpstreamLost`, ValueError."""
        head = await self._head(request, len(body))
        exchange = await self._start(request, head, body)
        try:
            response = await exchange.response(self._silence_timeout_s)
        except UpstreamLost:
            if not (exchange.on_reused_connection and exchange.unanswered):
                raise
            exchange = await self._start(request, head, body, fresh=True)
            response = await exchange.response(self._silence_timeout_s)
        self._pool.tls_fault = None
        return response

    async def close(self) -> None:
        """Close all connections; what is still in flight is reset."""
        await self._pool.close()

    async def _start(self, request: UpstreamRequest, head: bytes, body: bytes, *, fresh: bool = False) -> Exchange:
        connection = await self._pool.acquire(fresh=fresh)
        return connection.start(request.method, head, body, 0, self._silence_timeout_s)

    async def _head(self, request: UpstreamRequest, content_length: int) -> bytes:
        """The request line and all headers. Raises ValueError for what would not arrive as one request."""
        host, path = self._address(request.bucket, request.raw_key)
        if request.method == "OPTIONS" and not request.raw_key and path != "/":
            path += "/"  # SeaweedFS 4.48 answers by the bucket's own rules only so, else breaks off
        target = f"{path}?{request.raw_query}" if request.raw_query else path
        fields = [("host", host)]
        if content_length or request.method in ("PUT", "POST"):
            fields.append(("content-length", str(content_length)))
        fields += request.headers
        credentials = await self._credentials.credentials()
        if credentials is not None:
            fields += sign_headers(
                request.method,
                host,
                path,
                request.raw_query,
                request.headers,
                payload_hash=request.payload_sha256 or (UNSIGNED_PAYLOAD if content_length else EMPTY_SHA256),
                credentials=credentials,
                region=self._region,
                now=self._now(),
            )
        _refuse_bad_names(tuple(map(_NAME, request.headers)))
        lines = "\r\n".join((f"{request.method} {target} HTTP/1.1", *map(": ".join, fields)))
        if lines.count("\n") != len(fields) or lines.count("\r") != len(fields) or "\0" in lines:
            raise ValueError("a control character in the request's head")
        if _REQUEST_LINE.match(lines) is None:
            raise ValueError("a control character or a space in the request's method or target")
        return (lines + "\r\n\r\n").encode("utf-8", "surrogateescape")

    def _address(self, bucket: str | None, raw_key: str) -> tuple[str, str]:
        """The host and the path that name an object in the endpoint's style."""
        if "?" in raw_key:
            raise ValueError("an unescaped question mark in the object key")
        if bucket is None:
            if raw_key:
                raise ValueError("an object key without a bucket")
            return self._endpoint.host_header, "/"
        if BUCKET_NAME.fullmatch(bucket) is None:
            raise ValueError(f"not the name of a bucket: {bucket!r}")
        # Hosts know no capitals: S3 would take `B` for `b`, another bucket to every rule. Its SDKs do the same.
        if self._virtual and bucket == bucket.lower():
            return f"{bucket}.{self._endpoint.host_header}", f"/{raw_key}"
        return self._endpoint.host_header, f"/{bucket}/{raw_key}" if raw_key else f"/{bucket}"
