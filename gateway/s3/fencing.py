"""What a request says to the fence, and what a stored object remembers of it.

Clients speak in headers, or in user metadata where their tool can set nothing else. On the stored object the gateway
keeps metadata of its own, which S3 clients never see: they are shown `X-Fencing-Object-Token` and `-Key` instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import MAX_TOKEN, FencingKey, Token, key_in_metadata, parse_key, parse_token
from gateway.core.write import ObjectState
from gateway.s3.request import Headers

META = "x-amz-meta-fencing-"
META_KEY, META_TOKEN, META_NONCE = META + "key", META + "token", META + "nonce"
TOKEN_HEADERS = ("x-fencing-token", "fencing-token", META_TOKEN)
KEY_HEADERS = ("x-fencing-key", META_KEY)
SPOKEN = frozenset((*TOKEN_HEADERS, *KEY_HEADERS))
"""The headers by which a client speaks to the fence. None of them goes upstream."""
_SHOWN_CHARACTERS = 64
_KEY_IN_METADATA = re.compile(r"[A-Za-z0-9/._~%-]+|sha256:[0-9a-f]{64}")
_TOKEN = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The token and key that a request's head names; None where it names none."""

    token: Token | None
    key: FencingKey | None


NOTHING_CLAIMED = Claimed(None, None)


def claimed(headers: Headers, signed: frozenset[str] | None) -> Claimed:
    """What the head says to the fence. `signed` holds the signed headers' names; None where the client need not sign
    these (`require_signed_token = false`). Raises `Malformed`: TokenInvalid, KeyInvalid, NotSigned."""
    spoken = _spoken(headers.names)
    if spoken.nothing:
        return NOTHING_CLAIMED
    refuse_reserved(headers)
    for name in spoken.tokens + spoken.keys:
        if signed is not None and name not in signed:
            raise Malformed(
                Reason.NOT_SIGNED,
                f"The header {name} is not covered by the request's signature. Add it before signing, or configure "
                "this client with require_signed_token = false.",
                argument=(name, (headers.get(name) or "")[:_SHOWN_CHARACTERS]),
            )
    token, key = _only(headers, spoken.tokens), _only(headers, spoken.keys)
    return Claimed(
        None if token is None else parse_token(headers.first[token], token),
        None if key is None else parse_key(headers.first[key], key),
    )


def refuse_reserved(headers: Headers) -> None:
    """Raises `Malformed` (KeyInvalid) for user metadata whose names the gateway keeps for itself, also where no fence
    is enforced: passed, it would forge a fence; left out, it would be lost in silence."""
    for name in _spoken(headers.names).reserved:
        raise Malformed(
            Reason.KEY_INVALID,
            f"User metadata that begins with {META!r} belongs to the gateway; only {META_TOKEN} and {META_KEY} "
            "may be sent. Choose another name.",
            argument=(name, (headers.get(name) or "")[:_SHOWN_CHARACTERS]),
        )


@dataclass(frozen=True, slots=True)
class _Spoken:
    """Those of a request's fields that speak to the fence, as often as they stand there."""

    tokens: tuple[str, ...]
    keys: tuple[str, ...]
    reserved: tuple[str, ...]
    """Which only the gateway may say."""
    nothing: bool


@lru_cache(maxsize=256)
def _spoken(names: tuple[str, ...]) -> _Spoken:
    tokens = tuple(name for name in names if name in TOKEN_HEADERS)
    keys = tuple(name for name in names if name in KEY_HEADERS)
    # An underscore in metadata is a hyphen to some stores.
    reserved = tuple(n for n in names if n not in SPOKEN and n.replace("_", "-").startswith(META))
    return _Spoken(tokens, keys, reserved, not (tokens or keys or reserved))


def _only(headers: Headers, names: tuple[str, ...]) -> str | None:
    """The one field that speaks, of all that say the same. Raises `Malformed` where there are more."""
    if len(names) > 1:
        second = [pair for pair in headers.pairs if pair[0] in names][1]
        raise Malformed(
            Reason.TOKEN_INVALID if names[0] in TOKEN_HEADERS else Reason.KEY_INVALID,
            f"The request names it more than once ({', '.join(names)}). Send it in one header, once.",
            argument=(second[0], second[1][:_SHOWN_CHARACTERS]),
        )
    return names[0] if names else None


def object_metadata(key: FencingKey, token: Token, nonce: str) -> tuple[tuple[str, str], ...]:
    """The metadata that a fenced object carries."""
    return ((META_KEY, key_in_metadata(key)), (META_TOKEN, str(token)), (META_NONCE, nonce))


def object_state(headers: Iterable[tuple[str, str]]) -> ObjectState:
    """What the head of an existing object tells. Metadata that the gateway cannot have written counts as none."""
    fields = dict(headers)
    token = fields.get(META_TOKEN, "")
    version = fields.get("x-amz-version-id", "null")
    key = fields.get(META_KEY, "")
    valid = _KEY_IN_METADATA.fullmatch(key) and _TOKEN.fullmatch(token) and int(token) <= MAX_TOKEN
    return ObjectState(
        etag=fields.get("etag", ""),
        key=key if valid else None,
        token=int(token) if valid else 0,
        nonce=fields.get(META_NONCE, "") if valid else "",
        versioned=version != "null",
    )


def shown_name(name: str) -> str:
    """The name under which readers see an object's response header; empty for what is the gateway's alone."""
    if not name.startswith(META):
        return name
    return {META_TOKEN: "X-Fencing-Object-Token", META_KEY: "X-Fencing-Object-Key"}.get(name, "")


@lru_cache(maxsize=1024)
def key_in_header(key: str) -> str:
    """A fence key as a response header can carry it: percent-encoded UTF-8."""
    return quote(key, safe="/-._~:@!$&'()*+,;=")
