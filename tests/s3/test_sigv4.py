"""Signatures against the published examples and against botocore, a signer that is not ours."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote, urlsplit

import botocore.auth
import botocore.credentials
import pytest
from botocore.awsrequest import AWSRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.request import Headers, RequestHead, parse_head
from gateway.s3.sigv4 import (
    MAX_KEPT_NAMES,
    UNSIGNED_HEADERS,
    ChunkSigner,
    Credentials,
    _signed,
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


# The published examples


@pytest.mark.parametrize(
    ("method", "target", "headers", "payload", "signature"),
    [
        (
            "GET",
            "/test.txt",
            [("range", "bytes=0-9")],
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test$file.text",
            [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
            sha256(b"Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", "/?lifecycle", [], EMPTY, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            [],
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_published_header_examples(method: str, target: str, headers: Pairs, payload: str, signature: str) -> None:
    """The four requests of S3's page on the Authorization header get the signatures printed there."""
    ours = signed(method, target, headers, host=HOST, payload=payload)
    assert authorization(ours).endswith(f"Signature={signature}")
    assert check(parse_head(method, target, Headers(ours), ("s3.amazonaws.com",))) == KEY


def test_published_presigned_example() -> None:
    """The presigned GET of S3's page on query parameters gets the signature printed there."""
    target = presigned("/test.txt", host=HOST, expires_s=86400)
    assert target.endswith("Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    assert check(head_of("GET", target, [("host", HOST)])) == KEY


def test_published_streaming_example() -> None:
    """Seed and chunk signatures of S3's page on chunked uploads come out in their chain."""
    headers = [
        ("content-encoding", "aws-chunked"),
        ("content-length", "66824"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ]
    ours = signed(
        "PUT",
        "/examplebucket/chunkObject.txt",
        headers,
        host="s3.amazonaws.com",
        payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    )
    head = head_of("PUT", "/examplebucket/chunkObject.txt", ours)
    claim = parse_claim(head)
    assert claim is not None
    assert claim.signature == "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    assert claim.scope == SCOPE
    key = verify(head, claim, CREDENTIALS, NOW)
    signer = ChunkSigner(key, claim.amz_date, claim.scope, claim.signature)
    assert [signer.chunk_signature(sha256(b"a" * n)) for n in (65536, 1024, 0)] == [
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ]


def test_published_trailer_example() -> None:
    """Chunk and trailer signatures of S3's page on trailing headers come out in their chain."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    signer = ChunkSigner(KEY, "20130524T000000Z", SCOPE, seed)
    assert [signer.chunk_signature(sha256(b"a" * n)) for n in (65536, 1024, 0)] == [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ]
    trailer = sha256(b"x-amz-checksum-crc32c:sOO8/Q==\n")
    expected = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    assert signer.trailer_signature(trailer) == expected


# Against botocore

text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
keys = st.lists(st.one_of(text, st.sampled_from(["", ".", "..", "a b", "+", "%", "é", "~", "'"]))).map("/".join)
queries = st.dictionaries(text.filter(bool).filter(lambda n: not n.startswith("X-Amz-")), text, max_size=4)
visible = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
header_fields = st.dictionaries(
    st.sampled_from(["content-type", "content-md5", "x-amz-meta-a", "x-amz-meta-b", "range", "user-agent", "expect"]),
    visible,
)
credential_pairs = st.sampled_from([CREDENTIALS, TEMPORARY])


def raw_target(key: str, query: dict[str, str]) -> str:
    path = "/bucket/" + quote(key, safe="/~")
    items = [f"{quote(n, safe='~')}={quote(v, safe='~')}" for n, v in query.items()]
    return f"{path}?{'&'.join(items)}" if items else path


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


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "DELETE"]),
    key=keys,
    query=queries,
    fields=header_fields,
    credentials=credential_pairs,
    data=st.data(),
)
def test_botocore_signed_headers(
    *,
    method: str,
    key: str,
    query: dict[str, str],
    fields: dict[str, str],
    credentials: Credentials,
    data: st.DataObject,
) -> None:
    """What botocore signs is accepted, our signer computes the same, and any one change is refused."""
    target = raw_target(key, query)
    target, headers = by_botocore(botocore.auth.S3SigV4Auth, method, target, fields, credentials)
    head = head_of(method, target, headers)
    assert check(head) == KEY

    ours = sign_headers(
        method,
        "gateway:8080",
        head.raw_path,
        head.raw_query,
        list(fields.items()),
        payload_hash=EMPTY,
        credentials=credentials,
        region="us-east-1",
        now=NOW,
    )
    assert authorization(ours) == authorization(headers)

    wrong = "POST", target, headers
    kind = data.draw(st.sampled_from(["method", "path", "query", "header", "signature", "date", "scope", "added"]))
    if kind == "path":
        wrong = method, flip(target, data.draw(st.integers(1, 6))), headers
    elif kind == "query":
        wrong = method, f"{target}{'&' if query else '?'}x", headers
    elif kind == "header":
        name = data.draw(st.sampled_from([n for n in dict(headers) if n in authorization(headers)]))
        wrong = method, target, with_header(headers, name, dict(headers)[name] + "x")
    elif kind == "signature":
        at = data.draw(st.integers(-64, -1))
        old = authorization(headers)
        wrong = method, target, with_header(headers, "authorization", flip(old, len(old) + at))
    elif kind == "date":
        wrong = method, target, with_header(headers, "x-amz-date", "20130524T000001Z")
    elif kind == "scope":
        old = authorization(headers).replace("/us-east-1/", "/us-west-1/")
        wrong = method, target, with_header(headers, "authorization", old)
    elif kind == "added":
        wrong = method, target, [*headers, ("x-amz-copy-source", "b/k")]
    assert refusal(head_of(*wrong)).status in (400, 403)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["GET", "PUT"]), keys, queries, credential_pairs, st.data())
def test_botocore_presigned(
    method: str, key: str, query: dict[str, str], credentials: Credentials, data: st.DataObject
) -> None:
    """What botocore presigns is accepted, our presigner computes the same, and any one change is refused."""
    target = raw_target(key, query)
    fields = {"x-amz-meta-a": "a  b"} if method == "PUT" else {}
    signed_target, headers = by_botocore(
        botocore.auth.S3SigV4QueryAuth, method, target, fields, credentials, expires=604800
    )
    head = head_of(method, signed_target, headers)
    assert check(head, NOW + 16 * 60) == KEY
    ours = presigned(
        target,
        list(fields.items()),
        method=method,
        host="gateway:8080",
        expires_s=604800,
        credentials=credentials,
    )
    assert ours.rpartition("=")[2] == signed_target.rpartition("=")[2]

    wrong = method, flip(signed_target, len(signed_target) - data.draw(st.integers(1, 64))), headers
    kind = data.draw(st.sampled_from(["signature", "method", "path", "query", "expires", "added"]))
    if kind == "method":
        wrong = "POST", signed_target, headers
    elif kind == "path":
        wrong = method, flip(signed_target, data.draw(st.integers(1, 6))), headers
    elif kind == "query":
        wrong = method, f"{signed_target}&versionId=1", headers
    elif kind == "expires":
        wrong = method, signed_target.replace("604800", "604799"), headers
    elif kind == "added":
        wrong = method, signed_target, [*headers, ("x-amz-copy-source", "b/k")]
    assert refusal(head_of(*wrong)).status == 403


# The canonical form


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


# What is not covered


def test_unsigned_amz_header() -> None:
    """An `x-amz-*` header that was not signed is refused and named, presigned or not."""
    target = presigned(method="PUT")
    copy = ("x-amz-copy-source", "b/secret")
    for head in (head_of("PUT", target, [("host", "gateway"), copy]), head_of("PUT", "/b/k", [*signed(), copy])):
        refused = refusal(head)
        assert (refused.code, refused.elements["HeadersNotSigned"]) == ("AccessDenied", "x-amz-copy-source")


def test_host_must_be_signed() -> None:
    """A signature that leaves out the host is refused, however right it may be."""
    headers = signed()
    old = authorization(headers).replace("SignedHeaders=host;", "SignedHeaders=")
    refused = refusal(head_of("PUT", "/b/k", with_header(headers, "authorization", old)))
    assert (refused.code, refused.elements["HeadersNotSigned"]) == ("AccessDenied", "host")


def test_signed_header_that_is_missing() -> None:
    """A header that was signed, even as empty, and does not arrive makes the signature wrong."""
    headers = signed(headers=[("x-amz-meta-a", "")])
    assert check(head_of("PUT", "/b/k", headers)) == KEY
    refused = refusal(head_of("PUT", "/b/k", without_header(headers, "x-amz-meta-a")))
    assert refused.code == "SignatureDoesNotMatch"


def test_other_secret() -> None:
    """Another secret key verifies nothing, and the refusal names the access key only."""
    head = head_of("PUT", "/b/k", signed())
    claim = parse_claim(head)
    assert claim is not None
    with pytest.raises(S3Error) as caught:
        verify(head, claim, Credentials(ACCESS, "other"), NOW)
    assert (caught.value.code, caught.value.elements) == ("SignatureDoesNotMatch", {"AWSAccessKeyId": ACCESS})


@pytest.mark.parametrize("signature", ["", "é", "\udcff", "0" * 63, "g" * 64])
def test_signature_of_any_text(signature: str) -> None:
    """A signature that is no hex digits is an ordinary mismatch, or malformed when empty."""
    headers = signed()
    old = authorization(headers).rpartition("=")[0]
    refused = refusal(head_of("PUT", "/b/k", with_header(headers, "authorization", f"{old}={signature}")))
    assert refused.code == ("SignatureDoesNotMatch" if signature else "AuthorizationHeaderMalformed")


def test_unsigned_trailer_needs_a_signature() -> None:
    """STREAMING-UNSIGNED-PAYLOAD-TRAILER exempts the payload alone: bad or query-only credentials are 403."""
    streaming = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    headers = signed(payload=streaming)
    assert check(head_of("PUT", "/b/k", headers)) == KEY
    old = authorization(headers)
    bad = with_header(headers, "authorization", flip(old, len(old) - 1))
    assert refusal(head_of("PUT", "/b/k", bad)).status == 403
    sent = [("host", "gateway"), ("x-amz-content-sha256", streaming)]
    whole = presigned(headers=sent[1:], method="PUT")
    for target in (whole, f"/b/k?X-Amz-Credential={ACCESS}/{SCOPE}"):
        refused = refusal(head_of("PUT", target, sent))
        assert (refused.code, refused.status) == ("AccessDenied", 403)


def test_secrets_are_not_shown() -> None:
    """Neither credentials nor a claim show secret, token or signature when printed."""
    assert SECRET not in repr(TEMPORARY)
    assert "FwoG" not in repr(TEMPORARY)
    claim = parse_claim(head_of("PUT", "/b/k", signed()))
    assert claim is not None
    assert claim.signature not in repr(claim)
    assert "FwoG" not in repr(replace(claim, session_token=TEMPORARY.session_token))


# Time


@pytest.mark.parametrize("offset", [-900, 900])
def test_clock_within_skew(offset: int) -> None:
    """A clock exactly 15 minutes off is still accepted."""
    assert check(head_of("PUT", "/b/k", signed()), NOW + offset) == KEY


@pytest.mark.parametrize("offset", [-960, -901, 901, 960])
def test_clock_out_of_skew(offset: int) -> None:
    """A clock further off is refused, and told the server's time."""
    refused = refusal(head_of("PUT", "/b/k", signed(now=NOW)), NOW + offset)
    assert (refused.code, refused.status) == ("RequestTimeTooSkewed", 403)
    moment = datetime.fromtimestamp(NOW + offset, UTC)
    assert refused.elements == {
        "RequestTime": "20130524T000000Z",
        "ServerTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "MaxAllowedSkewMilliseconds": "900000",
    }


def test_presigned_lifetime() -> None:
    """A presigned URL works to its last second and no longer, and not 15 minutes before it was signed."""
    head = head_of("GET", presigned(expires_s=1), [("host", "gateway")])
    assert check(head, NOW + 1) == KEY
    assert check(head, NOW - 900) == KEY
    expired = refusal(head, NOW + 2)
    assert (expired.code, expired.status, expired.message) == ("AccessDenied", 403, "Request has expired")
    assert expired.elements == {
        "X-Amz-Expires": "1",
        "Expires": "2013-05-24T00:00:01Z",
        "ServerTime": "2013-05-24T00:00:02Z",
    }
    early = refusal(head, NOW - 901)
    assert (early.code, early.message) == ("AccessDenied", "Request is not yet valid")


def test_presigned_for_a_week() -> None:
    """A URL for 604,800 s works when it is 16 minutes old, and when it is a week old."""
    head = head_of("GET", presigned(expires_s=604800), [("host", "gateway")])
    assert check(head, NOW + 16 * 60) == KEY
    assert check(head, NOW + 604800) == KEY


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
