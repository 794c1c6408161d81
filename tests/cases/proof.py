"""Signature Version 4 by hand, over every header that is given: also those which signers leave out, and spellings that
none would send. Written from the S3 API reference, "Authenticating Requests: Using the Authorization Header"."""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from urllib.parse import quote, unquote_to_bytes

from tests.conftest import REGION
from tests.server.rig import CREDENTIALS, HOST, Pairs, raw


def proved(method: str, target: str, fields: Pairs, payload: str, *, host: str = HOST) -> bytes:
    """The head of a request whose signature covers all of `fields`."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    fields = [("host", host), *fields, ("x-amz-date", stamp), ("x-amz-content-sha256", payload)]
    values: dict[str, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name.lower(), []).append(b" ".join(_wire(value).split()))
    names = ";".join(sorted(values))
    path, _, query = target.partition("?")
    canonical = b"\n".join(
        [
            method.encode(),
            _encoded(path, "/").encode(),
            _query(query).encode(),
            *(name.encode() + b":" + b",".join(values[name]) for name in sorted(values)),
            b"",
            names.encode(),
            payload.encode(),
        ]
    )
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical).hexdigest()}"
    key = b"AWS4" + CREDENTIALS.secret_key.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    proof = (
        f"AWS4-HMAC-SHA256 Credential={CREDENTIALS.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return raw(f"{method} {target} HTTP/1.1", [*fields, ("authorization", proof)])


def _wire(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _encoded(text: str, safe: str = "") -> str:
    return quote(unquote_to_bytes(_wire(text)), safe=safe + "~")


def _query(query: str) -> str:
    """A bare `+` is a space, as in the forms of browsers."""
    pairs = [item.replace("+", " ").partition("=") for item in query.split("&") if item]
    return "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs))
