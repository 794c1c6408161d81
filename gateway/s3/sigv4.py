"""AWS Signature Version 4 as S3 speaks it: verify what a request claims, sign requests, chunks and trailers.

Pure: the time is an argument (`now`, seconds since the epoch). Rules: S3 API reference, "Authenticating
Requests (AWS Signature Version 4)", with its pages on the Authorization header, on query parameters, and on
chunked uploads with and without trailing headers.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from urllib.parse import quote, unquote_to_bytes

from gateway.s3.claim import ALGORITHM, TERMINATOR, UNSIGNED_PAYLOAD, Claim, format_amz_date, parse_claim
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, RequestHead

__all__ = [
    "UNSIGNED_PAYLOAD",
    "ChunkSigner",
    "Claim",
    "Credentials",
    "parse_claim",
    "presign",
    "sign_headers",
    "signing_key",
    "verify",
]

MAX_SKEW_S = 15 * 60
MAX_KEPT_NAMES = 64
"""Of more headers than clients sign nothing is kept: they come before any proof."""
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
UNSIGNED_HEADERS = frozenset(
    "accept-encoding baggage connection expect keep-alive proxy-authenticate proxy-authorization te traceparent"
    " tracestate trailer transfer-encoding upgrade user-agent x-amzn-trace-id".split()
)
"""What `sign_headers` leaves out: proxies on the way may change or drop these."""

_EMPTY = sha256()
"""To be copied: beginning a hash or an HMAC anew costs more than hashing a request."""
_PLAIN = bytes([*range(0x20, 0x7F), 0x0A])
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")
_UNRESERVED_PATH = re.compile(r"[A-Za-z0-9._~/-]*")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key pair, with the session token that belongs to it if it is temporary."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def verify(head: RequestHead, claim: Claim, credentials: Credentials, now: float) -> bytes:
    """Prove that the holder of `credentials` signed this request, and not too long ago.

    Returns the signing key, for the signatures of the request's chunks. The region is accepted as claimed.
    Raises `S3Error`: RequestTimeTooSkewed; AccessDenied if it is expired, not yet valid, or leaves the host or
    an `x-amz-*` header unsigned; SignatureDoesNotMatch."""
    _check_time(claim, now)
    headers, names = head.headers, claim.signed_headers
    signed = (_signed if len(names) <= MAX_KEPT_NAMES else _signed.__wrapped__)(names)
    if not _must_be_signed(headers.names) <= signed.names:
        raise _not_signed(headers, signed.names)
    if not signed.names <= headers.first.keys():
        raise _does_not_match(claim)
    fields = _joined(headers.pairs) if headers.repeats else headers.first
    key = signing_key(credentials.secret_key, claim.date, claim.region, claim.service)
    target = _target(head.method, head.raw_path, head.raw_query)
    given = _bytes(claim.signature)
    host = fields["host"]
    for form in _forms_of_host(host.strip()):
        canonical = _canonical(target, signed, fields if form == host else {**fields, "host": form}, claim.payload)
        due = _signature(key, claim.amz_date, claim.scope, canonical)
        if hmac.compare_digest(due.encode(), given):
            return key
    raise _does_not_match(claim)


def sign_headers(
    method: str,
    host: str,
    raw_path: str,
    raw_query: str,
    headers: Iterable[tuple[str, str]],
    *,
    payload_hash: str,
    credentials: Credentials,
    region: str,
    now: float,
    service: str = "s3",
) -> list[tuple[str, str]]:
    """The headers that sign a request, to be added to `headers` (lower-case names, without `host`).

    All of `headers` are signed but `UNSIGNED_HEADERS`. `payload_hash` is a hex digest or `UNSIGNED_PAYLOAD`."""
    amz_date = format_amz_date(int(now))
    added = [("x-amz-date", amz_date), ("x-amz-content-sha256", payload_hash)]
    if credentials.session_token is not None:
        added.append(("x-amz-security-token", credentials.session_token))
    pairs = (("host", host), *headers, *added)
    fields = dict(pairs)
    if len(fields) < len(pairs):
        fields = _joined(pairs)
    signed = _signed_of(tuple(fields))
    day = amz_date[:8]
    scope = f"{day}/{region}/{service}/{TERMINATOR}"
    key = signing_key(credentials.secret_key, day, region, service)
    target = _target(method, raw_path, raw_query)
    signature = _signature(key, amz_date, scope, _canonical(target, signed, fields, payload_hash))
    authorization = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={signed.text}, Signature={signature}"
    )
    added.append(("authorization", authorization))
    return added


def presign(
    method: str,
    host: str,
    raw_path: str,
    raw_query: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    expires_s: int,
    credentials: Credentials,
    region: str,
    now: float,
) -> str:
    """The whole query of a presigned URL: `raw_query`, then the parameters that sign it for `expires_s` seconds.

    Who uses the URL has to send all of `headers` (lower-case names, without `host`)."""
    amz_date = format_amz_date(int(now))
    fields = _joined((("host", host), *headers))
    signed = _signed(tuple(fields))
    scope = f"{amz_date[:8]}/{region}/s3/{TERMINATOR}"
    parameters = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": amz_date,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": signed.text,
    }
    if credentials.session_token is not None:
        parameters["X-Amz-Security-Token"] = credentials.session_token
    signing = "&".join(f"{name}={quote(value, safe='~')}" for name, value in parameters.items())
    query = f"{raw_query}&{signing}" if raw_query else signing
    target = _target(method, raw_path, query)
    key = signing_key(credentials.secret_key, amz_date[:8], region, "s3")
    payload = fields.get("x-amz-content-sha256", UNSIGNED_PAYLOAD)
    signature = _signature(key, amz_date, scope, _canonical(target, signed, fields, payload))
    return f"{query}&X-Amz-Signature={signature}"


class ChunkSigner:
    """The chain of signatures over an aws-chunked body: each covers its chunk and the signature before it.

    `seed_signature` is that of the request itself, `signing_key` what `verify` returned for it."""

    __slots__ = ("_key", "_previous", "_scope")

    def __init__(self, signing_key: bytes, amz_date: str, scope: str, seed_signature: str) -> None:
        self._key = signing_key
        self._scope = f"{amz_date}\n{scope}\n"
        self._previous = seed_signature

    def chunk_signature(self, data_sha256: str) -> str:
        """The signature due for the next chunk, whose data has this SHA-256 (hex); moves the chain on."""
        return self._next(f"AWS4-HMAC-SHA256-PAYLOAD\n{self._scope}{self._previous}\n{EMPTY_SHA256}\n{data_sha256}")

    def trailer_signature(self, trailer_sha256: str) -> str:
        """The signature due for the trailer: SHA-256 (hex) of its fields as `name:value\\n` each."""
        return self._next(f"AWS4-HMAC-SHA256-TRAILER\n{self._scope}{self._previous}\n{trailer_sha256}")

    def _next(self, string_to_sign: str) -> str:
        self._previous = _mac(self._key, string_to_sign)
        return self._previous


@lru_cache(maxsize=1024)
def signing_key(secret_key: str, day: str, region: str, service: str) -> bytes:
    """The key of one day, region and service, derived from the secret key."""
    key = _bytes("AWS4" + secret_key)
    for part in (day, region, service, TERMINATOR):
        key = hmac.digest(key, _bytes(part), "sha256")
    return key


def canonical_path(raw_path: str) -> str:
    """The path decoded and encoded once, so that every spelling of it has one form; S3 keeps dots and slashes."""
    if _UNRESERVED_PATH.fullmatch(raw_path):
        return raw_path
    return quote(unquote_to_bytes(_bytes(raw_path)), safe="/~")


def canonical_query(raw_query: str) -> str:
    """Each name and value decoded and encoded once, sorted, without `X-Amz-Signature`.

    A bare `+` signs as `%20`: that is what it means to S3 and to `parse_query`, so the signature covers what is
    acted upon. AWS's own signers never send one, they write `%20` and `%2B`."""
    if not raw_query:
        return ""
    pairs = []
    for item in raw_query.split("&"):
        if item:
            name, _, value = item.partition("=")
            pairs.append((_encode(name), _encode(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs) if name != "X-Amz-Signature")


def _check_time(claim: Claim, now: float) -> None:
    if claim.expires_s is None:
        if abs(now - claim.timestamp) > MAX_SKEW_S:
            raise S3Error(
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
                RequestTime=claim.amz_date,
                ServerTime=_iso(now),
                MaxAllowedSkewMilliseconds=str(MAX_SKEW_S * 1000),
            )
    elif claim.timestamp - now > MAX_SKEW_S:
        raise S3Error("AccessDenied", "Request is not yet valid", ServerTime=_iso(now))
    elif now > claim.timestamp + claim.expires_s:
        elements = {
            "X-Amz-Expires": str(claim.expires_s),
            "Expires": _iso(claim.timestamp + claim.expires_s),
            "ServerTime": _iso(now),
        }
        raise S3Error("AccessDenied", "Request has expired", None, **elements)


@lru_cache(maxsize=256)
def _must_be_signed(names: tuple[str, ...]) -> frozenset[str]:
    """Of the fields that a request bears, those that change its meaning. The host is due even where it is missing."""
    return frozenset({"host", *(name for name in names if name.startswith("x-amz-"))})


def _not_signed(headers: Headers, signed: frozenset[str]) -> S3Error:
    must = [name for name in headers.first if name.startswith("x-amz-")]
    unsigned = [name for name in (*must, "host") if name not in signed]
    return S3Error(
        "AccessDenied",
        "There were headers present in the request which were not signed",
        HeadersNotSigned=", ".join(unsigned),
    )


def _forms_of_host(host: str) -> Iterator[str]:
    """As sent; then with the scheme's default port dropped or written out, as the signer may have seen it."""
    yield host
    name, colon, port = host.rpartition(":")
    if colon and port in ("80", "443"):
        yield name
    elif not colon or host.endswith("]"):
        yield f"{host}:80"
        yield f"{host}:443"


def _target(method: str, raw_path: str, raw_query: str) -> str:
    return f"{method}\n{canonical_path(raw_path)}\n{canonical_query(raw_query)}"


@dataclass(frozen=True, slots=True)
class _Signed:
    """The headers that a signature covers: all that depends on their names alone."""

    names: frozenset[str]
    text: str
    """The names in their order, as SignedHeaders has them."""
    template: str
    """The fields' lines, which `pick`'s values fill."""
    pick: Callable[[Mapping[str, str]], object]
    """The values, in the names' order."""


@lru_cache(maxsize=1024)
def _signed(names: tuple[str, ...]) -> _Signed:
    ordered = sorted(names)
    template = "".join([name.replace("%", "%%") + ":%s\n" for name in ordered])
    return _Signed(frozenset(names), ";".join(ordered), template, itemgetter(*ordered))


@lru_cache(maxsize=1024)
def _signed_of(names: tuple[str, ...]) -> _Signed:
    """What `sign_headers` signs of these."""
    return _signed(tuple(name for name in names if name not in UNSIGNED_HEADERS))


def _canonical(target: str, signed: _Signed, fields: Mapping[str, str], payload: str) -> bytes:
    lines = signed.template % signed.pick(fields)
    if not _is_plain(lines, signed.template.count("\n")):
        lines = signed.template % signed.pick({name: _collapsed(value) for name, value in fields.items()})
    return _bytes(f"{target}\n{lines}\n{signed.text}\n{payload}")


def _is_plain(lines: str, count: int) -> bool:
    """Whether no value of these lines has white space to trim or to collapse, as nearly all have none."""
    return (
        lines.isascii()
        and lines.count("\n") == count
        and not lines.encode().translate(None, _PLAIN)
        and not (" " in lines and ("  " in lines or ": " in lines or " \n" in lines))
    )


def _signature(key: bytes, amz_date: str, scope: str, canonical: bytes) -> str:
    digest = _EMPTY.copy()
    digest.update(canonical)
    return _mac(key, f"{ALGORITHM}\n{amz_date}\n{scope}\n{digest.hexdigest()}")


def _mac(key: bytes, text: str) -> str:
    mac = _keyed(key).copy()
    mac.update(_bytes(text))
    return mac.hexdigest()


@lru_cache(maxsize=1024)
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod="sha256")


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Fields in their canonical form; several of one name are joined."""
    fields: dict[str, str] = {}
    for name, value in pairs:
        collapsed = _collapsed(value)
        fields[name] = f"{fields[name]},{collapsed}" if name in fields else collapsed
    return fields


def _collapsed(value: str) -> str:
    """Trimmed, each run of white space one space. White space is what ASCII calls so: a no-break space is part of the
    value, whatever str.split() says."""
    if value.isascii():
        return " ".join(value.split())
    return b" ".join(_bytes(value).split()).decode("utf-8", "surrogateescape")


def _encode(raw: str) -> str:
    if _UNRESERVED.fullmatch(raw):
        return raw
    return quote(unquote_to_bytes(_bytes(raw.replace("+", " "))), safe="~")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _iso(epoch_s: float) -> str:
    return datetime.fromtimestamp(int(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _does_not_match(claim: Claim) -> S3Error:
    return S3Error(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided."
        " Check your key and signing method.",
        AWSAccessKeyId=claim.access_key,
    )
