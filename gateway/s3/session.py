"""Session tokens: temporary credentials that are bound to a lease, sealed so that no table of them has to be kept.

A token holds the fence key and the token of its lease, the client whose rights its bearer has, and its end. It is

    version (1 byte) | id of the sealing key (4) | AES-SIV (RFC 5297) of the contents, 16 bytes longer than they

in the URL-safe alphabet of base64 (RFC 4648, 5), without padding. All that stands before the ciphertext is
authenticated with it. So is the access key, which is unlike any other and serves as the nonce too; AES-SIV stays safe
if that should ever fail. The secret key is a MAC over both, so that who holds the sealing key can work it out, and
nobody else.

Pure: time and chance are arguments.
"""

from __future__ import annotations

import hmac
import struct
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import FencingKey, Token
from gateway.s3.errors import S3Error
from gateway.s3.fencing import Claimed
from gateway.s3.sigv4 import Credentials

if TYPE_CHECKING:
    from gateway.s3.sealing import Cipher

ACCESS_KEY_PREFIX = "FGLS"
"""What every access key begins with that is bound to a lease; 16 characters follow, as S3 clients expect."""
SEALING_KEY_BYTES = 32
_VERSION = b"\x01"
_ID_BYTES = 4
_INFO = b"fencing-gateway session token 1"
_CONTENTS = struct.Struct(">QQB")


@dataclass(frozen=True, slots=True)
class Session:
    """What a session token holds."""

    key: FencingKey
    token: Token
    client: str
    """The access key of the client whose rights its bearer has; printable ASCII, at most 128 characters."""
    expires_at: int
    """Seconds since the epoch; from then on they are good only while the lease lasts."""


class SessionKeys:
    """The keys that session tokens are sealed with, `SEALING_KEY_BYTES` each: every one opens, the last one seals."""

    def __init__(self, sealing_keys: Sequence[bytes]) -> None:
        """Raises `ValueError` where there is none, or one of another length."""
        if not sealing_keys or any(len(key) != SEALING_KEY_BYTES for key in sealing_keys):
            raise ValueError(f"there must be a sealing key, and each must have {SEALING_KEY_BYTES} bytes")
        derived = [_SealingKey(key) for key in sealing_keys]
        self._by_id = {key.id: key for key in derived}
        self._sealing = derived[-1]
        self.ids = [key.id.hex() for key in derived]
        """The keys' names, which tell nothing of them, in their order; the last one seals."""

    def issue(self, session: Session, nonce: str) -> Credentials:
        """Credentials that are bound to a lease. `nonce` must be one that is used for nothing else."""
        access_key = ACCESS_KEY_PREFIX + b32encode(sha256(nonce.encode()).digest()[:10]).decode()
        client = session.client.encode()
        contents = _CONTENTS.pack(session.token, session.expires_at, len(client)) + client + session.key.encode()
        return self._sealing.credentials(access_key, self._sealing.seal(access_key, contents))

    def open(self, access_key: str, session_token: str) -> tuple[Session, Credentials]:
        """What a session token holds, and what its bearer signs with; whether its time is over is not looked at.

        Raises `S3Error` (InvalidToken) for what none of these keys has sealed, or not with this access key."""
        sealed = _decoded(session_token)
        key = self._by_id.get(sealed[1 : 1 + _ID_BYTES])
        contents = None if key is None else key.open(access_key, sealed)
        if key is None or contents is None:
            raise _invalid(access_key)
        token, expires_at, length = _CONTENTS.unpack_from(contents)
        end = _CONTENTS.size + length
        client, fence_key = contents[_CONTENTS.size : end].decode(), contents[end:].decode()
        return Session(FencingKey(fence_key), Token(token), client, expires_at), key.credentials(access_key, sealed)


class _SealingKey:
    """One key: its id, and what it seals and opens."""

    def __init__(self, key: bytes) -> None:
        self.id = hmac.digest(key, _INFO + b": id", "sha256")[:_ID_BYTES]
        self._key = key

    @cached_property
    def _cipher(self) -> Cipher:
        from gateway.s3.sealing import Cipher  # noqa: PLC0415 - see there

        return Cipher(self._key, _INFO)

    def seal(self, access_key: str, contents: bytes) -> bytes:
        head = _VERSION + self.id
        return head + self._cipher.encrypt(contents, head, access_key.encode())

    def open(self, access_key: str, sealed: bytes) -> bytes | None:
        """None for what this key has not sealed, or not with this access key."""
        head, rest = sealed[: 1 + _ID_BYTES], sealed[1 + _ID_BYTES :]
        return self._cipher.decrypt(rest, head, access_key.encode("utf-8", "surrogateescape"))

    def credentials(self, access_key: str, sealed: bytes) -> Credentials:
        secret = self._cipher.mac(access_key.encode() + sealed)[:30]
        return Credentials(access_key, _encoded(secret), _encoded(sealed))


def bound_claim(said: Claimed, session: Session) -> Claimed:
    """Key and token of a request under bound credentials: theirs. What the head says as well must be the same.

    Raises `Malformed`: KeyMismatch, TokenInvalid."""
    key, token = session.key, session.token
    if said.key not in (None, key):
        raise Malformed(
            Reason.KEY_MISMATCH,
            f"These credentials are bound to the fencing key {key!r}, the request names {said.key!r}. Leave the header "
            "out, or use the credentials of that job's lease.",
            key=key,
            token=token,
            argument=("X-Fencing-Key", str(said.key)),
        )
    if said.token not in (None, token):
        raise Malformed(
            Reason.TOKEN_INVALID,
            f"These credentials are bound to token {token}, the request bears {said.token}. Leave the header out, or "
            "use the credentials of that lease.",
            key=key,
            token=said.token,
            argument=("X-Fencing-Token", str(said.token)),
        )
    return Claimed(token, key)


def _invalid(access_key: str) -> S3Error:
    return S3Error("InvalidToken", "The provided token is malformed or otherwise invalid.", AWSAccessKeyId=access_key)


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """The bytes that `_encoded` writes so; none for any other text, also where it would decode to some."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    return data if _encoded(data) == text else b""
