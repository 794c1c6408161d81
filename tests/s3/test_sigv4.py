"""Signatures against the published examples and against botocore, a signer that is not ours."""

from __future__ import annotations

from urllib.parse import quote

import botocore.auth
import botocore.credentials
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.s3.request import Headers, parse_head
from gateway.s3.sigv4 import (
    ChunkSigner,
    Credentials,
    parse_claim,
    sign_headers,
    verify,
)
from tests.s3.signing import (
    CREDENTIALS,
    EMPTY,
    HOST,
    KEY,
    NOW,
    SCOPE,
    TEMPORARY,
    Pairs,
    authorization,
    by_botocore,
    check,
    flip,
    head_of,
    presigned,
    refusal,
    sha256,
    signed,
    with_header,
)

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
