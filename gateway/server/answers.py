"""How one S3 request is answered: a result, a refusal of the fence, or an error, in the wire's form."""

from __future__ import annotations

from contextlib import suppress

from gateway.clock import Clock
from gateway.core.errors import FenceError, Reason, TryAgain
from gateway.s3.errors import S3Error, of_fence, to_xml
from gateway.s3.fencing import key_in_header
from gateway.s3.forward import returned_headers
from gateway.s3.operations import Level, Operation
from gateway.server.body import RequestBody
from gateway.server.http import ClientGone, Reply, Request, http_date
from gateway.service.refusals import refuse_our_own_fault
from gateway.service.values import Result
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.values import Event, EventKind
from gateway.telemetry import RequestRecord


class Answers:
    """The answering half of one request."""

    __slots__ = ("_clock", "_host_id", "_store", "body", "cross_origin", "record", "reply", "request")

    def __init__(
        self, request: Request | None, reply: Reply, record: RequestRecord, store: Store, clock: Clock, host_id: str
    ) -> None:
        self.request = request
        self.reply = reply
        self.body: RequestBody | None = None
        self._store = store
        self._clock = clock
        self._host_id = host_id
        self.record = record
        self.cross_origin: list[tuple[str, str]] = []
        """What lets a page of another origin read the answer, if the store's own answer does not say."""

    def send_result(self, operation: Operation, result: Result, key: str | None, token: int) -> None:
        """Answer a write with the upstream's answer; a fenced one that succeeded says under which token."""
        refuse_our_own_fault(result.code)
        headers = self.answer_headers(result.headers, operation) + self.cross_origin
        if key is not None and token:
            self.record.floor = token
            if result.status < 300:
                headers += [
                    ("X-Fencing-Token", str(token)),
                    ("X-Fencing-Key", key_in_header(key)),
                    ("X-Fencing-Floor", str(token)),
                ]
        if self.record.reason is None:  # else the fence has, or would have, refused it, or part of it
            self.record.reason = result.code
        self._leave_unread()
        self.reply.send(result.status, headers, result.body)

    def answer_headers(self, headers: list[tuple[str, str]], operation: Operation) -> list[tuple[str, str]]:
        """The upstream's fields as the client sees them, under this gateway's request id."""
        named = dict(headers)
        self.record.upstream_request_id = named.get("x-amz-request-id")
        result = returned_headers(headers, of_object=operation.level is Level.OBJECT)
        result += (("x-amz-request-id", self.record.request_id), ("x-amz-id-2", self._host_id))
        if "date" not in named:
            result.append(("date", self._date))
        return result

    def refuse(self, error: FenceError) -> None:
        """Answer a refusal of the fence, and add it to the key's history."""
        record = self.record
        reason = str(error.reason)
        record.decision, record.reason, record.message = "refused", reason, error.message
        record.fence_key = error.key or record.fence_key
        record.token = error.token or record.token
        record.floor = error.floor if error.floor is not None else record.floor
        if record.fence_key is not None and error.reason is not Reason.STORE_UNAVAILABLE:
            cause = f"{record.operation} {record.bucket}/{record.object}{self.sender}"
            self.remember(EventKind.REFUSED, error, cause)
        headers = [("X-Fencing-Reason", reason), ("X-Fencing-Outcome", str(error.outcome))]
        if error.floor is not None:
            headers.append(("X-Fencing-Floor", str(error.floor)))
        retry_after_s = error.retry_after_s
        if isinstance(error, TryAgain):
            retry_after_s = retry_after_s or 1.0
            headers.append(("Retry-After", str(max(1, round(retry_after_s)))))
            headers.append(("x-amz-retry-after", str(max(1, round(retry_after_s * 1000)))))
        self.send_error(of_fence(error), headers)

    def remember(self, kind: EventKind, error: FenceError, cause: str) -> None:
        """Add to the key's history. A store that cannot changes no answer."""
        record = self.record
        key, token = error.key or record.fence_key or "", error.token or record.token or 0
        detail = f"{error.reason}: {cause}"
        # What is to be sent again had been admitted, but for what came to the wrong gateway: its token is the floor.
        admitted = isinstance(error, TryAgain) and error.reason is not Reason.SUPERSEDED
        floor = error.floor or (token if admitted else 0)
        with suppress(StoreUnavailable):
            self._store.record(Event(key, kind, token, floor, detail, record.request_id))

    @property
    def sender(self) -> str:
        """Who sent the request, as a key's history names him."""
        return f", {self.record.client} from {self.record.address}"

    def send_error(self, error: S3Error, headers: list[tuple[str, str]] | None = None) -> None:
        """Answer an error in S3's form; drop the connection if an answer has already begun."""
        record, reply = self.record, self.reply
        if reply.started:
            reply.cut()
            return
        resource = "/" + "/".join(part for part in (record.bucket, record.object) if part is not None)
        body = to_xml(error, resource=resource, request_id=record.request_id, host_id=self._host_id)
        fields = [
            ("x-amz-request-id", record.request_id),
            ("x-amz-id-2", self._host_id),
            ("date", self._date),
            ("content-type", "application/xml"),
            *self.cross_origin,
            *(headers or []),
        ]
        unread = self._leave_unread()
        try:
            reply.send(error.status, fields, body)
        except ClientGone:
            return
        if unread and self.request and self.request.expects_continue and not (self.body and self.body.wanted):
            reply.lingers = False

    @property
    def _date(self) -> str:
        return http_date(int(self._clock.wall()))

    def _leave_unread(self) -> bool:
        """Whether a body has not been read to its end; then this answer is the connection's last."""
        request = self.request
        if request is None:
            return False
        if not request.has_body:
            if request.expects_continue and not (self.body and self.body.wanted):
                self.reply.keep_alive = False  # as `RequestBody` tells of AWS's clients
            return False
        unread = self.body is None or not self.body.wanted or not request.body.ended
        if unread:
            self.reply.keep_alive = False
        return unread
