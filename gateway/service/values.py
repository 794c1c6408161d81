"""What travels through the service: a write as the server has understood it, its body, and the answer to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from gateway.core.keys import NO_TOKEN, FencingKey, Rule, Token, WithoutToken
from gateway.core.write import Answer
from gateway.s3.operations import Body as KindOfBody
from gateway.s3.operations import Operation
from gateway.s3.request import RequestHead


class Body(Protocol):
    """A request's body on its way in. Reading it first tells the client to go on (`100 Continue`)."""

    @property
    def length(self) -> int:
        """Payload bytes."""
        ...

    @property
    def sha256(self) -> str | None:
        """The payload's hex digest, if the head names it."""
        ...

    async def read(self) -> bytes:
        """The whole payload, verified. Raises `S3Error`."""
        ...

    def pieces(self) -> AsyncIterator[list[bytes]]:
        """The payload as it arrives; ends only when all that was promised about it is verified. Raises `S3Error`."""
        ...

    @property
    def trailer(self) -> str | None:
        """The algorithm of the checksum that trails the payload; None if none does."""
        ...

    def checksum_headers(self) -> tuple[tuple[str, str], ...]:
        """A trailing checksum that has been verified, as the header that keeps it on the object."""
        ...


@dataclass(slots=True)
class Write:
    """One write as the server has understood it."""

    operation: Operation
    head: RequestHead
    bucket: str
    object_key: str
    token: Token
    key: FencingKey
    named: bool
    """Some source named the key; else it is the object's own."""
    rule: Rule
    ruled: bool
    """The rule named the key."""
    body: Body | None
    request_id: str
    sender: str = ""
    """Who sent it, for the key's history."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Headers that go upstream in place of the client's."""
    dropped: frozenset[str] = frozenset()
    """Names of the client's headers that do not go upstream."""

    def streams(self, small_body_bytes: int) -> bool:
        """Whether its body goes through as it comes. What is small is read whole, and so is every document, since what
        it says may matter to the fence."""
        body = self.body
        return body is not None and body.length > small_body_bytes and self.operation.body is KindOfBody.PAYLOAD

    @property
    def past_the_gate(self) -> bool:
        """It bears no token, and its rule lets such writes past the fence (`allow`, R11)."""
        return self.token == NO_TOKEN and self.rule.without_token is WithoutToken.ALLOW

    @property
    def cause(self) -> str:
        """For the key's history."""
        return f"{self.operation.name} {self.bucket}/{self.object_key}{self.sender}"


@dataclass(slots=True)
class Result:
    """An answer to a write: the upstream's, or one that the gateway vouches for."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    answer: Answer = Answer.APPLIED
    code: str | None = None
    """The S3 error code in the body."""

    def header(self, name: str) -> str | None:
        return dict(reversed(self.headers)).get(name)
