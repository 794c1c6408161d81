"""What clients send, right and wrong: signed requests of every kind, snippets that have split and smuggled elsewhere,
and bytes changed anywhere in them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.cases.uploads import Framing, Mode, upload
from tests.fuzz.memory_wire import NOW
from tests.server.rig import HOST, Pairs, raw, signed

DRAW = st.DrawFn

KEYS = ("k", "renders/7/out", "other")
ODD_KEYS = ("a%20b", "%C3%A9", "x//y", "q%3Fx", "a" * 1025, "", "renders//out")
QUERIES = (
    "uploads", "uploadId=upload-1&partNumber=1", "uploadId=upload-1", "uploadId=none&partNumber=x", "tagging", "acl",
    "versionId=null", "x", "list-type=2&prefix=a&max-keys=2", "delete", "location", "append", "attributes",
)  # fmt: skip
TOKENS = ("0", "1", "2", "3", "9223372036854775807", "9223372036854775808", "-1", "1 ", "", "x")
FIELDS: tuple[tuple[str, str], ...] = (
    ("x-fencing-key", "job"),
    ("x-fencing-key", "%FF"),
    ("x-fencing-key", "object:b/k"),
    ("fencing-token", "2"),
    ("x-amz-meta-fencing-token", "2"),
    ("x-amz-meta-fencing-nonce", "x"),
    ("x-amz-meta-a", "a  b"),
    ("x-amz-meta-a", "\udcff"),
    ("if-match", '"x"'),
    ("if-match", "*"),
    ("if-none-match", "*"),
    ("x-amz-copy-source", "b/k"),
    ("x-amz-copy-source", "/b/%FF"),
    ("x-amz-metadata-directive", "REPLACE"),
    ("content-encoding", "gzip"),
    ("range", "bytes=0-1"),
    ("range", "bytes=-0"),
    ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-trailer", "x-amz-checksum-crc32"),
    ("x-amz-decoded-content-length", "3"),
    ("expect", "100-continue"),
    ("connection", "close"),
    ("connection", "x-amz-meta-a, keep-alive"),
    ("connection", "upgrade"),
    ("upgrade", "h2c"),
    ("transfer-encoding", "chunked"),
    ("content-length", "5"),
    ("origin", "http://page.example"),
    ("access-control-request-method", "PUT"),
)
DOCUMENTS = (
    b"<Delete><Object><Key>k</Key></Object><Object><Key>other</Key></Object></Delete>",
    b"<Delete><Object><Key>k</Key></Object><Quiet>true</Quiet></Delete>",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]><Delete><Object><Key>&b;</Key></Object></Delete>",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    b"<Tagging><TagSet/></Tagging>",
    b"",
    b"x",
)
SNIPPETS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"1\r\nx\r\n0\r\n\r\n",
    b"5;ext=1\r\nhello\r\n0\r\nx-trailer: y\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"0" * 40 + b"1\r\nx\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding:\tchunked, chunked\r\n",
    b"transfer-encoding: xchunked\r\n",
    b"content-length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"content-length: 18446744073709551616\r\n",
    b" folded: line\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"expect: 100-continue\r\n",
    b"host: b.s3.rig.example\r\n",
    b"GET /b/k HTTP/1.1\r\nhost: s3.rig.example\r\n\r\n",
    b"PUT /b/smuggled HTTP/1.1\r\nhost: s3.rig.example\r\ncontent-length: 1\r\n\r\nx",
    b"CONNECT b:80 HTTP/1.1\r\nhost: b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET http://s3.rig.example/b/k HTTP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
)


def rarely(times: int) -> st.SearchStrategy[bool]:
    """True once in so many."""
    return st.integers(1, times).map(lambda drawn: drawn == times)


@st.composite
def targets(draw: DRAW) -> str:
    """Mostly an object, sometimes a bucket, a sub-resource, or anything."""
    bucket = draw(st.sampled_from(("/", "/absent/", "/b%2F"))) if draw(rarely(20)) else "/b/"
    target = bucket + draw(st.sampled_from(ODD_KEYS if draw(rarely(5)) else KEYS))
    if draw(rarely(4)):
        target += "?" + draw(st.sampled_from(QUERIES))
    if draw(rarely(20)):
        target += draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8))
    return target


@st.composite
def fields(draw: DRAW) -> Pairs:
    """A token, mostly, and a few more."""
    chosen: list[tuple[str, str]] = []
    if not draw(rarely(4)):
        chosen.append(("x-fencing-token", draw(st.sampled_from(TOKENS if draw(rarely(6)) else TOKENS[1:4]))))
    if draw(rarely(3)):
        chosen += draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2))
    return chosen


@st.composite
def uploads(draw: DRAW) -> bytes:
    """A PUT or POST with a body, in one of S3's ways."""
    document = draw(rarely(4))
    payload = draw(st.sampled_from(DOCUMENTS)) if document else b"x" * draw(st.sampled_from((0, 1, 5, 3000, 70_000)))
    framing = draw(st.sampled_from(Framing))
    sent = upload(
        draw(targets()),
        payload,
        draw(st.sampled_from(Mode)),
        framing,
        fields=draw(fields()),
        chunk=draw(st.sampled_from((1, 7, 1000, 65536))) if len(payload) < 100 else 8192,
        decoded=4 if draw(rarely(10)) else None,
        value="AAAAAA==" if draw(rarely(10)) else None,
        method=draw(st.sampled_from(("POST", "GET", "DELETE"))) if draw(rarely(4)) else "PUT",
        now=NOW,
    )
    ends = draw(st.lists(st.integers(0, len(sent.body)), max_size=3)) if framing.chunked else ()
    return sent.head + sent.framed(*ends)


@st.composite
def plain(draw: DRAW) -> bytes:
    """A request without a body, or with one that nobody has announced."""
    odd = draw(rarely(6))
    method = draw(st.sampled_from(("PUT", "OPTIONS", "PATCH", "CONNECT") if odd else ("GET", "HEAD", "DELETE", "POST")))
    version = draw(st.sampled_from(("HTTP/1.0", "HTTP/2.0"))) if draw(rarely(12)) else "HTTP/1.1"
    if not draw(rarely(8)):
        return signed(method, draw(targets()), draw(fields()), now=NOW, version=version)
    return raw(f"{method} {draw(targets())} {version}", [("host", HOST), *draw(fields())])


@st.composite
def changed(draw: DRAW, data: bytes) -> bytes:
    """The same with a few bytes put in, taken out, or replaced."""
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.one_of(st.sampled_from(SNIPPETS), st.binary(max_size=3)))
        data = data[:at] + what + data[at + draw(st.sampled_from((0, 0, 1, 2, 20))) :]
    return data


@st.composite
def streams(draw: DRAW) -> bytes:
    """All that one client sends on one connection."""
    requests = draw(st.lists(st.one_of(uploads(), uploads(), plain()), min_size=1, max_size=4))
    if draw(rarely(4)):
        requests.insert(draw(st.integers(0, len(requests))), draw(st.sampled_from(SNIPPETS)))
    return draw(changed(b"".join(requests))) if draw(rarely(3)) else b"".join(requests)
