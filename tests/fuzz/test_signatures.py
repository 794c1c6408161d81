"""Signatures of any request: what botocore signs is accepted, anything else than what it signed is not."""

# ruff: noqa: PT017

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote

import botocore.auth
import botocore.credentials
from botocore.awsrequest import AWSRequest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.s3.claim import parse_claim
from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head
from gateway.s3.sigv4 import Credentials, presign, sign_headers, verify
from tests.fuzz.settings import short

NOW = 1_800_000_000.0
PAIR = Credentials("AKIDFUZZ", "secret/of+the=fuzzer")
HOST = "s3.fuzz.example"
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
queries = st.lists(st.tuples(TEXT.filter(bool), TEXT), max_size=3, unique_by=lambda pair: pair[0])
metadata = st.dictionaries(
    st.sampled_from(("x-amz-meta-a", "x-amz-meta-b", "x-fencing-token", "content-type", "x-amz-acl", "range")),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp")), max_size=12),
)
methods = st.sampled_from(("GET", "PUT", "DELETE", "HEAD", "POST"))


def by_botocore(kind: type[botocore.auth.SigV4Auth], method: str, url: str, fields: dict[str, str]) -> AWSRequest:
    """The same request, signed."""
    request = AWSRequest(method, url, headers=dict(fields), data=b"")
    request.headers["host"] = HOST
    request.context["payload_signing_enabled"] = True
    moment = datetime.fromtimestamp(NOW, UTC).replace(tzinfo=None)
    with patch.object(botocore.auth, "get_current_datetime", lambda *_: moment):
        kind(botocore.credentials.Credentials(PAIR.access_key, PAIR.secret_key), "s3", "us-east-1").add_auth(request)
    return request


def accepts(method: str, target: str, fields: list[tuple[str, str]]) -> bool:
    """Whether the signature holds; no request is a fault."""
    try:
        head = parse_head(method, target, Headers(fields))
        claim = parse_claim(head)
        if claim is None:
            return False
        verify(head, claim, PAIR, NOW)
    except S3Error as error:
        assert 400 <= error.status < 500
        return False
    return True


@short(150)
@given(
    method=methods,
    key=keys,
    query=queries,
    fields=metadata,
    presigned=st.booleans(),
    change=st.integers(0, 5),
    other=st.data(),
)
def test_what_botocore_signs(
    method: str,
    key: str,
    query: list[tuple[str, str]],
    fields: dict[str, str],
    presigned: bool,
    change: int,
    other: st.DataObject,
) -> None:
    """Headers and URLs that botocore signs are accepted, ours are the same; with one thing changed they are refused."""
    path = "/b/" + quote(key, safe="/~")
    text = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in query)
    assume(not any(name.lower().startswith("x-amz-") for name, _ in query))
    assume(
        all(len(value.encode()) == len(value) for value in fields.values())
    )  # botocore signs other bytes than it sends
    kind = botocore.auth.S3SigV4QueryAuth if presigned else botocore.auth.S3SigV4Auth
    signed = by_botocore(kind, method, f"http://{HOST}{path}" + (f"?{text}" if text else ""), fields)
    target = signed.url.removeprefix(f"http://{HOST}")
    sent = [(name.lower(), value) for name, value in signed.headers.items()]
    assert accepts(method, target, sent)
    if not presigned:
        payload = dict(sent)["x-amz-content-sha256"]
        ours = sign_headers(
            method,
            HOST,
            path,
            text,
            list(fields.items()),
            payload_hash=payload,
            credentials=PAIR,
            region="us-east-1",
            now=NOW,
        )
        assert dict(ours)["authorization"] == dict(sent)["authorization"]
    changed = list(sent)
    names = [at for at, (name, _) in enumerate(sent) if name in fields]
    match change:
        case 0:
            method = "POST" if method != "POST" else "PUT"
        case 1:
            target = target.replace("/b/", "/c/", 1)
        case 2:
            target += "&y=" if "?" in target else "?y="
        case 3 if names:
            at = other.draw(st.sampled_from(names))
            changed[at] = (changed[at][0], changed[at][1] + "y")
        case 4:
            changed.append(("x-amz-copy-source", "b/other"))
        case _:
            changed = [(n, "other.example" if n == "host" else v) for n, v in changed]
    assert not accepts(method, target, changed)


@short(150)
@given(
    method=methods,
    key=keys,
    query=queries,
    fields=metadata,
    at=st.integers(0, 10_000),
    what=st.characters(codec="ascii"),
)
def test_our_own_urls(
    method: str, key: str, query: list[tuple[str, str]], fields: dict[str, str], at: int, what: str
) -> None:
    """What we presign we accept; with any one character of the URL replaced it means the same or is refused."""
    path = "/b/" + quote(key, safe="/~")
    text = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in query)
    assume(not any(name.lower().startswith("x-amz-") for name, _ in query))
    sent = [("host", HOST), *fields.items()]
    signed = presign(
        method, HOST, path, text, fields.items(), expires_s=60, credentials=PAIR, region="us-east-1", now=NOW
    )
    target = f"{path}?{signed}"
    assert accepts(method, target, sent)
    at %= len(target)
    other = target[:at] + what + target[at + 1 :]
    if accepts(method, other, sent):
        one, two = parse_head(method, target, Headers(sent)), parse_head(method, other, Headers(sent))
        assert (one.bucket, one.key, sorted(one.query)) == (two.bucket, two.key, sorted(two.query))


SCOPED = "AKIDFUZZ/20270115/us-east-1/s3/aws4_request"
WORDS = [
    "AWS4-HMAC-SHA256 ",
    *"AWS4- Bearer Credential= , SignedHeaders= host;x-amz-date host Signature= = / ;".split(),
]
AUTHORIZATIONS = st.lists(
    st.one_of(st.sampled_from(["AWS ", ", ", SCOPED, "0" * 64, *WORDS]), st.text(max_size=5)), max_size=12
).map("".join)
DATES = st.one_of(
    st.sampled_from(
        ["20270115T080000Z", "20270115T250000Z", "Fri, 15 Jan 2027 08:00:00 GMT", "Fri, 99 Jan 99999", "0"]
    ),
    st.text(max_size=20),
)
CONTENT = st.one_of(
    st.sampled_from(["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "e" * 64]), st.text(max_size=5)
)
PARAMETER_NAMES = [
    *(f"X-Amz-{name}" for name in "Algorithm Credential Date Expires SignedHeaders Signature Security-Token".split()),
    "AWSAccessKeyId",
    "Signature",
]
PARAMETER_VALUES = ["AWS4-HMAC-SHA256", SCOPED, "20270115T080000Z", "60", "-1", "9" * 18, "host", "0" * 64]
PARAMETERS = st.lists(
    st.tuples(st.sampled_from(PARAMETER_NAMES), st.one_of(st.sampled_from(PARAMETER_VALUES), st.text(max_size=5))),
    max_size=9,
)


@short(400)
@given(authorization=st.none() | AUTHORIZATIONS, date=DATES, content=CONTENT, parameters=PARAMETERS)
def test_any_claim(authorization: str | None, date: str, content: str, parameters: list[tuple[str, str]]) -> None:
    """No claim is a fault, and none is proved that nobody has signed."""
    target = "/b/k?" + "&".join(f"{name}={quote(value)}" for name, value in parameters)
    fields = [("host", HOST), ("x-amz-date", date), ("x-amz-content-sha256", content)]
    if authorization is not None:
        fields.append(("authorization", authorization))
    try:
        head = parse_head("GET", target, Headers(fields))
        claim = parse_claim(head)
        proved = claim is not None and verify(head, claim, PAIR, NOW) != b""
    except S3Error as error:
        assert 400 <= error.status < 500
        return
    assert not proved
