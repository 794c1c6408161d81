"""A request's body on its way in: `100 Continue` when it is first wanted, progress watched, promises verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from math import inf

from gateway.clock import Clock
from gateway.s3.errors import S3Error
from gateway.s3.payload import PayloadDecoder, PayloadSpec
from gateway.s3.sigv4 import ChunkSigner
from gateway.s3.xml import refuse_doctype
from gateway.server.http import BadFraming, Request

SWEEP_S = 1.0


class Progress:
    """Ends bodies whose clients send nothing, or next to nothing: one sweep over the stamps of all, instead of a timer
    for each read."""

    def __init__(self, clock: Clock, idle_timeout_s: float, min_bytes_per_s: int) -> None:
        """After twice `idle_timeout_s` of waiting for its client a body must have brought `min_bytes_per_s` for each
        further second; 0 asks for none."""
        self.clock = clock
        self._idle_timeout_s = idle_timeout_s
        self._min_bytes_per_s = min_bytes_per_s
        self._bodies: set[RequestBody] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep."""
        self._task = asyncio.create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        """End the sweeping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def watch(self, body: RequestBody) -> None:
        self._bodies.add(body)

    def forget(self, body: RequestBody) -> None:
        self._bodies.discard(body)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = self.clock.monotonic()
            for body in [body for body in self._bodies if self._too_slow(body, now_s - body.waits_since)]:
                body.give_up()

    def _too_slow(self, body: RequestBody, waits_s: float) -> bool:
        if waits_s > self._idle_timeout_s:
            return True
        counted_s = body.waited_s + waits_s - 2 * self._idle_timeout_s
        return counted_s * self._min_bytes_per_s > body.bytes_read


class RequestBody:
    """The body of one request (`gateway.service.sending.Body`). `signer` verifies its chunks, where they are signed."""

    __slots__ = (
        "_content",
        "_decoder",
        "_document",
        "_progress",
        "_request",
        "_signer",
        "bytes_read",
        "spec",
        "waited_s",
        "waits_since",
        "wanted",
    )

    def __init__(
        self,
        request: Request,
        spec: PayloadSpec,
        signer: ChunkSigner | None,
        progress: Progress,
        *,
        document: bool = False,
    ) -> None:
        self._request = request
        self._content = request.body
        self._decoder: PayloadDecoder | None = None
        self._document = document
        self._signer = signer
        self._progress = progress
        self.spec = spec
        self.wanted = False
        self.bytes_read = 0
        self.waited_s = 0.0
        """How long the client has been waited for before that, in all."""
        self.waits_since = inf
        """When the client was last asked for more, by the clock; infinity while what came is being passed on."""

    @property
    def length(self) -> int:
        return self.spec.length

    @property
    def sha256(self) -> str | None:
        return self.spec.sha256

    @property
    def trailer(self) -> str | None:
        return self.spec.trailer

    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        trailing = None if self._decoder is None else self._decoder.trailing_checksum
        return () if trailing is None else ((f"x-amz-checksum-{trailing[0]}", trailing[1]),)

    async def read(self) -> bytes:
        """The whole payload, verified. Raises `S3Error` or `ClientGone`."""
        decoder = self._begin()
        received = BytesIO()  # a list of pieces would cost many times their bytes where they are small
        try:
            while data := await self._next():
                self.bytes_read += len(data)
                received.writelines(decoder.feed(data))
            decoder.finish()
        finally:
            self._progress.forget(self)
        payload = received.getvalue()
        if self._document and payload:
            refuse_doctype(payload)
        return payload

    async def pieces(self) -> AsyncIterator[list[bytes]]:
        """The payload as it arrives, which is no document; ends only when it is verified. Raises as `read` does."""
        decoder = self._begin()
        try:
            while data := await self._next():
                self.bytes_read += len(data)
                if pieces := decoder.feed(data):
                    yield pieces
            decoder.finish()
        finally:
            self._progress.forget(self)

    def give_up(self) -> None:
        """No progress for too long: whoever reads is told so."""
        self._progress.forget(self)
        self._content.fail(TimeoutError())

    def _begin(self) -> PayloadDecoder:
        self.wanted = True
        self._decoder = decoder = PayloadDecoder(self.spec, self._signer)
        self._progress.watch(self)
        # Said also where no byte will come: AWS's clients (boto3 to 1.35, AWS CLI 1.46 and 2.36) take the status of an
        # answer without a 100 for that of the connection's next answer, too, and wait in vain for the rest of it.
        if self._request.expects_continue and not (self._content.ended and self._request.has_body):
            self._request.carrier.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return decoder

    async def _next(self) -> bytes:
        """What the client sends next; only the time that is spent here is the client's."""
        self.waits_since = self._progress.clock.monotonic()
        try:
            return await self._content.read()
        except BadFraming as error:
            raise S3Error("IncompleteBody", "The request's body could not be read to its end.") from error
        except TimeoutError as error:
            raise S3Error(
                "RequestTimeout",
                "Your socket connection to the server was not read from or written to within the timeout period.",
            ) from error
        finally:
            self.waited_s += self._progress.clock.monotonic() - self.waits_since
            self.waits_since = inf
