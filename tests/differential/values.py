"""The strange values that requests are made of: keys, metadata, headers, ranges, conditions."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.steps import Bytes, ETagOf, ModifiedOf, Value
from tests.end_to_end.wire import MODES

Pairs = tuple[tuple[str, Value], ...]

_ODD_KEYS = (
    "a", "k", "a/b", "a/b/c", "a b", "a+b", "a%2Bb", "100%", "a&b<c>", "q?x=1", "semi;colon", "h#sh", "it's", 'quo"te',
    "back\\slash", "ü", "日本/語", "e\u0301", "\u200bzero", "😀.png", "tilde~", "*star*", "(par)", "{brace}", "[b]",
    "a:b", "@at", "a=b", "$1", "a,b", "pipe|", "^", "`", "dot.", ".hidden", "..", ".", "a/..", "a/./b", "./a", "a/../b",
    "/lead", "//", "a//b", "trail/", "a/b/", " lead", "trail ", "tab\tx", "line\nx", "cr\rx", "\x01", "\x7f",
    "nul\x00l", "%", "%zz", "uploads", "acl", "minio", ".uploads/x", "x" * 255, "x" * 256, "d/" * 100 + "e",
    "y/" * 511 + "zz", "y/" * 512 + "z", "ü" * 200, "\ufffd", "\ufffe", "\ue000",
)  # fmt: skip
KEYS = st.one_of(
    st.sampled_from(_ODD_KEYS[:24]),
    st.sampled_from(_ODD_KEYS),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.lists(st.sampled_from(["a", "b", "c d", "", ".", "ü", "+"]), min_size=1, max_size=5).map("/".join).filter(bool),
)
SAFE = st.sampled_from(["/-._~"] * 6 + ["-._~", "/-._~!$&'()*+,;=:@", "/-._~:"])
"""What a client leaves unescaped in a path."""

SIZES = st.sampled_from([0, 1, 5, 100, 1000, 65535, 65536, 65537, 131072, 200_000])
BODIES = st.builds(Bytes, SIZES, st.integers(0, 3))
PAYLOAD_MODES = st.sampled_from([*MODES, "hex", "presigned"])
DIGESTS = st.sampled_from(
    [None] * 6 + ["content-md5", "x-amz-checksum-crc32", "x-amz-checksum-sha1", "x-amz-checksum-sha256"]
)

_METADATA_NAMES = st.sampled_from(["a", "b", "long-name", "x_y", "content-type", "1"])
_METADATA_VALUES = st.one_of(
    st.sampled_from(
        ["", "v", "a b", "a  b", " a", "a ", "a,b", '"q"', "ünicode", "日本", "caf\udce9", "=?UTF-8?B?w7w=?=", "%41",
         "x" * 1500]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    st.text(st.characters(min_codepoint=160, max_codepoint=0x2FF), max_size=8),
)  # fmt: skip
METADATA = st.dictionaries(_METADATA_NAMES.map("x-amz-meta-{}".format), _METADATA_VALUES, max_size=3).map(
    lambda found: tuple(found.items())
)


def _some(*choices: tuple[str, list[str]]) -> st.SearchStrategy[Pairs]:
    """None, one or two of these headers."""
    one = st.sampled_from(choices).flatmap(lambda choice: st.tuples(st.just(choice[0]), st.sampled_from(choice[1])))
    return st.one_of(st.just(()), st.lists(one, max_size=2, unique_by=lambda pair: pair[0]).map(tuple))


SYSTEM_METADATA = _some(
    ("content-type", ["text/plain", "text/plain; charset=utf-8", "", "image/png", "bogus"]),
    ("cache-control", ["no-cache", "max-age=60, public"]),
    ("content-disposition", ['attachment; filename="a b.txt"', "inline; filename*=UTF-8''%C3%BC"]),
    ("content-encoding", ["gzip", "identity", "br, gzip"]),
    ("content-language", ["de, en"]),
    ("expires", ["Thu, 01 Dec 2033 16:00:00 GMT", "0"]),
    ("x-amz-storage-class", ["STANDARD", "STANDARD_IA", "REDUCED_REDUNDANCY", "BOGUS"]),
    ("x-amz-acl", ["private", "public-read", "bucket-owner-full-control", "bogus"]),
    ("x-amz-tagging", ["a=1", "a=1&b=%20x%2B", "a", "a=1&a=2", ""]),
    ("x-amz-website-redirect-location", ["/elsewhere", "https://example.org/"]),
    ("x-amz-server-side-encryption", ["AES256"]),
    ("user-agent", ["differential/1"]),
    ("accept-encoding", ["identity", "gzip"]),
    ("x-custom", ["anything"]),
)
READ_HEADERS = _some(
    ("range", ["bytes=0-0", "bytes=0-", "bytes=-1", "bytes=-0", "bytes=5-1", "bytes=2-4", "bytes=0-1,3-4"]),
    ("range", ["bytes=999999-", "bytes=-999999", "bytes=65530-65540", "items=0-1", "bytes=x", "bytes=0-0,"]),
    ("accept-encoding", ["gzip", "identity"]),
    ("accept", ["*/*", "text/html"]),
    ("x-amz-checksum-mode", ["ENABLED"]),
    ("origin", ["https://example.org"]),
)
_RESPONSE_PARAMETERS = _some(
    ("response-content-type", ["text/x y", "a/b; c=ü"]),
    ("response-content-disposition", ['attachment; filename="x"']),
    ("response-cache-control", ["no-store"]),
    ("response-expires", ["Thu, 01 Dec 2033 16:00:00 GMT"]),
    ("response-content-encoding", ["identity"]),
    ("response-content-language", ["de"]),
)
READ_PARAMETERS = st.one_of(
    st.just(()), st.just(()), _RESPONSE_PARAMETERS, st.sampled_from([(("partNumber", "1"),), (("partNumber", "2"),)])
)

_ETAG_FORMS = ["{}", "W/{}", "*", '"0123"', "{}, {}", '"a", {}', "garbage"]
_DATES = ["Thu, 01 Jan 2015 00:00:00 GMT", "Thu, 01 Jan 2099 00:00:00 GMT", "yesterday", "2015-01-01T00:00:00Z"]


def etags(key: str) -> st.SearchStrategy[Value]:
    """Right and wrong, in every spelling."""
    return st.sampled_from(_ETAG_FORMS).map(lambda form: ETagOf(key, form))


def dates(key: str) -> st.SearchStrategy[Value]:
    return st.one_of(st.sampled_from(_DATES), st.just(ModifiedOf(key)))


def read_conditions(key: str, prefix: str = "") -> st.SearchStrategy[Pairs]:
    """Mostly none. `prefix` makes them those of a copy's source."""
    one = st.one_of(
        st.tuples(st.sampled_from([f"{prefix}if-match", f"{prefix}if-none-match"]), etags(key)),
        st.tuples(st.sampled_from([f"{prefix}if-modified-since", f"{prefix}if-unmodified-since"]), dates(key)),
    )
    several = st.lists(one, min_size=1, max_size=2, unique_by=lambda pair: pair[0]).map(tuple)
    return st.one_of(st.just(()), st.just(()), several)


def write_conditions(key: str) -> st.SearchStrategy[Pairs]:
    """Mostly none."""
    one = st.one_of(
        st.just(("if-none-match", "*")),
        st.tuples(st.just("if-match"), st.just(ETagOf(key))),
        st.tuples(st.sampled_from(["if-match", "if-none-match"]), etags(key)),
    )
    return st.one_of(st.just(()), st.just(()), st.just(()), one.map(lambda pair: (pair,)))
