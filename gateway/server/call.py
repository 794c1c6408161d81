"""One S3 request that is being answered: who sends it, what it is, what it says to the fence, and its body."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import punctuation
from urllib.parse import quote

from gateway.clock import Clock
from gateway.core.errors import Reason, Refused
from gateway.core.keys import NO_TOKEN, Mapping, Ruleset, WithoutToken, agree, key_of_object
from gateway.s3.claim import UNSIGNED_PAYLOAD
from gateway.s3.errors import S3Error
from gateway.s3.fencing import Claimed, claimed
from gateway.s3.operations import Body, Fences, Operation
from gateway.s3.payload import payload_spec
from gateway.s3.request import RequestHead
from gateway.s3.session import bound_claim
from gateway.s3.sigv4 import ChunkSigner
from gateway.server.answers import Answers
from gateway.server.body import Progress, RequestBody
from gateway.server.clients import Caller, Clients
from gateway.server.cross_origin import ALLOWED, cross_origin
from gateway.server.http import Reply, Request
from gateway.service.batches import Batches
from gateway.service.copies import SOURCE, copy_source
from gateway.service.observed import Observed
from gateway.service.uploads import Uploads
from gateway.service.values import Result, Write
from gateway.service.writes import Writes
from gateway.telemetry import RequestRecord, Telemetry


@dataclass(slots=True)
class Services:
    """What requests are answered with."""

    clients: Clients
    rules: Ruleset
    writes: Writes
    uploads: Uploads
    batches: Batches
    progress: Progress
    telemetry: Telemetry
    clock: Clock
    host_id: str
    observed: Observed = field(default_factory=Observed)


class Call(Answers):
    """One request being answered."""

    __slots__ = ("caller", "head", "operation", "services")

    head: RequestHead
    caller: Caller

    def __init__(self, services: Services, request: Request, reply: Reply, record: RequestRecord) -> None:
        super().__init__(request, reply, record, services.writes.fences.store, services.clock, services.host_id)
        self.services = services
        self.operation: Operation | None = None

    def understood(self, operation: Operation, mapping: Mapping, bucket: str, object_key: str) -> Write:
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
            body=self.payload(operation) if operation.fences is not Fences.BATCH else None,
            request_id=self.record.request_id,
            sender=self.sender,
        )

    def said(self) -> Claimed:
        """What the request says to the fence: its head, and the lease that its credentials are bound to. Raises
        `Malformed`."""
        client, claim = self.caller.client, self.caller.claim
        signed = None
        if claim is not None and client is not None and client.require_signed_token:
            signed = frozenset(claim.signed_headers)
        said, session = claimed(self.head.headers, signed), self.caller.session
        return said if session is None else bound_claim(said, session)

    def name_key(self, write: Write, said: Claimed) -> None:
        """Let the sources agree on the key (R9). Raises `Malformed` (KeyMismatch)."""
        own = key_of_object(write.bucket, write.object_key)
        ruled = write.key if write.ruled else None
        if self.caller.session is None:
            write.key, write.named = agree(own, rule=ruled, header=said.key)
        else:
            write.key, write.named = agree(own, rule=ruled, credentials=said.key)
        write.token = said.token or NO_TOKEN

    def require_token(self, write: Write) -> None:
        """Raises `Refused` (TokenRequired) where the rule wants a token and there is none."""
        if write.token == NO_TOKEN and write.rule.without_token is WithoutToken.REQUIRE:
            raise Refused(
                Reason.TOKEN_REQUIRED,
                f"Writes of {write.key!r} need a fencing token. Send the token of your lease in X-Fencing-Token.",
                key=write.key,
            )

    async def let_pages_read(self, result: Result | None = None) -> None:
        """Have an answer that is not the store's bear what lets a page of another origin read it."""
        if self.record.bucket is None or "origin" not in self.head.headers:
            return
        if result is None or not any(name == ALLOWED for name, _ in result.headers):
            self.cross_origin = await cross_origin(self.services.writes.upstream, self.head)

    @property
    def location(self) -> str:
        """The object's address, as the client has named it; a proxy that ends TLS says so in X-Forwarded-Proto."""
        assert self.request is not None
        headers = self.head.headers
        scheme = "https" if headers.get("x-forwarded-proto") == "https" else self.request.carrier.scheme
        origin = f"{scheme}://{headers.get('host')}" if "host" in headers else ""
        return origin + quote(self.head.raw_path, safe=punctuation, encoding="latin-1")

    def buckets(self, operation: Operation) -> list[str]:
        """The buckets that the request touches. Raises `S3Error` for a copy's bad source."""
        buckets = [] if self.head.bucket is None else [self.head.bucket]
        if operation.header == SOURCE:
            buckets.append(copy_source(self.head.headers.get(SOURCE) or "")[0])
        return buckets

    def payload(self, operation: Operation) -> RequestBody | None:
        """The request's body as its head promises it; None where there is none. Raises `S3Error`."""
        head, claim = self.head, self.caller.claim
        if self.body is not None:
            return self.body
        document = operation.body is Body.DOCUMENT
        has_body = "content-length" in head.headers or "transfer-encoding" in head.headers
        if not has_body and document:
            return None
        of_object = operation.name == "CompleteMultipartUpload"
        spec = payload_spec(head.headers, claim.payload if claim else UNSIGNED_PAYLOAD, object_checksums=of_object)
        if document and spec.length > operation.max_body_bytes:
            raise S3Error(
                "MaxMessageLengthExceeded",
                "Your request was too big.",
                MaxMessageLengthBytes=str(operation.max_body_bytes),
            )
        assert self.request is not None
        self.body = RequestBody(
            self.request,
            spec,
            self._chunk_signer() if spec.mode.signed_chunks else None,
            self.services.progress,
            document=document,
        )
        return self.body

    def _chunk_signer(self) -> ChunkSigner:
        claim = self.caller.claim
        assert claim is not None
        return ChunkSigner(self.caller.signing_key, claim.amz_date, claim.scope, claim.signature)
