"""The part of the control API that gives out S3 credentials, each bound to the lease that it is given for."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from gateway.core.keys import FencingKey, Token
from gateway.server.control.access import ApiToken
from gateway.server.control.calls import Ask, Call
from gateway.server.control.documents import Given, KeyGiven, MomentShown, Shown, TokenGiven, TokenShown
from gateway.server.control.problems import Problem
from gateway.server.sessions import Issued, Issuer
from gateway.service.leases import Leases


class CredentialsAsked(Given):
    """The token of the lease."""

    token: TokenGiven


class CredentialsShown(Shown):
    """AWS credentials that are bound to a lease: what is written with them is written under its key and token."""

    access_key_id: str
    secret_access_key: Annotated[str, Field(repr=False)]
    session_token: Annotated[str, Field(repr=False)]
    expires_at: Annotated[MomentShown, Field(description="From then on they are good only while the lease is held.")]
    endpoint_url: str | None = Field(description="Where workers reach the S3 listener, if that is known.")

    @classmethod
    def of(cls, issued: Issued) -> Self:
        pair = issued.credentials
        assert pair.session_token is not None
        return cls(
            access_key_id=pair.access_key,
            secret_access_key=pair.secret_key,
            session_token=pair.session_token,
            expires_at=issued.expires_at,
            endpoint_url=issued.endpoint_url,
        )


class LeaseCredentialsShown(Shown):
    """A lease, and credentials for it."""

    key: str
    token: TokenShown
    credentials: CredentialsShown


class CredentialCalls:
    """Its handlers."""

    def __init__(self, issuer: Issuer, leases: Leases) -> None:
        self._issuer = issuer
        self._leases = leases

    def calls(self) -> list[Call]:
        """What they are."""
        return [
            Call(
                "POST",
                "/v1/leases/{key}/credentials",
                self.give_credentials,
                refuses=("TokenNotIssued", "lost", "no-client"),
            )
        ]

    async def give_credentials(self, ask: Ask, key: KeyGiven, body: CredentialsAsked) -> LeaseCredentialsShown:
        """S3 credentials for a lease that is still held; never takes or renews one."""
        await self._leases.require_held(key, body.token)
        found = credentials_of(self._issuer, ask.caller, key, body.token)
        if found is None:
            raise Problem(
                409,
                "no-client",
                "there are several S3 clients, and nothing says whose rights these credentials have: name one as "
                "`client` of this [[api_token]]",
                key=key,
            )
        return LeaseCredentialsShown(key=key, token=body.token, credentials=found)


def credentials_of(issuer: Issuer, caller: ApiToken | None, key: FencingKey, token: Token) -> CredentialsShown | None:
    """Credentials for a lease that `caller` holds; None where nothing says whose rights they have."""
    issued = issuer.issue(None if caller is None else caller.client, key, token)
    return None if issued is None else CredentialsShown.of(issued)
