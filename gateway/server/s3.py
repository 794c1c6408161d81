"""One S3 request from head to answer, in the order of R1: signature, operation, authorisation, key, length.

Nothing of a body is read, and no `100 Continue` sent, before the service has admitted the write.
"""

from __future__ import annotations

import asyncio

from gateway.clock import Clock
from gateway.core.errors import FenceError, Malformed, Reason, Refused, TryAgain
from gateway.core.keys import NO_TOKEN, FencingKey, Mapping, Mode, Ruleset, Token, WithoutToken, agree, key_of_object
from gateway.s3.claim import UNSIGNED_PAYLOAD
from gateway.s3.errors import S3Error
from gateway.s3.fencing import NOTHING_CLAIMED, Claimed, claimed, refuse_reserved
from gateway.s3.forward import forwarded_headers, forwarded_query
from gateway.s3.listing import LISTS, may_show_record
from gateway.s3.operations import Body, Effect, Fences, Operation
from gateway.s3.payload import payload_spec
from gateway.s3.recognise import recognise
from gateway.s3.request import RequestHead, parse_head
from gateway.s3.session import bound_claim
from gateway.s3.sigv4 import ChunkSigner
from gateway.s3.xml import BatchObject, error_code, parse_batch
from gateway.server.answers import Answers
from gateway.server.body import Progress, RequestBody
from gateway.server.clients import Caller, Clients
from gateway.server.cross_origin import ALLOWED, cross_origin
from gateway.server.http import Carrier, ClientGone, Reply, Request
from gateway.service.batches import Batches
from gateway.service.buckets import delete_bucket, refuse_record, refuse_record_key
from gateway.service.copies import SOURCE, copy_source
from gateway.service.listings import listed
from gateway.service.misreadings import refuse_misfiled, refuse_misread
from gateway.service.observed import ObservedUploads
from gateway.service.refusals import refuse_our_own_fault, unavailable
from gateway.service.uploads import Uploads, take_binding
from gateway.service.values import Result, Write
from gateway.service.writes import Writes
from gateway.stores.base import EventKind, Store, StoreUnavailable, Upload
from gateway.telemetry import RequestRecord, Telemetry
from gateway.upstream.base import EMPTY_SHA256, UpstreamLost, UpstreamNotReached, UpstreamRequest, UpstreamResponse

SMALL_ANSWER_BYTES = 65536
_ROW_OF_NOTHING = "Unknown"


class S3Handler:
    """Answers S3 requests."""

    def __init__(
        self,
        *,
        clients: Clients,
        rules: Ruleset,
        writes: Writes,
        uploads: Uploads,
        batches: Batches,
        progress: Progress,
        telemetry: Telemetry,
        clock: Clock,
        max_concurrent_requests: int,
        max_concurrent_requests_per_client: int,
        host_id: str,
        virtual_host_suffixes: tuple[str, ...] = (),
    ) -> None:
        self._clients = clients
        self._rules = rules
        self._writes = writes
        self._uploads = uploads
        self._batches = batches
        self._observed = ObservedUploads()
        self._upstream = writes.upstream
        self._store: Store = writes.fences.store
        self._progress = progress
        self._telemetry = telemetry
        self._clock = clock
        self._max_concurrent_requests = max_concurrent_requests
        self._max_concurrent_requests_per_client = max_concurrent_requests_per_client
        self._host_id = host_id
        self._suffixes = virtual_host_suffixes
        self.running = 0
        self.running_of: dict[str | None, int] = {}
        """By the access key that has been proved; None: of all that sign nothing."""
        telemetry.running.set_function(lambda: self.running)
        self.draining = False

    async def handle(self, request: Request) -> Reply:
        """Answer one request, log and count it. Never raises but when its task is cancelled."""
        started = self._clock.monotonic()
        record = RequestRecord(_request_id(self._clock), address=request.carrier.address, method=request.method)
        reply = Reply(request.carrier, request)
        call = _Call(self, request, reply, record)
        self.running += 1
        try:
            await call.answer()
        except asyncio.CancelledError:
            record.decision, record.reason = "failed", "Cut"
            record.message = "the gateway was stopped before the request had been answered"
            reply.cut()
            raise
        finally:
            self.running -= 1
            call.give_place_back()
            record.status = reply.status
            record.bytes_out = reply.bytes_sent
            effect = call.operation.effect.value if call.operation else _ROW_OF_NOTHING
            self._telemetry.finished(record, effect, self._clock.monotonic() - started)
        return reply

    def answer_fault(self, carrier: Carrier, error: S3Error | TryAgain) -> Reply:
        """Answer what never became a request."""
        reply = Reply(carrier, None)
        record = RequestRecord(_request_id(self._clock), address=carrier.address, decision="failed")
        answers = Answers(None, reply, record, self._store, self._host_id)
        if isinstance(error, TryAgain):
            answers.refuse(error)
        else:
            record.reason, record.message = error.code, error.message
            answers.send_error(error)
        record.status, record.bytes_out = reply.status, reply.bytes_sent
        self._telemetry.finished(record, _ROW_OF_NOTHING, 0.0)
        return reply


def _request_id(clock: Clock) -> str:
    return clock.nonce().upper()[-16:]


class _Call(Answers):
    """One request being answered."""

    __slots__ = ("_counted", "_gateway", "caller", "head", "operation")

    head: RequestHead
    caller: Caller

    def __init__(self, gateway: S3Handler, request: Request, reply: Reply, record: RequestRecord) -> None:
        super().__init__(request, reply, record, gateway._store, gateway._host_id)
        self._gateway = gateway
        self.operation: Operation | None = None
        self._counted = False

    # --- the whole

    async def answer(self) -> None:
        """Answer the request, whatever happens."""
        record = self.record
        try:
            await self._serve()
        except FenceError as error:
            await self._let_pages_read()
            self.refuse(error)
        except S3Error as error:
            await self._let_pages_read()
            record.decision, record.reason, record.message = "failed", error.code, error.message
            record.client = record.client or error.elements.get("AWSAccessKeyId", "")
            self.send_error(error)
        except ClientGone as error:
            record.decision, record.reason = "failed", "ClientGone"
            record.message = str(error)
            self._reply.cut()
        except Exception:
            record.decision, record.reason = "failed", "InternalError"
            self._gateway._telemetry.failure("internal-error", request_id=record.request_id)
            self.send_error(S3Error("InternalError", "We encountered an internal error. Please try again."))
        finally:
            if self._body is not None:
                record.bytes_in = self._body.bytes_read

    async def _serve(self) -> None:
        gateway, record = self._gateway, self.record
        request = self._request
        assert request is not None
        if gateway.draining:
            raise TryAgain(Reason.DRAINING, "The gateway is shutting down. Send the request again.", retry_after_s=1)
        if gateway.running > gateway._max_concurrent_requests:
            raise TryAgain(
                Reason.OVERLOADED, "The gateway serves as many requests as it may. Reduce your rate.", retry_after_s=1
            )
        self.head = head = parse_head(request.method, request.target, request.headers, gateway._suffixes)
        record.bucket, record.object = head.bucket, head.key
        self.caller = gateway._clients.authenticate(head, gateway._clock.wall())
        record.client = self.caller.name
        self.operation = operation = recognise(head)
        record.operation = operation.name
        gateway._clients.authorise(self.caller, operation, self._buckets(operation))
        self._take_place()
        if operation.effect is Effect.NEVER:
            raise Refused(
                Reason.OPERATION_NOT_FENCED,
                f"{operation.name} would act past the fence; the gateway does not pass it. {operation.instead}",
            )
        refuse_record(operation, head)
        await refuse_misread(gateway._writes.capabilities, operation, head)
        if operation.effect in (Effect.READ, Effect.CONFIGURE):
            await self._pass(operation)
        elif operation.fences is Fences.BATCH:
            await self._delete_objects(operation)
        else:
            await self._write(operation)

    def _take_place(self) -> None:
        """Count the request as one of its client's. Raises `TryAgain` (Overloaded)."""
        gateway, client = self._gateway, self.caller.client
        most = gateway._max_concurrent_requests_per_client
        if client is not None and client.max_concurrent_requests is not None:
            most = client.max_concurrent_requests
        key = None if client is None else client.credentials.access_key
        running = gateway.running_of.get(key, 0)
        if running >= most:
            raise TryAgain(
                Reason.OVERLOADED,
                f"{self.caller.name} has {running} requests under way, as many as it may. Reduce your rate.",
                retry_after_s=1,
            )
        gateway.running_of[key] = running + 1
        self._counted = True

    def give_place_back(self) -> None:
        if self._counted:
            client = self.caller.client
            self._gateway.running_of[None if client is None else client.credentials.access_key] -= 1

    async def _let_pages_read(self, result: Result | None = None) -> None:
        """Have an answer that is not the store's bear what lets a page of another origin read it."""
        if self.record.bucket is None or "origin" not in self.head.headers:
            return
        if result is None or not any(name == ALLOWED for name, _ in result.headers):
            self.cross_origin = await cross_origin(self._gateway._upstream, self.head)

    def _buckets(self, operation: Operation) -> list[str]:
        buckets = [] if self.head.bucket is None else [self.head.bucket]
        if operation.header == SOURCE:
            buckets.append(copy_source(self.head.headers.get(SOURCE) or "")[0])
        return buckets

    # --- what no fence touches

    async def _pass(self, operation: Operation) -> None:
        """Reads, and settings of buckets: through, streaming the answer."""
        gateway, head = self._gateway, self.head
        body = self._payload(operation)
        data = await body.read() if body is not None else b""
        request = UpstreamRequest(
            head.method,
            head.bucket,
            head.raw_key,
            forwarded_query(head),
            (*forwarded_headers(head), *(body.checksum_headers() if body is not None else ())),
            body.sha256 if body is not None and body.sha256 else (None if data else EMPTY_SHA256),
        )
        if operation.name in LISTS and may_show_record(head.raw_query):
            self._send_whole(operation, await listed(gateway._upstream, request))
            return
        if operation.name == "DeleteBucket":
            timeout_s = gateway._writes.fences.timing.commit_timeout_s
            self._send_whole(
                operation, await delete_bucket(gateway._writes.records, gateway._upstream, request, timeout_s)
            )
            return
        try:
            if operation.effect is Effect.READ:
                response = await gateway._upstream.read(request, data)
            else:
                response = await gateway._upstream.send(request, data, gateway._writes.fences.timing.commit_timeout_s)
        except (UpstreamNotReached, UpstreamLost) as error:
            raise unavailable(str(error)) from error
        try:
            await self._stream_answer(operation, response)
        finally:
            response.close()

    def _send_whole(self, operation: Operation, result: Result) -> None:
        refuse_our_own_fault(result.code)
        self._reply.send(result.status, self.answer_headers(result.headers, operation), result.body)

    async def _stream_answer(self, operation: Operation, response: UpstreamResponse) -> None:
        reply = self._reply
        headers = self.answer_headers(response.headers, operation)
        text = response.header("content-length")
        length = int(text) if text is not None and text.isdecimal() else None
        if self.head.method == "HEAD" or response.status in (204, 304):
            reply.send_head(response.status, headers, length)
            return
        try:
            if length is not None and length <= SMALL_ANSWER_BYTES:
                body = await response.read(SMALL_ANSWER_BYTES)
                if response.status in (400, 403):
                    refuse_our_own_fault(error_code(body))
                reply.send(response.status, headers, body)
                return
            reply.start(response.status, headers, length)
            async for chunk in response.chunks():
                await reply.write(chunk)
            reply.end()
        except UpstreamLost as error:
            if not reply.started:
                raise unavailable(str(error)) from error
            self.record.decision, self.record.reason = "failed", "UpstreamLost"
            reply.cut()

    # --- writes

    async def _write(self, operation: Operation) -> None:
        head = self.head
        assert head.bucket is not None
        assert head.key is not None
        name = await self._gateway._writes.name(head.bucket, head.key)
        mapping = self._gateway._rules.map(head.bucket, name)
        write = self._understood(operation, mapping, head.bucket, name)
        if mapping.rule.mode is Mode.ENFORCE:
            result = await self._enforced(write, self._claimed())
        else:
            refuse_reserved(head.headers)
            if mapping.rule.mode is Mode.OBSERVE:
                await self._observe(write)
            result = await self._gateway._writes.unfenced(write)
            if mapping.rule.mode is Mode.OBSERVE:
                would_refuse = self.record.decision == "would-refuse"
                self._gateway._observed.seen(write, result, would_refuse=would_refuse)
        # To throw an upload away needs no floor, and tells none: the token may long have been overtaken.
        enforced = mapping.rule.mode is Mode.ENFORCE and operation.effect is not Effect.DISCARD
        await self._let_pages_read(result)
        self.send_result(operation, result, write.key if enforced else None, write.token)

    def _understood(self, operation: Operation, mapping: Mapping, bucket: str, object_key: str) -> Write:
        """The write as its head tells it; the key is the rule's until the other sources have spoken."""
        own = key_of_object(bucket, object_key)
        return Write(
            operation=operation,
            head=self.head,
            bucket=bucket,
            object_key=object_key,
            token=NO_TOKEN,
            key=mapping.key or own,
            named=mapping.key is not None,
            rule=mapping.rule,
            ruled=mapping.key is not None,
            body=self._payload(operation) if operation.fences is not Fences.BATCH else None,
            request_id=self.record.request_id,
            sender=self.sender,
        )

    def _claimed(self) -> Claimed:
        client, claim = self.caller.client, self.caller.claim
        signed = None
        if claim is not None and client is not None and client.require_signed_token:
            signed = frozenset(claim.signed_headers)
        said, session = claimed(self.head.headers, signed), self.caller.session
        return said if session is None else bound_claim(said, session)

    def _named(self, write: Write, said: Claimed) -> None:
        """Let the sources agree on the key (R9). Raises `Malformed` (KeyMismatch)."""
        own = key_of_object(write.bucket, write.object_key)
        ruled, bound = write.key if write.ruled else None, self.caller.session is not None
        write.key, write.named = agree(
            own, rule=ruled, credentials=said.key if bound else None, header=None if bound else said.key
        )
        write.token = said.token or NO_TOKEN

    async def _enforced(self, write: Write, said: Claimed) -> Result:
        gateway, operation = self._gateway, write.operation
        upload = None
        if operation.fences is Fences.UPLOAD:
            upload = await self._bound(write, said)
        if upload is None:
            self._named(write, said)
        self.record.fence_key, self.record.token = write.key, write.token or None
        gateway._clients.authorise_key(self.caller, write.key, write.token)
        self._require_token(write)
        if upload is None and write.token == NO_TOKEN and write.rule.without_token is WithoutToken.ALLOW:
            return await self._gateway._writes.unfenced(write)
        self.record.decision = "admitted"
        if upload is not None:
            if operation.effect is Effect.DISCARD:
                return await gateway._uploads.abort(write, upload)
            if operation.effect is Effect.STAGE:
                return await gateway._uploads.part(write)
            return await gateway._uploads.complete(write, upload)
        if operation.effect is Effect.STAGE:
            return await gateway._uploads.create(write)
        return await gateway._writes.fenced(write)

    async def _bound(self, write: Write, said: Claimed) -> Upload | None:
        """The upload's binding; None for one that `allow` has let begin outside the gate, which has none."""
        try:
            return await self._gateway._uploads.bound(write, said)
        except S3Error:
            if said.token is not None or write.rule.without_token is not WithoutToken.ALLOW:
                raise
            return None

    def _require_token(self, write: Write) -> None:
        if write.token == NO_TOKEN and write.rule.without_token is WithoutToken.REQUIRE:
            raise Refused(
                Reason.TOKEN_REQUIRED,
                f"Writes of {write.key!r} need a fencing token. Send the token of your lease in X-Fencing-Token.",
                key=write.key,
            )

    # --- mode observe

    async def _observe(self, write: Write) -> None:
        """What enforcement would have said, on a shadow floor; nothing is refused, whatever fails."""
        gateway = self._gateway
        try:
            if not self._named_as_enforced(write, self._claimed()):
                return
            self.record.fence_key, self.record.token = write.key, write.token or None
            gateway._clients.authorise_key(self.caller, write.key, write.token)
            self._require_token(write)
            if write.operation.effect is Effect.DISCARD:
                return
            shadow_floor = (await gateway._store.fence(write.key)).shadow_floor
            write.rule.limits.refuse_beyond(write.key, write.token, shadow_floor)
            fence = await gateway._store.raise_shadow(write.key, write.token)
            self.record.floor = fence.shadow_floor
            if write.token < fence.shadow_floor:
                reason = Reason.STALE_TOKEN if write.token else Reason.TOKEN_REQUIRED
                message = f"With mode = enforce: token {fence.shadow_floor} holds {write.key!r}."
                raise Refused(reason, message, key=write.key, token=write.token, floor=fence.shadow_floor)
        except FenceError as error:
            self.record.decision, self.record.reason = "would-refuse", error.reason.value
            self.record.message = error.message
            self.remember(EventKind.WOULD_REFUSE, error, write.cause)
        except StoreUnavailable:
            self.record.reason = Reason.STORE_UNAVAILABLE.value

    def _named_as_enforced(self, write: Write, said: Claimed) -> bool:
        """Give `write` the key and token that it would have; False where nobody knows: an upload of before the start.
        Raises `Malformed`."""
        if write.operation.fences is not Fences.UPLOAD:
            self._named(write, said)
        elif upload := self._gateway._observed.of(write):
            take_binding(write, said, upload)
        else:
            return False
        return True

    # --- batches

    async def _delete_objects(self, operation: Operation) -> None:
        gateway, head = self._gateway, self.head
        assert head.bucket is not None
        body = self._payload(operation)
        if body is None:
            raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
        asked, quiet = parse_batch(await body.read())
        mapped = [(one, *await self._mapped(operation, head.bucket, one.key)) for one in asked]
        fenced = {
            mapping.key or key_of_object(head.bucket, name)
            for _, name, mapping in mapped
            if isinstance(mapping, Mapping) and mapping.rule.mode is Mode.ENFORCE
        }
        said = self._claimed() if fenced else NOTHING_CLAIMED
        if said.token is not None and said.key is None:
            self._refuse_scattered(fenced, said.token)
        writes = [
            (
                one,
                mapping
                if isinstance(mapping, FenceError)
                else await self._batch_write(self._understood(operation, mapping, head.bucket, name), said),
            )
            for one, name, mapping in mapped
        ]
        self.record.decision = "admitted" if fenced else "passed"
        self.record.token = said.token
        self.record.fence_key = said.key or (min(fenced) if len(fenced) == 1 else None)
        result = await gateway._batches.delete(
            head, head.bucket, writes, quiet=quiet, on_refusal=self._refused_in_batch
        )
        await self._let_pages_read(result)
        self.send_result(operation, result, self.record.fence_key, said.token or NO_TOKEN)

    async def _mapped(self, operation: Operation, bucket: str, object_key: str) -> tuple[str, Mapping | FenceError]:
        """One object's name and mapping; a key that names no object, or that the rules cannot map, is that object's own
        refusal."""
        writes = self._gateway._writes
        name = await writes.name(bucket, object_key)
        try:
            refuse_record_key(object_key)
            await refuse_misfiled(writes.capabilities, operation, bucket, object_key)
            return name, self._gateway._rules.map(bucket, name)
        except FenceError as error:
            return name, error

    def _refuse_scattered(self, keys: set[FencingKey], token: Token) -> None:
        """A token without a key applies only where all objects map to one key (R7)."""
        if len(keys) > 1:
            one, other = sorted(keys)[:2]
            raise Malformed(
                Reason.KEY_MISMATCH,
                f"The objects of this DeleteObjects belong to several fencing keys ({one!r}, {other!r} …), and a token "
                "holds one job. Send one request for each job.",
                token=token,
                argument=("X-Fencing-Token", str(token)),
            )

    async def _batch_write(self, write: Write, said: Claimed) -> Write | FenceError | None:
        """One object's write; the refusal that its head has earned; None where no fence covers it."""
        if write.rule.mode is Mode.OFF:
            return None
        if write.rule.mode is Mode.OBSERVE:
            await self._observe(write)
            return None
        try:
            self._named(write, said)
            self._gateway._clients.authorise_key(self.caller, write.key, write.token)
            self._require_token(write)
        except FenceError as error:
            return error
        if write.token == NO_TOKEN and write.rule.without_token is WithoutToken.ALLOW:
            return None
        return write

    def _refused_in_batch(self, error: FenceError, one: BatchObject) -> None:
        self.record.decision, self.record.reason = "refused", error.reason.value
        if error.key is not None:
            self.remember(EventKind.REFUSED, error, f"DeleteObjects {self.head.bucket}/{one.key}{self.sender}")

    # --- the body

    def _payload(self, operation: Operation) -> RequestBody | None:
        """The request's body as its head promises it; None where there is none. Raises `S3Error`."""
        head, claim = self.head, self.caller.claim
        if self._body is not None:
            return self._body
        has_body = "content-length" in head.headers or "transfer-encoding" in head.headers
        if not has_body and operation.body is Body.DOCUMENT:
            return None
        of_object = operation.name == "CompleteMultipartUpload"
        spec = payload_spec(head.headers, claim.payload if claim else UNSIGNED_PAYLOAD, object_checksums=of_object)
        if operation.body is Body.DOCUMENT and spec.length > operation.max_body_bytes:
            raise S3Error(
                "MaxMessageLengthExceeded",
                "Your request was too big.",
                MaxMessageLengthBytes=str(operation.max_body_bytes),
            )
        assert self._request is not None
        self._body = RequestBody(
            self._request,
            spec,
            self._chunk_signer() if spec.mode.signed_chunks else None,
            self._gateway._progress,
            document=operation.body is Body.DOCUMENT,
        )
        return self._body

    def _chunk_signer(self) -> ChunkSigner:
        claim = self.caller.claim
        assert claim is not None
        return ChunkSigner(self.caller.signing_key, claim.amz_date, claim.scope, claim.signature)
