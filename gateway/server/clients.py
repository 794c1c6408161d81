"""Who sends a request, and what he may do: the configured S3 clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.core.errors import Reason, Refused
from gateway.core.keys import FencingKey
from gateway.s3.claim import Claim, parse_claim
from gateway.s3.errors import S3Error
from gateway.s3.operations import Effect, Level, Operation
from gateway.s3.request import RequestHead
from gateway.s3.sigv4 import Credentials, verify


@dataclass(frozen=True, slots=True)
class Client:
    """One configured client. The patterns are shell patterns."""

    credentials: Credentials
    buckets: tuple[str, ...] = ("*",)
    operations: tuple[str, ...] = ("*",)
    keys: tuple[str, ...] = ("*",)
    require_signed_token: bool = True
    max_concurrent_requests: int | None = None
    """None: as many as any client may."""


@dataclass(slots=True)
class Caller:
    """Who sent a request, proved by its signature; an anonymous one has neither client nor claim."""

    client: Client | None = None
    claim: Claim | None = None
    signing_key: bytes = b""

    @property
    def name(self) -> str:
        return "anonymous" if self.client is None else self.client.credentials.access_key


ANONYMOUS = Caller()


class Clients:
    """The clients by access key."""

    def __init__(self, clients: Iterable[Client], *, anonymous_read: bool = False) -> None:
        self._clients = {client.credentials.access_key: client for client in clients}
        self._anonymous_read = anonymous_read

    def authenticate(self, head: RequestHead, now: float) -> Caller:
        """Verify the signature. Raises S3's own errors.

        A preflight is nobody's: a browser sends it without credentials (Fetch Standard, "CORS-preflight fetch"), though
        to the URL that was presigned for the request to come."""
        claim = parse_claim(head) if head.method != "OPTIONS" else None
        if claim is None:
            return ANONYMOUS
        client = self._clients.get(claim.access_key)
        if client is None:
            raise S3Error(
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
                AWSAccessKeyId=claim.access_key,
            )
        if claim.session_token is not None:
            raise S3Error("InvalidToken", "The provided token is malformed or otherwise invalid.")
        return Caller(client, claim, verify(head, claim, client.credentials, now))

    def authorise(self, caller: Caller, operation: Operation, buckets: Iterable[str]) -> None:
        """Whether the caller may do this in these buckets. Raises `S3Error` (AccessDenied)."""
        client = caller.client
        if client is None:
            if operation.method == "OPTIONS" or (self._anonymous_read and operation.effect is Effect.READ):
                return
            if operation.name == "PostObject":
                return  # its credentials are in its body, which is never read
            raise S3Error("AccessDenied", "Access Denied. The gateway serves only requests that are signed.")
        if not _allowed(client.operations, operation.name):
            raise S3Error("AccessDenied", f"Access Denied. This client may not call {operation.name}.")
        if operation.level is Level.SERVICE and "*" not in client.buckets:
            raise S3Error("AccessDenied", "Access Denied. This client may not use all buckets, and so not list them.")
        for bucket in buckets:
            if not _allowed(client.buckets, bucket):
                raise S3Error("AccessDenied", f"Access Denied. This client may not use the bucket {bucket}.")

    def authorise_key(self, caller: Caller, key: FencingKey, token: int) -> None:
        """Whether the caller may write under this fence key. Raises `Refused` (KeyDenied)."""
        if caller.client is not None and not _allowed(caller.client.keys, key):
            raise Refused(
                Reason.KEY_DENIED,
                f"This client may not write under the fencing key {key!r}.",
                key=key,
                token=token or None,
            )


def _allowed(patterns: tuple[str, ...], name: str) -> bool:
    return "*" in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
