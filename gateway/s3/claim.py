"""What a request claims of its AWS Signature Version 4, in its Authorization header or its query: syntax alone.

Pure. Rules: S3 API reference, "Authenticating Requests (AWS Signature Version 4)", its pages on the
Authorization header and on query parameters; codes and messages are S3's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from gateway.s3.errors import S3Error
from gateway.s3.request import RequestHead

ALGORITHM = "AWS4-HMAC-SHA256"
TERMINATOR = "aws4_request"
MAX_EXPIRES_S = 7 * 24 * 3600
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMING_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

_MARKS_OF_V4 = frozenset(("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"))
_MARKS_OF_V2 = frozenset(("AWSAccessKeyId", "Signature"))
_MARKS = _MARKS_OF_V4 | _MARKS_OF_V2
_REQUIRED = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)
_READ_ONCE = frozenset((*_REQUIRED, "X-Amz-Content-Sha256", "X-Amz-Security-Token"))
_PAYLOAD = re.compile(
    f"[0-9a-fA-F]{{64}}|{UNSIGNED_PAYLOAD}|{STREAMING_SIGNED}(-TRAILER)?|{STREAMING_UNSIGNED_TRAILER}"
)
_SIGNATURE = re.compile(r",\s*Signature=([^,]+)")
"""It begins with the one character that is looked for at every place: a choice there is slow."""
_AMZ_DATE = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9])Z")
_SCOPE_DATE = re.compile("[0-9]{8}")
_EXPIRES = re.compile("-?[0-9]{1,18}")
MAX_KEPT_CHARACTERS = 1024
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


@dataclass(slots=True)
class Claim:
    """What a request says of its own signature; nothing of it is proved before `sigv4.verify`."""

    access_key: str
    date: str
    """The scope's day, YYYYMMDD."""
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str = field(repr=False)
    timestamp: float
    """When it was signed, seconds since the epoch."""
    amz_date: str
    """The same as it is signed, YYYYMMDDTHHMMSSZ."""
    expires_s: int | None
    presigned: bool
    session_token: str | None = field(repr=False)
    payload: str
    """`x-amz-content-sha256` as sent: hex digits, or the name of a way to send the payload."""

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/{TERMINATOR}"


def parse_claim(head: RequestHead) -> Claim | None:
    """What the request's Authorization header or query claims; None if it carries no credentials at all.

    Raises `S3Error` as S3 does for what is malformed, incomplete, doubled, or of another mechanism."""
    fields = head.headers.all("authorization")
    marks = {name for name, _ in head.query if name in _MARKS}
    if len(fields) + bool(marks) > 1:
        raise S3Error(
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string"
            " parameter or the Authorization header should be specified",
            ArgumentName="Authorization",
        )
    if fields:
        return _checked_scope(_claim_of_header(head, fields[0]))
    if marks & _MARKS_OF_V4:
        return _checked_scope(_claim_of_query(head))
    if marks:
        raise _unsupported_mechanism()
    return None


@lru_cache(maxsize=64)
def format_amz_date(second: int) -> str:
    """A second since the epoch as YYYYMMDDTHHMMSSZ."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")


def _claim_of_header(head: RequestHead, authorization: str) -> Claim:
    scheme, _, components = authorization.partition(" ")
    if scheme != ALGORITHM:
        if scheme == "AWS" or scheme.startswith("AWS4-"):
            raise _unsupported_mechanism()
        raise S3Error("InvalidArgument", "Unsupported Authorization Type", ArgumentName="Authorization")
    components = "," + components
    found = _SIGNATURE.search(components)
    if found is None:
        raise _not_three_components()
    signature = found[1].strip()
    components = components[: found.start()] + components[found.end() :]
    # Nobody has proved anything yet: what is longer than clients send must not fill the cache.
    split = _signer if len(components) <= MAX_KEPT_CHARACTERS else _signer.__wrapped__
    access_key, day, region, service, signed_headers = split(components)
    amz_date, timestamp = _time_of_header(head)
    payload = head.headers.get("x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    return Claim(
        access_key=access_key,
        date=day,
        region=region,
        service=service,
        signed_headers=signed_headers,
        signature=signature,
        timestamp=timestamp,
        amz_date=amz_date,
        expires_s=None,
        presigned=False,
        session_token=head.headers.get("x-amz-security-token"),
        payload=_checked_payload(payload),
    )


@lru_cache(maxsize=1024)
def _signer(components: str) -> tuple[str, str, str, str, tuple[str, ...]]:
    """Credential and signed headers, which are the same in request after request of one client."""
    items = [item.strip().partition("=") for item in components.strip(" ,").split(",")]
    parts = {name: value for name, _, value in items if value}
    if len(items) != 2 or parts.keys() != {"Credential", "SignedHeaders"}:
        raise _not_three_components()
    return (
        *_split_credential(parts["Credential"], presigned=False),
        tuple(parts["SignedHeaders"].lower().split(";")),
    )


def _not_three_components() -> S3Error:
    return _malformed(
        False, "the authorization header requires three components: Credential, SignedHeaders, and Signature."
    )


def _claim_of_query(head: RequestHead) -> Claim:
    found: dict[str, str] = {}
    for name, value in head.query:
        if name in found:
            raise S3Error("AuthorizationQueryParametersError", f"{name} must be given only once")
        if name in _READ_ONCE:
            found[name] = value
    payload = found.get("X-Amz-Content-Sha256") or head.headers.get("x-amz-content-sha256") or UNSIGNED_PAYLOAD
    if _checked_payload(payload).startswith("STREAMING-"):
        raise S3Error("AccessDenied", "A payload sent in signed chunks needs the Authorization header")
    if not all(map(found.get, _REQUIRED)):
        raise S3Error(
            "AuthorizationQueryParametersError",
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential,"
            " X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
        )
    if found["X-Amz-Algorithm"] != ALGORITHM:
        raise S3Error("AuthorizationQueryParametersError", f'X-Amz-Algorithm only supports "{ALGORITHM}"')
    access_key, day, region, service = _split_credential(found["X-Amz-Credential"], presigned=True)
    timestamp = _epoch_of(found["X-Amz-Date"])
    if timestamp is None:
        raise S3Error(
            "AuthorizationQueryParametersError",
            "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"",
        )
    return Claim(
        access_key=access_key,
        date=day,
        region=region,
        service=service,
        signed_headers=tuple(found["X-Amz-SignedHeaders"].lower().split(";")),
        signature=found["X-Amz-Signature"],
        timestamp=timestamp,
        amz_date=found["X-Amz-Date"],
        expires_s=_checked_expires(found["X-Amz-Expires"]),
        presigned=True,
        session_token=found.get("X-Amz-Security-Token") or head.headers.get("x-amz-security-token"),
        payload=payload,
    )


def _split_credential(credential: str, *, presigned: bool) -> tuple[str, str, str, str]:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not all(parts) or not _SCOPE_DATE.fullmatch(parts[1]):
        raise _malformed(
            presigned,
            'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".',
        )
    access_key, day, region, service, terminator = parts
    if terminator != TERMINATOR:
        raise _malformed(presigned, f'incorrect terminal "{terminator}". This endpoint uses "{TERMINATOR}".')
    return access_key, day, region, service


def _time_of_header(head: RequestHead) -> tuple[str, float]:
    text = head.headers.get("x-amz-date") or head.headers.get("date") or ""
    timestamp = _epoch_of(text)
    if timestamp is not None:
        return text, timestamp
    try:  # a Date header has HTTP's form, and is signed in the other one
        moment = parsedate_to_datetime(text)
        second = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
        return format_amz_date(second), float(second)
    except (ValueError, OverflowError) as error:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header") from error


@lru_cache(maxsize=64)
def _epoch_of(amz_date: str) -> float | None:
    match = _AMZ_DATE.fullmatch(amz_date)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    try:
        days = date(year, month, day).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None
    return float(days * 86400 + hour * 3600 + minute * 60 + second)


def _checked_payload(payload: str) -> str:
    if not _PAYLOAD.fullmatch(payload):
        raise S3Error(
            "InvalidArgument",
            f"x-amz-content-sha256 must be {UNSIGNED_PAYLOAD}, {STREAMING_UNSIGNED_TRAILER}, {STREAMING_SIGNED},"
            f" {STREAMING_SIGNED_TRAILER} or a valid sha256 value.",
            ArgumentName="x-amz-content-sha256",
            ArgumentValue=payload,
        )
    return payload


def _checked_expires(text: str) -> int:
    if not _EXPIRES.fullmatch(text):
        raise S3Error("AuthorizationQueryParametersError", "X-Amz-Expires should be a number")
    expires_s = int(text)
    if expires_s < 0:
        raise S3Error("AuthorizationQueryParametersError", "X-Amz-Expires must be non-negative")
    if expires_s > MAX_EXPIRES_S:
        raise S3Error(
            "AuthorizationQueryParametersError",
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less"
            f" than {MAX_EXPIRES_S} seconds",
        )
    return expires_s


def _checked_scope(claim: Claim) -> Claim:
    if claim.service != "s3":
        what = f'incorrect service "{claim.service}". This endpoint belongs to "s3".'
        raise _malformed(claim.presigned, what)
    if not claim.amz_date.startswith(claim.date):
        what = f'invalid credential date "{claim.date}". This date is not the same as "{claim.amz_date}".'
        raise _malformed(claim.presigned, what)
    return claim


def _malformed(presigned: bool, what: str) -> S3Error:
    if presigned:
        return S3Error("AuthorizationQueryParametersError", f"Error parsing the X-Amz-Credential parameter; {what}")
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; {what}")


def _unsupported_mechanism() -> S3Error:
    return S3Error(
        "InvalidRequest",
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
