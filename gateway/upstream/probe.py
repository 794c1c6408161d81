"""What the store behind the gateway really does with conditions, found out by trying (R4).

Some stores ignore a condition in silence, some want the ETag without its quotes, some let two racers win. So nothing is
believed that has not been seen: in the bucket of the first fenced write a scratch object is written, overwritten, raced
for, copied and deleted. Beside conditions: whether keys are filed as paths, subresources overlooked, and trailing
checksums kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.clock import Clock
from gateway.core.write import Answer, classify
from gateway.s3 import checksums
from gateway.s3.chunked import TrailerEncoder
from gateway.s3.claim import STREAMING_UNSIGNED_TRAILER
from gateway.s3.xml import error_code
from gateway.upstream.base import (
    EMPTY_SHA256,
    Capabilities,
    Upstream,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
)

SCRATCH_PREFIX = ".fencing-gateway/probe-"
RACERS = 4
"""SeaweedFS lets each loser of a race wait for a second or more, and the first fenced write waits for them all."""
_TRAILED = b"trailed"
TIMEOUT_S = 10.0
RETRY_AFTER_S = 30.0
"""How long a bucket in which the probe could not be made is left alone."""


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: Answer
    status: int
    etag: str
    fields: dict[str, str]


class _CannotProbe(Exception):
    """The bucket does not let itself be probed (absent, forbidden, upstream gone)."""


class Prober:
    """Probes on first need and remembers (`gateway.upstream.base.CapabilitySource`)."""

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._clock = clock
        self._proved: Capabilities | None = None
        self._not_before: dict[str, float] = {}
        self._lock = asyncio.Lock()

    async def of_bucket(self, bucket: str) -> Capabilities:
        """What has been proved. What a store does is the same in all its buckets, so one proof serves all."""
        if self._proved is not None:
            return self._proved
        async with self._lock:
            if self._proved is None and self._clock.monotonic() >= self._not_before.get(bucket, 0.0):
                try:
                    self._proved = await _Probe(self._upstream, bucket, SCRATCH_PREFIX + self._clock.nonce()).run()
                except _CannotProbe:
                    now = self._clock.monotonic()
                    # Clients name what buckets they like: what is over is forgotten, so that the names do not pile up.
                    self._not_before = {b: t for b, t in self._not_before.items() if t > now}
                    self._not_before[bucket] = now + RETRY_AFTER_S
            return self._proved or Capabilities()


class FixedCapabilities:
    """Capabilities that are not probed: `conditional = "off"`, and tests."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    async def of_bucket(self, bucket: str) -> Capabilities:
        """The same for every bucket."""
        return self._capabilities


class _Probe:
    """One probe with one scratch object, which it removes again."""

    def __init__(self, upstream: Upstream, bucket: str, key: str) -> None:
        self._upstream = upstream
        self._bucket = bucket
        self._key = key
        self._versions: list[str] = []

    async def run(self) -> Capabilities:
        try:
            first = await self._send("PUT", [("if-none-match", "*")], b"1")
            if first.outcome is Answer.REFUSED and first.status in (403, 404):
                raise _CannotProbe
            if first.outcome is not Answer.APPLIED:
                # Not even absence can be demanded; see whether writing works at all.
                await self._plain_put()
                return await self._beside_conditions()
            bare = await self._put_honours(first.etag)
            found = await self._beside_conditions()
            if bare is None:
                return found
            return replace(
                found,
                conditional_put=True,
                conditional_copy=await self._copy_honours(bare),
                conditional_delete=await self._delete_honours(bare),
                bare_etag=bare,
            )
        finally:
            await self._clean_up()

    async def _beside_conditions(self) -> Capabilities:
        return Capabilities(
            files_paths=await self._files_paths(),
            trailers=await self._kept_trailers(),
            overlooks=await self._overlooks(),
        )

    async def _kept_trailers(self) -> frozenset[str]:
        """Of which algorithms a trailing checksum is kept. Some stores store an aws-chunked body's framing as data;
        one that keeps CRC32 may know no other, and refuses a body that the others trail."""
        if not await self._keeps_trailer("crc32"):
            return frozenset()
        rest = sorted(checksums.ALGORITHMS - {"crc32"})
        return frozenset(["crc32", *[algorithm for algorithm in rest if await self._keeps_trailer(algorithm)]])

    async def _keeps_trailer(self, algorithm: str) -> bool:
        """Whether a body that this checksum trails is taken, and the checksum shown afterwards."""
        running = checksums.start(algorithm)
        running.update(_TRAILED)
        name, value = f"x-amz-checksum-{algorithm}", checksums.encode(running.digest())
        encoder = TrailerEncoder(len(_TRAILED), name)
        headers = [("x-amz-decoded-content-length", str(len(_TRAILED))), ("x-amz-trailer", name)]
        body = b"".join(encoder.encode(_TRAILED)) + encoder.closing(value)
        sent = await self._send("PUT", headers, body, payload_sha256=STREAMING_UNSIGNED_TRAILER)
        if sent.outcome is not Answer.APPLIED:
            return False
        kept = await self._send("HEAD", [("x-amz-checksum-mode", "ENABLED")])
        return kept.fields.get(name) == value and kept.fields.get("content-length") == str(len(_TRAILED))

    async def _files_paths(self) -> bool:
        """Whether the scratch object is found under another spelling of its key."""
        answer = await self._send("HEAD", [], key=self._key.replace("/", "//"))
        return answer.status == 200

    async def _overlooks(self) -> bool:
        """Whether putting an annotation on the scratch object has replaced it."""
        body = b"not the object"
        await self._send("PUT", [], body, query="annotation&annotationName=probe")
        answer = await self._send("HEAD", [])
        return answer.status != 200 or answer.fields.get("content-length") == str(len(body))

    async def _plain_put(self) -> str:
        answer = await self._send("PUT", [], b"plain")
        if answer.outcome is not Answer.APPLIED:
            raise _CannotProbe
        return answer.etag

    async def _put_honours(self, etag: str) -> bool | None:
        """Whether conditional PUT can be relied upon; None: no; else whether the ETag must go without its quotes."""
        wrong = '"' + hashlib.md5(b"never written", usedforsecurity=False).hexdigest() + '"'
        if not await self._refused("PUT", ("if-none-match", "*")):
            return None
        if not await self._refused("PUT", ("if-match", wrong)):
            return None
        bare = False
        right = await self._send("PUT", [("if-match", etag)], b"2")
        if right.outcome is not Answer.APPLIED:
            bare = True
            right = await self._send("PUT", [("if-match", etag.strip('"'))], b"2")
            if right.outcome is not Answer.APPLIED:
                return None
        if not await self._refused("PUT", ("if-match", _etag(etag, bare))):
            return None
        condition = ("if-match", _etag(right.etag, bare))
        racers = await asyncio.gather(*(self._send("PUT", [condition], b"race%d" % n) for n in range(RACERS)))
        return bare if [r.outcome for r in racers].count(Answer.APPLIED) == 1 else None

    async def _copy_honours(self, bare: bool) -> bool:
        source = [("x-amz-copy-source", f"{self._bucket}/{self._key}"), ("x-amz-metadata-directive", "REPLACE")]
        current = await self._plain_put()
        if not await self._refused("PUT", ("if-none-match", "*"), source):
            return False
        right = await self._send("PUT", [*source, ("if-match", _etag(current, bare))])
        if right.outcome is not Answer.APPLIED:
            return False
        await self._send("PUT", [], b"another")
        return await self._refused("PUT", ("if-match", _etag(current, bare)), source)

    async def _delete_honours(self, bare: bool) -> bool:
        old = await self._plain_put()
        current = await self._send("PUT", [], b"newer")
        if not await self._refused("DELETE", ("if-match", _etag(old, bare))):
            return False
        right = await self._send("DELETE", [("if-match", _etag(current.etag, bare))])
        return right.outcome is Answer.APPLIED

    async def _refused(self, method: str, condition: tuple[str, str], headers: Sequence[tuple[str, str]] = ()) -> bool:
        body = b"x" if method == "PUT" and not headers else b""
        answer = await self._send(method, [*headers, condition], body)
        return answer.outcome is Answer.REFUSED and answer.status in (404, 409, 412)

    async def _send(
        self,
        method: str,
        headers: Sequence[tuple[str, str]],
        body: bytes = b"",
        *,
        query: str = "",
        key: str | None = None,
        payload_sha256: str | None = None,
    ) -> _Answer:
        digest = payload_sha256 or (hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256)
        request = UpstreamRequest(method, self._bucket, key or self._key, query, tuple(headers), digest)
        try:
            response = await self._upstream.send(request, body, TIMEOUT_S)
            data = await response.read(65536)
        except (UpstreamNotReached, UpstreamLost) as error:
            raise _CannotProbe from error
        version = response.header("x-amz-version-id")
        if version is not None and version != "null":
            self._versions.append(version)
        outcome = classify(response.status, error_code(data))
        return _Answer(outcome, response.status, response.header("etag") or "", dict(response.headers))

    async def _clean_up(self) -> None:
        try:
            await self._send("DELETE", [])
            for version in list(self._versions):
                await self._send("DELETE", [], query=f"versionId={version}")
        except _CannotProbe:
            pass


def _etag(etag: str, bare: bool) -> str:
    return etag.strip('"') if bare else etag
