"""A request's target as values: the keys and paths that other servers get wrong."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.request import MAX_KEPT_BYTES, Headers, RequestHead, _names, decoded, parse_head, parse_query

SUFFIXES = ("s3.example.com", "fence.test")


def head_of(target: str, host: str = "127.0.0.1:8080", method: str = "GET") -> RequestHead:
    return parse_head(method, target, Headers([("host", host)]), SUFFIXES)


def refusal(target: str, host: str = "127.0.0.1:8080") -> S3Error:
    headers = Headers([("host", host)])
    with pytest.raises(S3Error) as caught:
        parse_head("PUT", target, headers, SUFFIXES)
    return caught.value


@pytest.mark.parametrize(
    ("target", "bucket", "key"),
    [
        ("/", None, None),
        ("/b", "b", None),
        ("/b/", "b", None),
        ("/b/k", "b", "k"),
        ("/b/foo%27bar", "b", "foo'bar"),
        ("/b/a%3Ab", "b", "a:b"),
        ("/b//foo", "b", "/foo"),
        ("/b/123//456", "b", "123//456"),
        ("/b/x/.", "b", "x/."),
        ("/b/x/..", "b", "x/.."),
        ("/b/foo/../key", "b", "foo/../key"),
        ("/b/../../key", "b", "../../key"),
        ("/b/%2E%2E/key", "b", "../key"),
        ("/b//", "b", "/"),
        ("/b/dir/", "b", "dir/"),
        ("/b/a%2Fb", "b", "a/b"),
        ("/b/10%2B2.jpg", "b", "10+2.jpg"),
        ("/b/10+2.jpg", "b", "10+2.jpg"),
        ("/b/q%3Fx", "b", "q?x"),
        ("/b/a%2520b", "b", "a%20b"),
        ("/b/%C3%A9", "b", "é"),
        ("/b/a%0Ab", "b", "a\nb"),
        ("/b/%20", "b", " "),
        ("/%62/k", "b", "k"),
        ("/My_Old.Bucket/k", "My_Old.Bucket", "k"),
    ],
)
def test_path_style(target: str, bucket: str | None, key: str | None) -> None:
    """Dots, slashes and escapes are part of the key, decoded once; on the way they stay as they were sent."""
    head = head_of(target)
    assert (head.bucket, head.key, head.raw_path) == (bucket, key, target)
    assert head.raw_key == target.removeprefix("/").partition("/")[2]


@pytest.mark.parametrize(
    ("host", "target", "bucket", "key"),
    [
        ("b.s3.example.com", "/k", "b", "k"),
        ("b.s3.example.com:8080", "/k", "b", "k"),
        ("B.S3.Example.COM", "/k", "b", "k"),
        ("a.b.s3.example.com", "/k", "a.b", "k"),
        ("b.fence.test", "/", "b", None),
        ("b.s3.example.com", "//foo", "b", "/foo"),
        ("b.s3.example.com", "/c/k", "b", "c/k"),
        ("b.s3.example.com", "/q%3Fx", "b", "q?x"),
        # No suffix of ours: the first label is no bucket.
        ("s3.example.com", "/b/k", "b", "k"),
        ("s3.example.com:80", "/b/k", "b", "k"),
        ("b.s3.example.org", "/b/k", "b", "k"),
        ("xs3.example.com", "/b/k", "b", "k"),
        ("[::1]:8080", "/b/k", "b", "k"),
        ("[::1]", "/b/k", "b", "k"),
        ("", "/b/k", "b", "k"),
    ],
)
def test_virtual_host_style(host: str, target: str, bucket: str, key: str | None) -> None:
    """A host names a bucket under a configured suffix and nowhere else."""
    head = head_of(target, host)
    assert (head.bucket, head.key) == (bucket, key)


def test_no_host() -> None:
    """A request without Host is read path style."""
    assert parse_head("GET", "/b/k", Headers([]), SUFFIXES).bucket == "b"


@pytest.mark.parametrize(
    ("target", "bucket", "key", "raw_query"),
    [
        ("http://127.0.0.1:8080/b/k?x=1", "b", "k", "x=1"),
        ("HTTPS://127.0.0.1:8080/b/k", "b", "k", ""),
        ("http://127.0.0.1:8080", None, None, ""),
        ("http://127.0.0.1:8080?x", None, None, "x"),
        ("http://127.0.0.1:8080//k/x", "", "", ""),
        ("http://other/b/k", "b", "k", ""),
        ("http://other/b/http://k/", "b", "http://k/", ""),
    ],
)
def test_absolute_form(target: str, bucket: str | None, key: str | None, raw_query: str) -> None:
    """A target in absolute form is read like one in origin form."""
    if bucket == "":
        assert refusal(target).code == "InvalidBucketName"
        return
    head = head_of(target)
    assert (head.bucket, head.key, head.raw_query) == (bucket, key, raw_query)


def test_absolute_form_in_a_virtual_host() -> None:
    """A target that names the same bucket by its host is read; one that names another than was signed is not."""
    head = head_of("http://b.s3.example.com/k", "b.s3.example.com:80")
    assert (head.bucket, head.key, head.raw_path) == ("b", "k", "/k")
    assert refusal("http://c.s3.example.com/k", "b.s3.example.com").code == "InvalidURI"
    assert refusal("http://c.s3.example.com/k", "127.0.0.1").code == "InvalidURI"


@pytest.mark.parametrize(
    ("target", "host", "code"),
    [
        ("*", "h", "InvalidURI"),
        ("b/k", "h", "InvalidURI"),
        ("ftp://h/b/k", "h", "InvalidURI"),
        ("", "h", "InvalidURI"),
        ("/b/%FF", "h", "InvalidURI"),
        ("/b/%ED%A0%80", "h", "InvalidURI"),
        ("/b/\udcff", "h", "InvalidURI"),
        ("/b/k?%FF=1", "h", "InvalidURI"),
        ("/b/k?a=%FF", "h", "InvalidURI"),
        # Some readers drop an escape that is none, some the whole parameter.
        ("/b/%zz", "h", "InvalidURI"),
        ("/b/100%", "h", "InvalidURI"),
        ("/b%2/k", "h", "InvalidURI"),
        ("/b/k?versionId=%zz", "h", "InvalidURI"),
        ("/b/k?acl%=", "h", "InvalidURI"),
        ("//k", "h", "InvalidBucketName"),
        ("/b%2Fk", "h", "InvalidBucketName"),
        ("/b%2fc/k", "h", "InvalidBucketName"),
        ("/%2F/k", "h", "InvalidBucketName"),
        ("/./k", "h", "InvalidBucketName"),
        ("/../k", "h", "InvalidBucketName"),
        ("/b%00/k", "h", "InvalidBucketName"),
        ("/b%3Fx/k", "h", "InvalidBucketName"),
        ("/b%20/k", "h", "InvalidBucketName"),
        ("/" + "b" * 256 + "/k", "h", "InvalidBucketName"),
        # What a path may not name, a host may not, either.
        ("/k", ".s3.example.com", "InvalidBucketName"),
        ("/k", "b/c.s3.example.com", "InvalidBucketName"),
        ("/k", "..s3.example.com", "InvalidBucketName"),
        ("/k", "b?x.s3.example.com", "InvalidBucketName"),
        ("/k", "b%2Fc.s3.example.com", "InvalidBucketName"),
    ],
)
def test_refused_targets(target: str, host: str, code: str) -> None:
    """A target that cannot be read, or whose bucket could move the border to the key, is refused."""
    error = refusal(target, host)
    assert (error.code, error.status) == (code, 400)


def test_key_length() -> None:
    """1024 bytes of UTF-8 are a key, one more is KeyTooLongError; the length is that of the decoded key."""
    assert head_of("/b/" + "a" * 1024).key == "a" * 1024
    assert head_of("/b/" + "%C3%A9" * 512).key == "é" * 512
    for raw in ("a" * 1025, "%C3%A9" * 512 + "a"):
        error = refusal("/b/" + raw)
        assert (error.code, error.status) == ("KeyTooLongError", 400)
        assert error.elements == {"Size": "1025", "MaxSizeAllowed": "1024"}


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        ("", ()),
        ("x", (("x", ""),)),
        ("x=", (("x", ""),)),
        ("a=b=c", (("a", "b=c"),)),
        ("&&a=1&", (("a", "1"),)),
        ("=1", (("", "1"),)),
        ("b=2&a=1&b=3", (("b", "2"), ("a", "1"), ("b", "3"))),
        ("prefix=a%20b&delimiter=%2F", (("prefix", "a b"), ("delimiter", "/"))),
        ("a+b=c+d%2Be", (("a b", "c d+e"),)),
        ("a=1?b=2", (("a", "1?b=2"),)),
        ("a;b=1", (("a;b", "1"),)),
    ],
)
def test_query(raw: str, pairs: tuple[tuple[str, str], ...]) -> None:
    """A query is its decoded pairs in their order."""
    assert parse_query(raw) == pairs


def test_param() -> None:
    """A parameter is found by its name, the first of several; None where it is absent."""
    head = head_of("/b/k?a=1&a=2&x")
    assert (head.param("a"), head.param("x"), head.param("A")) == ("1", "", None)


keys = st.text(min_size=1, max_size=40)


@given(keys, st.sampled_from(["", "/", "/~", "!*'()"]))
def test_any_key(key: str, safe: str) -> None:
    """Every key arrives as it was meant, however much of it was escaped."""
    raw = quote(key, safe=safe)
    head = head_of(f"/b/{raw}")
    assert (head.bucket, head.key, head.raw_key) == ("b", key, raw)
    virtual = head_of(f"/{raw}", "b.fence.test")
    assert (virtual.bucket, virtual.key, virtual.raw_key) == ("b", key, raw)


def test_headers() -> None:
    """Fields keep their order and doubles; names are lower-cased, values are UTF-8 or keep their bytes."""
    raw = [(b"X-A", b"1"), (b"x-b", "é".encode()), (b"x-a", b"2"), (b"x-c", b"\xff")]
    headers = Headers.of_raw(raw)
    assert headers.pairs == tuple(decoded(raw)) == (("x-a", "1"), ("x-b", "é"), ("x-a", "2"), ("x-c", "\udcff"))
    assert headers.get("x-a") == "1"
    assert headers.all("x-a") == ["1", "2"]
    assert (headers.get("x-d"), headers.all("x-d"), "x-d" in headers, "x-b" in headers) == (None, [], False, True)
    assert list(headers.first) == ["x-a", "x-b", "x-c"]


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
@pytest.mark.parametrize("at", range(3))
def test_white_space_after_a_value_is_none_of_it(at: int, space: bytes) -> None:
    """Wherever the field stands; what stands inside a value stays, a no-break space too (RFC 9110, 5.5)."""
    raw = [(b"a", b"1  2"), (b"b", b""), (b"c", "3\xa0".encode())]
    raw[at] = (raw[at][0], raw[at][1] + space)
    assert Headers.of_raw(raw).pairs == (("a", "1  2"), ("b", ""), ("c", "3\xa0"))


def test_no_headers_and_fields_with_line_feeds() -> None:
    """A head without fields is one; a line feed in a field, which no parser passes, is never split into two fields."""
    assert Headers.of_raw([]).pairs == ()
    for raw in ([(b"a", b"1\nb: 2")], [(b"a\nb", b"1")]):
        with pytest.raises(ValueError):
            Headers.of_raw(raw)


def test_long_lists_of_names_are_not_kept() -> None:
    """Before any proof nobody can fill the memory with names; they are read all the same."""
    long = b"X-" + b"n" * MAX_KEPT_BYTES
    kept = _names.cache_info().currsize
    assert Headers.of_raw([(long, b"1")]).pairs == ((long.decode().lower(), "1"),)
    assert _names.cache_info().currsize == kept
