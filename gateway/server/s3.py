"""One S3 request from head to answer, in the order of R1: signature, operation, authorisation, key, length.

Nothing of a body is read, and no `100 Continue` sent, before the service has admitted the write.
"""

from __future__ import annotations

import asyncio

from gateway.clock import Clock
from gateway.core.errors import FenceError, Reason, Refused, TryAgain
from gateway.s3.errors import S3Error
from gateway.s3.operations import Effect, Fences, Operation
from gateway.s3.recognise import recognise
from gateway.s3.request import parse_head
from gateway.server.answers import Answers
from gateway.server.batching import delete_objects
from gateway.server.call import Call, Services
from gateway.server.http import Carrier, ClientGone, Reply, Request
from gateway.server.passing import pass_through
from gateway.server.writing import answer_write
from gateway.service.buckets import refuse_record
from gateway.service.misreadings import refuse_misread
from gateway.telemetry import RequestRecord

_ROW_OF_NOTHING = "Unknown"
_NOT_FENCED = (Effect.READ, Effect.CONFIGURE)


class S3Handler:
    """Answers S3 requests."""

    def __init__(
        self,
        services: Services,
        *,
        max_concurrent_requests: int,
        max_concurrent_requests_per_client: int,
        virtual_host_suffixes: tuple[str, ...] = (),
    ) -> None:
        self._services = services
        self._max_concurrent_requests = max_concurrent_requests
        self._max_concurrent_requests_per_client = max_concurrent_requests_per_client
        self._suffixes = virtual_host_suffixes
        self.running = 0
        self.running_of: dict[str | None, int] = {}
        """By the access key that has been proved; None: of all that sign nothing."""
        services.telemetry.running.set_function(lambda: self.running)
        self.draining = False

    async def handle(self, request: Request) -> Reply:
        """Answer one request, log and count it. Never raises but when its task is cancelled."""
        clock = self._services.clock
        started = clock.monotonic()
        record = RequestRecord(_request_id(clock), address=request.carrier.address, method=request.method)
        reply = Reply(request.carrier, request)
        call = Call(self._services, request, reply, record)
        self.running += 1
        try:
            await self._answer(call)
        except asyncio.CancelledError:
            record.decision, record.reason = "failed", "Cut"
            record.message = "the gateway was stopped before the request had been answered"
            reply.cut()
            raise
        finally:
            self.running -= 1
            record.status = reply.status
            record.bytes_out = reply.bytes_sent
            effect = call.operation.effect.value if call.operation else _ROW_OF_NOTHING
            self._services.telemetry.finished(record, effect, clock.monotonic() - started)
        return reply

    def answer_fault(self, carrier: Carrier, error: S3Error | TryAgain) -> Reply:
        """Answer what never became a request."""
        services, reply = self._services, Reply(carrier, None)
        record = RequestRecord(_request_id(services.clock), address=carrier.address, decision="failed")
        answers = Answers(None, reply, record, services.writes.fences.store, services.clock, services.host_id)
        if isinstance(error, TryAgain):
            answers.refuse(error)
        else:
            record.reason, record.message = error.code, error.message
            answers.send_error(error)
        record.status, record.bytes_out = reply.status, reply.bytes_sent
        services.telemetry.finished(record, _ROW_OF_NOTHING, 0.0)
        return reply

    async def _answer(self, call: Call) -> None:
        """Answer the request, whatever happens."""
        record = call.record
        try:
            await self._serve(call)
        except FenceError as error:
            await call.let_pages_read()
            call.refuse(error)
        except S3Error as error:
            await call.let_pages_read()
            record.decision, record.reason, record.message = "failed", error.code, error.message
            record.client = record.client or error.claimant
            call.send_error(error)
        except ClientGone as error:
            record.decision, record.reason = "failed", "ClientGone"
            record.message = str(error)
            call.reply.cut()
        except Exception:
            record.decision, record.reason = "failed", "InternalError"
            self._services.telemetry.failure("internal-error", request_id=record.request_id)
            call.send_error(S3Error("InternalError", "We encountered an internal error. Please try again."))
        finally:
            if call.body is not None:
                record.bytes_in = call.body.bytes_read
                record.body_wait_s = round(call.body.waited_s, 6)

    async def _serve(self, call: Call) -> None:
        services, record, request = self._services, call.record, call.request
        assert request is not None
        if self.draining:
            raise TryAgain(Reason.DRAINING, "The gateway is shutting down. Send the request again.", retry_after_s=1)
        if self.running > self._max_concurrent_requests:
            raise TryAgain(
                Reason.OVERLOADED, "The gateway serves as many requests as it may. Reduce your rate.", retry_after_s=1
            )
        call.head = head = parse_head(request.method, request.target, request.headers, self._suffixes)
        record.bucket, record.object = head.bucket, head.key
        call.caller = services.clients.authenticate(head, services.clock.wall())
        record.client = call.caller.name
        if call.caller.past_end:
            await services.clients.require_lease(call.caller)
        call.operation = operation = recognise(head)
        record.operation = operation.name
        services.clients.authorise(call.caller, operation, call.buckets(operation))
        place = self._take_place(call)
        try:
            await self._route(call, operation)
        finally:
            self.running_of[place] -= 1

    async def _route(self, call: Call, operation: Operation) -> None:
        """To where its kind of operation is answered. Raises `FenceError`, `S3Error`."""
        if operation.effect is Effect.NEVER:
            raise Refused(
                Reason.OPERATION_NOT_FENCED,
                f"{operation.name} would act past the fence; the gateway does not pass it. {operation.instead}",
            )
        refuse_record(operation, call.head)
        writes = self._services.writes
        await refuse_misread(writes.upstream, writes.capabilities, operation, call.head)
        if operation.effect in _NOT_FENCED:
            await pass_through(call, operation)
        elif operation.fences is Fences.BATCH:
            await delete_objects(call, operation)
        else:
            await answer_write(call, operation)

    def _take_place(self, call: Call) -> str | None:
        """Count the request as one of its client's; answers whose it is. Raises `TryAgain` (Overloaded)."""
        client, most = call.caller.client, self._max_concurrent_requests_per_client
        if client is not None and client.max_concurrent_requests is not None:
            most = client.max_concurrent_requests
        key = None if client is None else client.credentials.access_key
        running = self.running_of.get(key, 0)
        if running >= most:
            raise TryAgain(
                Reason.OVERLOADED,
                f"{call.caller.name} has {running} requests under way, as many as it may. Reduce your rate.",
                retry_after_s=1,
            )
        self.running_of[key] = running + 1
        return key


def _request_id(clock: Clock) -> str:
    return clock.nonce().upper()[-16:]
