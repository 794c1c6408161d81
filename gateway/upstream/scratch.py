"""Scratch objects: what a probe writes into a bucket, and takes away again however it ends.

All of their keys begin with `.fencing-gateway.probe-`, and not with a folder, which SeaweedFS 4.48 would keep when it
is empty, and show in lists. Who is cancelled in mid-probe cuts no request that is under way, whose effect would then be
unknown: it runs to its end, and then all is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from gateway.core.write import CONDITION_FAILED_STATUS, Answer, classify
from gateway.s3.xml import error_code, find_text
from gateway.upstream.base import (
    EMPTY_SHA256,
    Upstream,
    UpstreamExchange,
    UpstreamLost,
    UpstreamNotReached,
    UpstreamRequest,
    UpstreamResponse,
)

SCRATCH_PREFIX = ".fencing-gateway.probe-"
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 20
REMOVE_TRIES = 3
BUSY_STATUS = frozenset({408, 429, 503})
"""What a store says of the moment, and not of what it does (S3 API reference, "Error responses": SlowDown)."""

Fields = Sequence[tuple[str, str]]
T = TypeVar("T")
SignedChunks = Callable[[UpstreamRequest, bytes, float], Coroutine[Any, Any, UpstreamResponse]]


class CannotProbe(Exception):
    """The bucket does not let itself be probed: absent, forbidden, the store gone. The message is for a person."""


class NotReached(CannotProbe):
    """The store itself could not be reached, or its answer was lost."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, read whole."""

    outcome: Answer
    status: int
    code: str | None
    etag: str
    """As S3 writes it, in quotes; empty where the answer names none."""
    fields: dict[str, str]
    body: bytes

    @property
    def applied(self) -> bool:
        return self.outcome is Answer.APPLIED

    @property
    def condition_failed(self) -> bool:
        return self.outcome is Answer.REFUSED and self.status in CONDITION_FAILED_STATUS

    @property
    def busy(self) -> bool:
        return self.status in BUSY_STATUS

    def conclusive(self) -> Heard:
        """This answer, from which one may conclude. Raises `CannotProbe` where the store was only too busy."""
        if self.busy:
            raise CannotProbe(f"the store was too busy: {self}")
        return self

    def __str__(self) -> str:
        return f"{self.status} {self.code}" if self.code else str(self.status)


class Staged:
    """A PUT whose last byte is withheld."""

    def __init__(self, scratch: Scratch, name: str, exchange: UpstreamExchange, last: bytes) -> None:
        self._scratch = scratch
        self.name = name
        self._exchange = exchange
        self._last = last
        self._cut = False

    async def release(self, timeout_s: float = TIMEOUT_S) -> Heard:
        """Send the last byte, before anything is awaited, and hear the answer. Raises `NotReached`."""
        return await self._scratch.to_its_end(self.name, self._release(timeout_s))

    def cut(self) -> None:
        """Break the connection; of an upload that has not been released nothing may be left. Idempotent."""
        self._cut = True
        self._exchange.abort()

    async def _release(self, timeout_s: float) -> UpstreamResponse:
        self._exchange.commit()
        with contextlib.suppress(UpstreamNotReached):  # answered before the last byte: the answer tells
            await self._exchange.write(self._last)
        try:
            return await self._exchange.response(timeout_s)
        except UpstreamLost as error:
            if self._cut:  # the loser of a race, which nobody waits for: the state that it demands is no more
                raise UpstreamNotReached("the upload was cut") from error
            raise


class Scratch:
    """The scratch objects of one probe; an async context manager that removes them, their versions and uploads.

    Every method that sends raises `CannotProbe`."""

    def __init__(self, upstream: Upstream, bucket: str, nonce: str) -> None:
        self.bucket = bucket
        self._upstream = upstream
        self._prefix = SCRATCH_PREFIX + nonce
        self._names: set[str] = set()
        self._doubtful: set[str] = set()
        self._disputed: set[str] = set()
        """Names whose removal is seen to: several wrote them at a time, or an answer did not tell the outcome."""
        self._versions: set[tuple[str, str]] = set()
        self._marked: set[str] = set()
        """Names whose DELETE has left a mark without an id of its own: versions are kept no longer."""
        self._uploads: list[tuple[str, str]] = []
        self._staged: list[Staged] = []
        self._running: set[asyncio.Task[Any]] = set()
        self.left: list[str] = []
        """Keys of what could not be removed, or may still appear since an answer was lost; known on leaving."""

    async def __aenter__(self) -> Scratch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        removing = asyncio.create_task(self.remove_all())
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            await removing
            raise

    def key(self, name: str) -> str:
        """The object's key in the bucket."""
        return f"{self._prefix}-{name}"

    async def send(
        self,
        method: str,
        name: str,
        headers: Fields = (),
        body: bytes = b"",
        *,
        query: str = "",
        payload_sha256: str | None = None,
        raw_key: str | None = None,
    ) -> Heard:
        """Send one request, and hear a conclusive answer; `raw_key` in place of the key that `name` stands for."""
        digest = payload_sha256 or (hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256)
        request = UpstreamRequest(
            method, self.bucket, self.key(name) if raw_key is None else raw_key, query, tuple(headers), digest
        )
        if method in ("GET", "HEAD"):
            return (await self.to_its_end(None, self._upstream.read(request))).conclusive()
        return (await self.to_its_end(name, self._upstream.send(request, body, TIMEOUT_S))).conclusive()

    async def send_by(self, send: SignedChunks, name: str, payload: bytes) -> Heard:
        """PUT a payload in another way than the upstream's `send`."""
        request = UpstreamRequest("PUT", self.bucket, self.key(name), "", ())
        return (await self.to_its_end(name, send(request, payload, TIMEOUT_S))).conclusive()

    async def put(self, name: str, body: bytes, *headers: tuple[str, str]) -> Heard:
        return await self.send("PUT", name, headers, body)

    async def head(self, name: str, *headers: tuple[str, str]) -> Heard:
        return await self.send("HEAD", name, headers)

    async def get(self, name: str) -> Heard:
        return await self.send("GET", name)

    async def stage(self, name: str, body: bytes, *headers: tuple[str, str]) -> Staged:
        """Send a PUT but for its last byte."""
        self._names.add(name)
        request = UpstreamRequest("PUT", self.bucket, self.key(name), "", headers, hashlib.sha256(body).hexdigest())
        try:
            exchange = await self._upstream.open(request, len(body))
            staged = Staged(self, name, exchange, body[-1:])
            if any(other.name == name for other in self._staged):
                self._disputed.add(name)
            self._staged.append(staged)
            await exchange.write(body[:-1])
        except UpstreamNotReached as error:
            raise NotReached(str(error)) from error
        return staged

    async def begin_upload(self, name: str) -> str:
        """Create a multipart upload and answer its id; empty if the store would not."""
        return await self._unhurried(self._begin_upload(name))

    async def to_its_end(self, written: str | None, request: Coroutine[Any, Any, UpstreamResponse]) -> Heard:
        """Hear the answer of a request that nobody's cancellation cuts; `written` is the object that it may leave."""
        return await self._unhurried(self._hear(written, request))

    async def _unhurried(self, what: Coroutine[Any, Any, T]) -> T:
        """Await something that goes on, and is waited for before all is removed, also when the caller is cancelled."""
        task = asyncio.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _begin_upload(self, name: str) -> str:
        request = UpstreamRequest("POST", self.bucket, self.key(name), "uploads=", (), EMPTY_SHA256)
        heard = await self._hear(name, self._upstream.send(request, b"", TIMEOUT_S))
        upload_id = (find_text(heard.body, "UploadId") or "") if heard.conclusive().applied else ""
        if upload_id:
            self._uploads.append((name, upload_id))
        return upload_id

    async def _hear(self, written: str | None, request: Coroutine[Any, Any, UpstreamResponse]) -> Heard:
        try:
            response = await request
            body = await response.read(MAX_ANSWER_BYTES)
        except UpstreamLost as error:
            if written is not None:
                self._names.add(written)
                self._doubtful.add(written)
            raise NotReached(str(error)) from error
        except UpstreamNotReached as error:
            raise NotReached(str(error)) from error
        except ValueError as error:
            raise CannotProbe(str(error)) from error
        if written is not None:
            self._names.add(written)
            version = response.header("x-amz-version-id")
            if version is not None and version != "null":
                self._versions.add((written, version))
            elif response.header("x-amz-delete-marker") == "true":
                self._marked.add(written)
        code = error_code(body)
        outcome = classify(response.status, code)
        if written is not None and outcome is Answer.LOST:
            self._disputed.add(written)
        return Heard(outcome, response.status, code, response.header("etag") or "", dict(response.headers), body)

    async def remove(self, name: str) -> None:
        """Remove an object that is no longer needed; its versions go with the rest."""
        await self._remove(name)

    async def remove_all(self) -> None:
        """Cut what is staged, wait for what is under way, remove all objects, versions and uploads."""
        for staged in self._staged:
            staged.cut()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(self._remove(n, f"uploadId={quote(i, safe='')}") for n, i in self._uploads))
        await asyncio.gather(*(self._remove(name) for name in self._names))
        await asyncio.gather(*(self._remove(n, f"versionId={quote(v, safe='')}") for n, v in self._versions))
        await asyncio.gather(*(self._unmark(name) for name in self._marked))
        self.left = sorted(self.key(name) for name in self._doubtful)
        for done in (self._staged, self._uploads, self._names, self._versions, self._marked):
            done.clear()

    async def _unmark(self, name: str) -> None:
        """SeaweedFS 4.48 removes such a mark by no id; an object in its place it does, and leaves nothing."""
        with contextlib.suppress(CannotProbe):
            await self.put(name, b"in place of the mark")
        await self._remove(name, "versionId=null")

    async def _remove(self, name: str, query: str = "") -> None:
        request = UpstreamRequest("DELETE", self.bucket, self.key(name), query, (), EMPTY_SHA256)
        for _ in range(REMOVE_TRIES):
            # A DELETE may itself leave something: the mark that it makes where versions are kept.
            with contextlib.suppress(CannotProbe):
                heard = await self._hear(None if query else name, self._upstream.send(request, b"", TIMEOUT_S))
                gone = heard.applied or heard.status == 404
                if gone and (query or name not in self._disputed or await self._is_gone(name)):
                    return
        self._doubtful.add(name)

    async def _is_gone(self, name: str) -> bool:
        """Whether an object is not there; after a race a store may say so of what it had rather than of what it has."""
        request = UpstreamRequest("HEAD", self.bucket, self.key(name), "", (), EMPTY_SHA256)
        return (await self._hear(None, self._upstream.read(request))).status == 404


async def side_by_side(*experiments: Coroutine[Any, Any, T]) -> list[T]:
    """Make experiments at the same time. Raises what the first of them raised, but only when all have ended."""
    results = await asyncio.gather(*experiments, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
