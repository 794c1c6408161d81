"""S3's errors: codes, status and XML, and the one map from the fence's failures to S3's.

Source of codes and status: the S3 API reference, "Error responses"; of the fence's: docs/protocol.md.
"""

from __future__ import annotations

import re
from functools import lru_cache
from xml.sax.saxutils import escape

from gateway.core.errors import FenceError, Reason


class S3Error(Exception):
    """An error as S3 would answer it. The message is what the client reads; it never holds a secret."""

    def __init__(self, code: str, message: str, status: int | None = None, **elements: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = STATUS_OF_CODE[code] if status is None else status
        self.elements = elements
        self.claimant = ""
        """The access key that the request names, where its signature does not hold."""


STATUS_OF_CODE: dict[str, int] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BadRequest": 400,
    "EntityTooLarge": 400,
    "ExpiredToken": 400,
    "FencingTokenRequired": 428,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidRequest": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MalformedTrailerError": 400,
    "MaxMessageLengthExceeded": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestHeaderSectionTooLarge": 400,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}

CODE_OF_REASON: dict[Reason, str] = {
    Reason.STALE_TOKEN: "PreconditionFailed",
    Reason.SEALED: "PreconditionFailed",
    Reason.TOKEN_REQUIRED: "FencingTokenRequired",
    Reason.TOKEN_INVALID: "InvalidArgument",
    Reason.TOKEN_NOT_ISSUED: "InvalidArgument",
    Reason.TOKEN_JUMP: "InvalidArgument",
    Reason.KEY_INVALID: "InvalidArgument",
    Reason.NOT_SIGNED: "InvalidArgument",
    Reason.KEY_MISMATCH: "InvalidArgument",
    Reason.KEY_DENIED: "AccessDenied",
    Reason.OPERATION_NOT_FENCED: "NotImplemented",
    Reason.HANDOVER_PENDING: "SlowDown",
    Reason.IN_DOUBT: "SlowDown",
    Reason.STATE_MOVED: "SlowDown",
    Reason.OVERLOADED: "SlowDown",
    Reason.DRAINING: "ServiceUnavailable",
    Reason.STORE_UNAVAILABLE: "ServiceUnavailable",
    Reason.UPSTREAM_UNAVAILABLE: "ServiceUnavailable",
    Reason.SUPERSEDED: "ServiceUnavailable",
}

_PLAIN = bytes(set(range(0x20, 0x7F)) - set(b'"&<>'))
"""What needs no escaping: nearly every text is of these alone."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def of_fence(error: FenceError) -> S3Error:
    """The S3 error that tells a failure of the fence, with all its facts as elements."""
    code = CODE_OF_REASON[error.reason]
    elements: dict[str, str] = {}
    if code == "PreconditionFailed":
        elements["Condition"] = "X-Fencing-Token"
    if error.argument is not None:
        elements["ArgumentName"], elements["ArgumentValue"] = error.argument
    elements["FencingReason"] = str(error.reason)
    for name, value in (("FencingKey", error.key), ("FencingToken", error.token), ("FencingFloor", error.floor)):
        if value is not None:
            elements[name] = str(value)
    elements["FencingOutcome"] = str(error.outcome)
    answer = S3Error(code, error.message)
    answer.elements = elements
    return answer


def to_xml(error: S3Error, *, resource: str, request_id: str, host_id: str) -> bytes:
    """The body of an error answer (S3 API reference, "REST error responses")."""
    texts = {"Message": error.message, **error.elements, "Resource": resource}
    if not _is_plain("".join(texts.values())):
        texts = {name: xml_text(text) for name, text in texts.items()}
    told = _elements(tuple(texts)) % tuple(texts.values())
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{error.code}</Code>{told}'
        f"<RequestId>{request_id}</RequestId><HostId>{host_id}</HostId></Error>"
    ).encode()


@lru_cache(maxsize=256)
def _elements(names: tuple[str, ...]) -> str:
    """Elements of these names, to be filled."""
    return "".join([f"<{name}>%s</{name}>" for name in names])


def xml_text(value: str) -> str:
    """Escaped for XML 1.0, which cannot hold most control characters and lone surrogates at all (2.2), and reads a
    carriage return as a line feed (2.11), which would name another key."""
    if _is_plain(value):
        return value
    return escape(_NOT_XML.sub("�", value), {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})


def _is_plain(text: str) -> bool:
    return text.isascii() and not text.encode().translate(None, _PLAIN)
