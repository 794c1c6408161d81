"""What of a request goes upstream, and what of an answer comes back."""

from __future__ import annotations

import pytest

from gateway.s3.fencing import META_KEY, META_NONCE, META_TOKEN, SPOKEN
from gateway.s3.forward import forwarded_headers, forwarded_query, own_conditions, returned_headers
from gateway.s3.request import Headers, RequestHead, parse_head

Fields = list[tuple[str, str]]


def head_of(fields: Fields, target: str = "/b/k") -> RequestHead:
    return parse_head("PUT", target, Headers(fields))


def forwarded(*fields: tuple[str, str]) -> Fields:
    return forwarded_headers(head_of(list(fields)))


KEPT = [
    ("content-type", "text/plain; charset=utf-8"),
    ("content-encoding", "gzip"),
    ("content-disposition", 'attachment; filename="a,b"'),
    ("cache-control", "no-cache"),
    ("expires", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
    ("range", "bytes=0-1,5-6"),
    ("if-match", '"e"'),
    ("if-none-match", "*"),
    ("accept-encoding", "identity"),
    ("x-amz-meta-a", "a  b"),
    ("x-amz-meta-fencing", "not ours"),
    ("x-amz-acl", "private"),
    ("x-amz-tagging", "a=b"),
    ("x-amz-copy-source", "b/a%7B%2Bb"),
    ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
    ("x-amz-server-side-encryption-customer-key", "c2VjcmV0"),
    ("x-amz-server-side-encryption-customer-key-md5", "bWQ1"),
    ("x-amz-copy-source-server-side-encryption-customer-key", "c2VjcmV0"),
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-sdk-checksum-algorithm", "CRC32"),
    ("x-amz-object-lock-mode", "GOVERNANCE"),
    ("x-amz-bypass-governance-retention", "true"),
    ("x-amz-expected-bucket-owner", "123456789012"),
    ("x-amz-mfa", "serial code"),
]


def test_kept() -> None:
    """What belongs to the object and its conditions goes upstream unchanged and in its order."""
    assert forwarded(*KEPT) == KEPT


@pytest.mark.parametrize(
    "name",
    [
        *"authorization x-amz-date x-amz-content-sha256 x-amz-security-token".split(),
        *"connection keep-alive proxy-connection te trailer transfer-encoding upgrade".split(),
        *"proxy-authenticate proxy-authorization host expect content-length".split(),
        *"x-amz-decoded-content-length x-amz-trailer".split(),
        *"forwarded x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-forwarded-prefix".split(),
        *sorted(SPOKEN),
        META_NONCE,
        "x-amz-meta-fencing-other",
    ],
)
def test_not_forwarded(name: str) -> None:
    """Signature, framing, hop-by-hop fields, the way to the gateway, and what was said to the fence stay here."""
    assert forwarded(("a", "1"), (name, "x"), ("b", "2")) == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize("name", ["x_amz_copy_source", "x-amz_copy-source", "if_none_match", "content_type", "_"])
def test_what_some_stores_take_for_another_name_stays_here(name: str) -> None:
    """An underscore is a hyphen to them; user metadata alone may have one, as SDKs write it."""
    assert forwarded(("x-amz-meta-my_note", "1"), (name, "x")) == [("x-amz-meta-my_note", "1")]


@pytest.mark.parametrize(
    "name",
    [
        *"seaweed-x-amz-version-id x-seaweedfs-upload-id s3-identity-id s3-account-id".split(),
        *"x-goog-copy-source x-oss-copy-source x-obs-copy-source x-cos-copy-source x-oss-copy-source-range".split(),
    ],
)
def test_what_a_store_says_in_words_of_its_own_stays_here(name: str) -> None:
    """SeaweedFS keeps such fields as its own notes of the object; other stores make a copy of what is a PUT here."""
    assert forwarded(("a", "1"), (name, "x"), ("b", "2")) == [("a", "1"), ("b", "2")]


def test_named_by_connection() -> None:
    """Fields that Connection names belong to the hop (RFC 9110, 7.6.1), in any letter case and in several fields."""
    fields = [("connection", "close, X-Hop"), ("x-hop", "1"), ("connection", "x-other"), ("x-other", "2"), ("x-c", "3")]
    assert forwarded(*fields) == [("x-c", "3")]


@pytest.mark.parametrize(
    "name", ["x-amz-copy-source", "if-none-match", "content-type", "range", "cache-control", "expires"]
)
def test_connection_takes_nothing_away_that_s3_reads(name: str) -> None:
    """No signature covers it: a copy would become an empty object, and a condition be lost."""
    assert forwarded((name, "1"), ("connection", f"close, {name.title()}")) == [(name, "1")]


def test_doubles_are_joined() -> None:
    """Fields of one name become one, joined by a comma, at the place of the first."""
    fields = [("x-amz-meta-a", "1"), ("x-amz-meta-b", "2"), ("x-amz-meta-a", "3")]
    assert forwarded(*fields) == [("x-amz-meta-a", "1,3"), ("x-amz-meta-b", "2")]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["aws-chunked"], None),
        (["AWS-Chunked"], None),
        (["aws-chunked,gzip"], "gzip"),
        (["gzip, aws-chunked"], "gzip"),
        (["aws-chunked", "gzip"], "gzip"),
        (["aws-chunked, gzip, br"], "gzip, br"),
        (["gzip, br", "aws-chunked"], "gzip, br"),
        (["x-aws-chunked"], "x-aws-chunked"),
        (["gzip, br"], "gzip, br"),
        ([""], ""),
    ],
)
def test_content_encoding(sent: list[str], kept: str | None) -> None:
    """`aws-chunked` goes with its framing; what the object is encoded with stays."""
    assert forwarded(*(("content-encoding", value) for value in sent)) == (
        [] if kept is None else [("content-encoding", kept)]
    )


def test_a_trailers_name_goes_no_further_than_the_trailer() -> None:
    """S3 refuses a checksum's algorithm without its value; without a trailer the name is the client's own."""
    named = ("x-amz-sdk-checksum-algorithm", "CRC32")
    assert forwarded(named, ("x-amz-trailer", "x-amz-checksum-crc32")) == []
    assert forwarded(named) == [named]


def test_without() -> None:
    """The caller takes out what it replaces, and the MD5 of a body that it has rewritten."""
    head = head_of([("if-match", "x"), ("content-md5", "y"), ("content-type", "z")])
    assert forwarded_headers(head, keep_md5=False, without=frozenset({"if-match"})) == [("content-type", "z")]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("", ""),
        ("acl", "acl"),
        ("partNumber=1&uploadId=a%2Fb+c", "partNumber=1&uploadId=a%2Fb+c"),
        ("prefix=x-amz-date", "prefix=x-amz-date"),
        ("X-Amz-Algorithm=A&X-Amz-Credential=C&tagging&X-Amz-Date=D&X-Amz-Expires=1", "tagging"),
        ("X-Amz-SignedHeaders=host&X-Amz-Signature=S&X-Amz-Security-Token=T&X-Amz-Content-Sha256=H", ""),
        ("x-amz-signature=S&versionId=v", "versionId=v"),
        ("X%2DAmz%2DSignature=S&X-Amz-%43redential=C&a=%41", "a=%41"),
        ("x-amz-acl=private&X-Amz-Signature=S&x-id=PutObject", "x-amz-acl=private&x-id=PutObject"),
        ("x-amz-a;tagging&prefix=a;b%3Bc&X-Amz-SignedHeaders=a;host", "x-amz-a%3Btagging&prefix=a%3Bb%3Bc"),
    ],
)
def test_query(sent: str, kept: str) -> None:
    """The query goes upstream byte for byte, but for a semicolon, at which some servers split it, and without the
    parameters of a presigned signature, however spelt."""
    assert forwarded_query(head_of([], f"/b/k?{sent}")) == kept


def test_own_conditions() -> None:
    """The client's own conditions are found; a condition on a copy's source is none of the object's."""
    assert own_conditions(head_of([])) == frozenset()
    assert own_conditions(head_of([("x-amz-copy-source-if-match", "e"), ("if-modified-since", "x")])) == frozenset()
    fields = [("if-match", "e"), ("if-none-match", "*")]
    assert own_conditions(head_of(fields)) == frozenset({"if-match", "if-none-match"})


def test_returned() -> None:
    """An answer comes back without what belongs to the upstream's connection, and without the upstream's ids."""
    fields = [("etag", "e"), ("connection", "close"), ("transfer-encoding", "chunked"), ("content-length", "3")]
    fields += [("keep-alive", "x"), ("x-amz-request-id", "1"), ("x-amz-id-2", "2"), ("x-amz-version-id", "v")]
    for of_object in (False, True):
        assert returned_headers(fields, of_object=of_object) == [("etag", "e"), ("x-amz-version-id", "v")]
    assert returned_headers([], of_object=True) == []


def test_returned_of_an_object() -> None:
    """Readers see token and key under the gateway's names, none of its metadata, and all else as it came; what a
    bucket's answer holds is not taken for an object's."""
    fields = [
        ("etag", "e"),
        (META_KEY, "job%207"),
        ("x-amz-meta-a", "1"),
        (META_TOKEN, "33"),
        (META_NONCE, "n"),
        ("x-amz-meta-fencing-later", "x"),
        ("x-amz-meta-a", "2"),
    ]
    assert returned_headers(fields, of_object=False) == fields
    assert returned_headers(fields, of_object=True) == [
        ("etag", "e"),
        ("X-Fencing-Object-Key", "job%207"),
        ("x-amz-meta-a", "1"),
        ("X-Fencing-Object-Token", "33"),
        ("x-amz-meta-a", "2"),
    ]
