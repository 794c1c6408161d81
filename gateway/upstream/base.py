"""What the gateway asks of the store behind it: one request, sent once, with its commit point in our hands.

An exchange is staged until `commit()`: cut before that, it has no effect upstream (R2). Nothing is ever sent
twice by itself; only `read` (GET, HEAD and their like) tries a second connection when a pooled one was dead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class UpstreamRequest:
    """A request to sign and send. `raw_key` and `raw_query` go out byte for byte.

    `bucket` and `raw_key` let the client choose its addressing style; `headers` are lower-case names, without those
    that the client sets: `host`, `authorization`, `content-length`, `x-amz-date`, `x-amz-content-sha256`,
    `x-amz-security-token`.
    `payload_sha256` is the hex digest if it is known, else None (sent as UNSIGNED-PAYLOAD)."""

    method: str
    bucket: str | None
    raw_key: str
    raw_query: str
    headers: tuple[tuple[str, str], ...]
    payload_sha256: str | None = None


EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class UpstreamNotReached(Exception):
    """Nothing of the request can take effect: it was never sent whole. The message is for a person."""


class UpstreamLost(Exception):
    """The answer is lost after the request may have taken effect; the connection has been reset."""


class UpstreamResponse(Protocol):
    """An answer whose head has arrived. Must be read to its end or closed."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Lower-case names; values as text (UTF-8, else surrogate escapes), in their order."""
        ...

    def header(self, name: str) -> str | None:
        """The first field of that lower-case name."""
        ...

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamLost` if it breaks off, is longer than `limit_bytes`, or takes too long."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, with back pressure. Raises `UpstreamLost` if it breaks off or falls silent."""
        ...

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else reset it. Idempotent."""
        ...


class UpstreamExchange(Protocol):
    """A request whose head has been sent and whose body streams."""

    async def write(self, data: bytes) -> None:
        """Send body bytes, with back pressure. Raises `UpstreamNotReached` if the connection is gone or the
        upstream has answered already (then `response` gives the answer)."""
        ...

    def commit(self) -> None:
        """Say that the next `write` may complete the request. From here on at the latest the socket has a
        TCP_USER_TIMEOUT of settle_timeout/3 (R5)."""
        ...

    async def response(self, timeout_s: float) -> UpstreamResponse:
        """Wait for the answer's head. Raises `UpstreamLost` (the connection is reset with SO_LINGER 0)."""
        ...

    def abort(self) -> None:
        """Reset the connection. Before the commit point this leaves nothing behind upstream. Idempotent."""
        ...


class Upstream(Protocol):
    """An S3 store."""

    async def open(self, request: UpstreamRequest, content_length: int) -> UpstreamExchange:
        """Connect, send the head, answer an exchange that awaits `content_length` body bytes.
        Raises `UpstreamNotReached`."""
        ...

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> UpstreamResponse:
        """Send head and body at once: calling it is the commit point. `timeout_s` bounds the wait for the answer.
        Raises `UpstreamNotReached` only if nothing was sent, else `UpstreamLost`."""
        ...

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> UpstreamResponse:
        """A request without effect (GET, HEAD, lists). Tried once more on a new connection if a pooled one
        was dead. Raises `UpstreamNotReached` or `UpstreamLost`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the upstream has proved that it does (R4); what it has not proved is not relied upon."""

    conditional_put: bool = False
    conditional_copy: bool = False
    conditional_delete: bool = False
    trailers: frozenset[str] = frozenset()
    """The algorithms of the checksums that are kept when they trail an aws-chunked body, which is unpacked."""
    bare_etag: bool = False
    """`If-Match` is understood only without the ETag's quotes."""
    files_paths: bool = True
    """`a//b` is the object `a/b` (`gateway.core.names`). Believed until seen otherwise."""
    overlooks: bool = True
    """An object's subresource that it does not know is overlooked: the plain operation is done instead
    (`gateway.s3.operations`). Believed until seen otherwise."""
    overlooks_settings: bool = False
    """So are some of a bucket's. Nobody can try that without losing a bucket: believed of SeaweedFS, by its name."""


class CapabilitySource(Protocol):
    """Where the proof comes from."""

    async def of_bucket(self, bucket: str) -> Capabilities:
        """What the store has proved in this bucket; probes it on the first call. Never raises: what cannot be probed
        now is not proved, and is probed again later."""
        ...

    async def close(self) -> None:
        """End what is under way, leaving nothing in any bucket. Before the upstream is closed."""
        ...
