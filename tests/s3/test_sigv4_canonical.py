"""The canonical form: what is one request however it is written, and what is not."""

from __future__ import annotations

import re

import botocore.auth
import botocore.credentials
import pytest

from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, parse_head
from gateway.s3.sigv4 import (
    MAX_KEPT_NAMES,
    UNSIGNED_HEADERS,
    _signed,
)
from tests.s3.signing import (
    CREDENTIALS,
    KEY,
    Pairs,
    authorization,
    by_botocore,
    check,
    head_of,
    presigned,
    refusal,
    signed,
    with_header,
    without_header,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/b/foo'bar", "/b/foo%27bar"),
        ("/b/a%3ab", "/b/a%3Ab"),
        ("/b/a:b", "/b/a%3Ab"),
        ("/b/10+2.jpg", "/b/10%2B2.jpg"),
        ("/b/%7Ea", "/b/~a"),
        ("/b/k?x", "/b/k?x="),
        ("/b?prefix=a%20b&delimiter=/", "/b?delimiter=%2F&prefix=a+b"),
        ("/b?&b=2&&a=1", "/b?a=1&b=2"),
        ("/b?a=2&a=1", "/b?a=1&a=2"),
    ],
)
def test_spellings_of_one_target(one: str, other: str) -> None:
    """Two spellings that mean the same have one signature, whichever of them was signed."""
    assert check(head_of("GET", one, signed("GET", other))) == KEY
    assert check(head_of("GET", other, signed("GET", one))) == KEY


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/b/x/.", "/b/x/"),
        ("/b//foo", "/b/foo"),
        ("/b/foo/../key", "/b/key"),
        ("/b/123//456", "/b/123/456"),
        ("/b/q%3Fx", "/b/q?x"),
        ("/b?x=a+b", "/b?x=a%2Bb"),
        ("/b?a%3Db=", "/b?a=b"),
        ("/b/k%2527", "/b/k%27"),
    ],
)
def test_targets_that_differ(one: str, other: str) -> None:
    """Dots, doubled slashes and escaped delimiters are part of the name: one's signature is not the other's."""
    assert check(head_of("GET", one, signed("GET", one))) == KEY
    assert refusal(head_of("GET", other, signed("GET", one))).code == "SignatureDoesNotMatch"


def test_sorting_is_by_encoded_name() -> None:
    """`a-b` sorts before `a%20`'s decoded form only by its encoding; the order on the wire is no matter."""
    by_wire = by_botocore(botocore.auth.S3SigV4Auth, "GET", "/b?%C3%A9=1&a=2&A=3&a-b=4", {}, CREDENTIALS)
    assert check(head_of("GET", *by_wire)) == KEY


@pytest.mark.parametrize(
    ("sent", "same"),
    [
        ([("x-amz-meta-d", " a  b ")], [("x-amz-meta-d", "a b")]),
        ([("x-amz-meta-d", "a\t b")], [("x-amz-meta-d", "a b")]),
        ([("x-amz-meta-a", "1"), ("x-amz-meta-a", "2 ")], [("x-amz-meta-a", "1,2")]),
        ([("x-amz-meta-t", "grün   weiß")], [("x-amz-meta-t", "grün weiß")]),
    ],
)
def test_canonical_values(sent: Pairs, same: Pairs) -> None:
    """Values are trimmed, runs of spaces collapse, and several fields of a name are joined by commas."""
    theirs = signed(headers=same)
    assert check(head_of("PUT", "/b/k", [*sent, *without_header(theirs, sent[0][0])])) == KEY


def test_values_are_hashed_as_wire_bytes() -> None:
    """A value that is no UTF-8 verifies as its bytes; a no-break space is no space."""
    latin = signed(headers=[("x-amz-meta-t", "gr\udcfcn")])
    assert check(head_of("PUT", "/b/k", latin)) == KEY
    plain = signed(headers=[("x-amz-meta-t", "a b")])
    assert refusal(head_of("PUT", "/b/k", with_header(plain, "x-amz-meta-t", "a\u00a0b"))).status == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transfer-encoding", "chunked"),
        ("content-length", "0"),
        ("expect", "100-continue"),
        ("accept-encoding", "identity;q=1, gzip"),
        ("user-agent", "Old SDK  1.0"),
    ],
)
def test_signed_hop_headers(name: str, value: str) -> None:
    """A header that proxies usually alter counts as it arrived when the client has signed it."""
    target = presigned(headers=[(name, value)])
    assert check(head_of("GET", target, [("host", "gateway"), (name, value)])) == KEY
    changed = [("host", "gateway"), (name, value + "x")]
    assert refusal(head_of("GET", target, changed)).code == "SignatureDoesNotMatch"


def test_sign_leaves_out_what_proxies_alter() -> None:
    """None of the headers that may change on the way is signed by us."""
    headers = [(name, "x") for name in sorted(UNSIGNED_HEADERS)]
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date," in authorization(signed(headers=headers))


@pytest.mark.parametrize(
    ("signed_for", "used"),
    [
        ("gateway", "gateway:80"),
        ("gateway", "gateway:443"),
        ("gateway:80", "gateway"),
        ("gateway:443", "gateway"),
        ("[::1]", "[::1]:80"),
        ("[::1]:443", "[::1]"),
    ],
)
def test_default_port(signed_for: str, used: str) -> None:
    """The scheme's default port may be written or left out; what a proxy says of it changes nothing."""
    target = presigned(host=signed_for)
    assert check(head_of("GET", target, [("host", used), ("x-forwarded-port", "8443")])) == KEY


@pytest.mark.parametrize(
    ("signed_for", "used"), [("gateway", "gateway:8080"), ("gateway:8080", "gateway"), ("[::1]:8080", "[::1]")]
)
def test_other_port(signed_for: str, used: str) -> None:
    """Any other port is part of the host, whatever X-Forwarded-Port and X-Forwarded-Host say."""
    forwarded = [("x-forwarded-port", "8080"), ("x-forwarded-host", signed_for)]
    refused = refusal(head_of("GET", presigned(host=signed_for), [("host", used), *forwarded]))
    assert refused.code == "SignatureDoesNotMatch"


def test_absolute_form() -> None:
    """A target in absolute form verifies with the Host header."""
    headers = signed("GET", "/b/k", host="gateway")
    assert check(head_of("GET", "http://gateway/b/k", headers)) == KEY


def test_signature_stays_with_its_bucket() -> None:
    """Neither another host in an absolute target nor an escaped slash takes a signature to another bucket."""
    host = [("host", "one.s3.example.com")]
    target = presigned("/k", host="one.s3.example.com")
    suffixes = ("s3.example.com",)
    head = parse_head("GET", f"http://one.s3.example.com:80{target}", Headers(host), suffixes)
    assert (head.bucket, check(head)) == ("one", KEY)
    with pytest.raises(S3Error, match="parse the specified URI"):
        parse_head("GET", f"http://two.s3.example.com{target}", Headers(host), suffixes)
    with pytest.raises(S3Error, match="bucket is not valid"):
        parse_head("GET", presigned("/b/x/k").replace("/b/x/k", "/b%2Fx/k"), Headers([("host", "gateway")]))


def test_trace_headers_may_be_unsigned() -> None:
    """`amz-sdk-*` and a trace id added on the way need no signature."""
    added = [("amz-sdk-request", "attempt=1"), ("x-amzn-trace-id", "Root=1")]
    assert check(head_of("PUT", "/b/k", [*signed(), *added])) == KEY


def test_fields_of_one_name_are_signed_together() -> None:
    """What we sign with a name twice is what arrives, in that order and joined by a comma."""
    sent = signed(headers=[("x-amz-meta-a", "1"), ("x-amz-meta-b", " 3 "), ("x-amz-meta-a", " 2  2 ")])
    assert check(head_of("PUT", "/b/k", sent)) == KEY
    swapped = [("x-amz-meta-a", {"1": " 2  2 ", " 2  2 ": "1"}[v]) if n == "x-amz-meta-a" else (n, v) for n, v in sent]
    assert refusal(head_of("PUT", "/b/k", swapped)).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("value", ["a  b", " a", "a ", "a\tb", "a : b", "é  b", "a\u00a0b", "\udcff"])
def test_values_with_white_space(value: str) -> None:
    """White space is collapsed wherever it stands, so that a proxy that does so on the way breaks no signature."""
    sent = signed(headers=[("x-amz-meta-a", value)])
    collapsed = [(n, re.sub(" +", " ", v).strip(" ") if n == "x-amz-meta-a" else v) for n, v in sent]
    assert check(head_of("PUT", "/b/k", collapsed)) == KEY


def test_of_many_signed_headers_nothing_is_kept() -> None:
    """More headers than clients sign are verified as any others, and no cache holds on to their names."""
    sent = signed(headers=[(f"x-amz-meta-{number}", "x") for number in range(MAX_KEPT_NAMES)])
    assert check(head_of("PUT", "/b/k", sent)) == KEY
    kept = _signed.cache_info().currsize
    other = signed(headers=[(f"x-amz-meta-other-{number}", "x") for number in range(MAX_KEPT_NAMES)])
    made = _signed.cache_info().currsize
    assert check(head_of("PUT", "/b/k", other)) == KEY
    assert _signed.cache_info().currsize == made <= kept + 1
