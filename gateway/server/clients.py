"""Who sends a request, and what he may do: the configured S3 clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.core.errors import Reason, Refused
from gateway.core.keys import FencingKey, Token
from gateway.s3.claim import Claim, parse_claim
from gateway.s3.errors import S3Error
from gateway.s3.operations import Effect, Level, Operation
from gateway.s3.request import RequestHead
from gateway.s3.session import ACCESS_KEY_PREFIX, Session
from gateway.s3.sigv4 import Credentials, verify
from gateway.server.sessions import Sessions


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
    session: Session | None = None
    """What his credentials are bound to, if they are a lease's; the client is the one that they were issued for."""
    past_end: bool = False
    """The credentials have had their time: they are good only while their lease lasts (`Clients.require_lease`)."""

    @property
    def name(self) -> str:
        return "anonymous" if self.client is None else self.client.credentials.access_key


ANONYMOUS = Caller()
Lasts = Callable[[FencingKey, Token], Awaitable[bool]]
"""`Leases.lasts`."""


async def none_lasts(key: FencingKey, token: Token) -> bool:
    """Where there are no leases."""
    return False


class Clients:
    """The clients by access key, and the bearers of what has been issued in their name."""

    def __init__(
        self,
        clients: Iterable[Client],
        sessions: Sessions | None = None,
        *,
        lasts: Lasts = none_lasts,
        anonymous_read: bool = False,
    ) -> None:
        self._clients = {client.credentials.access_key: client for client in clients}
        self._sessions = sessions or Sessions()
        self._lasts = lasts
        self._anonymous_read = anonymous_read

    def authenticate(self, head: RequestHead, now: float) -> Caller:
        """Verify the signature. Raises S3's own errors.

        A preflight is nobody's: a browser sends it without credentials (Fetch Standard, "CORS-preflight fetch"), though
        to the URL that was presigned for the request to come."""
        claim = parse_claim(head) if head.method != "OPTIONS" else None
        if claim is None:
            return ANONYMOUS
        try:
            return self._proved(head, claim, now)
        except S3Error as error:
            error.claimant = claim.access_key
            raise

    def _proved(self, head: RequestHead, claim: Claim, now: float) -> Caller:
        """Who signs. Raises `S3Error`."""
        if claim.session_token is not None:
            return self._bearer(head, claim, claim.session_token, now)
        client = self._clients.get(claim.access_key)
        if client is None:
            why = "The AWS Access Key Id you provided does not exist in our records."
            if claim.access_key.startswith(ACCESS_KEY_PREFIX):
                why += " It belongs to a session token (AWS_SESSION_TOKEN), which the request must bear, too."
            raise S3Error("InvalidAccessKeyId", why, AWSAccessKeyId=claim.access_key)
        return Caller(client, claim, verify(head, claim, client.credentials, now))

    def _bearer(self, head: RequestHead, claim: Claim, session_token: str, now: float) -> Caller:
        """Who signs with a lease's credentials. Raises `S3Error`: InvalidToken, and as `verify` does."""
        session, credentials = self._sessions.open(claim.access_key, session_token)
        client = self._clients.get(session.client)
        if client is None:
            raise S3Error(
                "InvalidAccessKeyId",
                "The client that these credentials were issued for is no longer configured.",
                AWSAccessKeyId=claim.access_key,
            )
        return Caller(client, claim, verify(head, claim, credentials, now), session, now >= session.expires_at)

    async def require_lease(self, caller: Caller) -> None:
        """Whether the lease lasts that the caller's credentials are bound to; it is asked of those past their end. So
        they serve a program that works for longer than their time, and has no way to get others. Raises `S3Error`
        (ExpiredToken: SDKs that can ask for new ones then do), `TryAgain`."""
        assert caller.claim is not None
        assert caller.session is not None
        key, token = caller.session.key, caller.session.token
        if not await self._lasts(key, token):
            raise S3Error(
                "ExpiredToken",
                f"The provided token has expired, and the lease that it was given for does not last: token {token} of "
                f"{key!r}.",
                AWSAccessKeyId=caller.claim.access_key,
            )

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
        if "*" not in client.buckets and operation.level is Level.SERVICE:
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
