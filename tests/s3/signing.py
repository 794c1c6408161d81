"""Requests signed and presigned by our own signer and by botocore, and how they are verified."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import urlsplit

import botocore.auth
import botocore.credentials
import pytest
from botocore.awsrequest import AWSRequest

from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, RequestHead, parse_head
from gateway.s3.sigv4 import (
    Credentials,
    parse_claim,
    presign,
    sign_headers,
    signing_key,
    verify,
)

ACCESS = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CREDENTIALS = Credentials(ACCESS, SECRET)
TEMPORARY = Credentials(ACCESS, SECRET, "FwoGZXIvYXdzEBYa/token+with=signs")
EMPTY = hashlib.sha256(b"").hexdigest()
NOW = datetime(2013, 5, 24, tzinfo=UTC).timestamp()
HOST = "examplebucket.s3.amazonaws.com"
SCOPE = "20130524/us-east-1/s3/aws4_request"
KEY = signing_key(SECRET, "20130524", "us-east-1", "s3")
Pairs = list[tuple[str, str]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def head_of(method: str, target: str, headers: Pairs) -> RequestHead:
    return parse_head(
        method, target, Headers.of_raw((n.encode(), v.encode("utf-8", "surrogateescape")) for n, v in headers)
    )


def check(head: RequestHead, now: float = NOW, credentials: Credentials = CREDENTIALS) -> bytes:
    claim = parse_claim(head)
    assert claim is not None
    return verify(head, claim, credentials, now)


def refusal(head: RequestHead, now: float = NOW) -> S3Error:
    with pytest.raises(S3Error) as caught:
        check(head, now)
    assert SECRET not in f"{caught.value.message}{caught.value.elements}"
    return caught.value


def signed(
    method: str = "PUT",
    target: str = "/b/k",
    headers: Pairs | None = None,
    *,
    host: str = "gateway:8080",
    payload: str = EMPTY,
    now: float = NOW,
) -> Pairs:
    """All the headers of a request that our own signer signed."""
    path, _, query = target.partition("?")
    headers = headers or []
    added = sign_headers(
        method,
        host,
        path,
        query,
        headers,
        payload_hash=payload,
        credentials=CREDENTIALS,
        region="us-east-1",
        now=now,
    )
    return [("host", host), *headers, *added]


def presigned(
    target: str = "/b/k",
    headers: Pairs | None = None,
    *,
    method: str = "GET",
    host: str = "gateway",
    expires_s: int = 60,
    credentials: Credentials = CREDENTIALS,
) -> str:
    path, _, query = target.partition("?")
    query = presign(
        method,
        host,
        path,
        query,
        headers or [],
        expires_s=expires_s,
        credentials=credentials,
        region="us-east-1",
        now=NOW,
    )
    return f"{path}?{query}"


def authorization(headers: Pairs) -> str:
    return dict(headers)["authorization"]


def with_header(headers: Pairs, name: str, value: str) -> Pairs:
    return [(n, value if n == name else v) for n, v in headers]


def without_header(headers: Pairs, name: str) -> Pairs:
    return [(n, v) for n, v in headers if n != name]


def by_botocore(
    signer: type[botocore.auth.SigV4Auth],
    method: str,
    target: str,
    headers: dict[str, str],
    credentials: Credentials,
    **options: int,
) -> tuple[str, Pairs]:
    """The target and headers that botocore sends for this request."""
    pair = botocore.credentials.Credentials(ACCESS, SECRET, credentials.session_token)
    request = AWSRequest(method, f"http://gateway:8080{target}", headers=headers)
    with patch.object(
        botocore.auth, "get_current_datetime", lambda *_: datetime.fromtimestamp(NOW, UTC).replace(tzinfo=None)
    ):
        signer(pair, "s3", "us-east-1", **options).add_auth(request)
    parts = urlsplit(request.url)
    sent = [("host", "gateway:8080"), *((n.lower(), v) for n, v in request.headers.items())]
    return parts.path + (f"?{parts.query}" if parts.query else ""), sent


def flip(text: str, at: int) -> str:
    """The text with one character replaced by another that means something else in path, query and header."""
    at %= len(text)
    return text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]
