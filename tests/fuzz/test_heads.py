"""Any request head: what names the object, the operation, the payload and the fence is found, or S3's error is."""

# ruff: noqa: PT017

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import FenceError
from gateway.s3.errors import S3Error, to_xml
from gateway.s3.fencing import claimed, refuse_reserved
from gateway.s3.forward import forwarded_headers, forwarded_query
from gateway.s3.payload import payload_spec
from gateway.s3.recognise import recognise
from gateway.s3.request import MAX_KEY_BYTES, Headers, RequestHead, parse_head, parse_query
from gateway.s3.sigv4 import UNSIGNED_PAYLOAD, canonical_path, canonical_query
from gateway.service.copies import copy_source
from tests.fuzz.requests import FIELDS, QUERIES, TOKENS
from tests.fuzz.settings import short

SUFFIXES = ("s3.rig.example", "b.s3.rig.example")
VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
ODD = st.sampled_from(
    ("%", "%2", "%2F", "%00", "%25", "%C3%A9", "%FF", "//", "/./", "/../", "+", "?", "&", "=", "#", ";")
)
pieces = st.lists(st.one_of(ODD, st.text(VISIBLE, max_size=4), st.sampled_from(QUERIES)), max_size=8).map("".join)
targets = st.builds(
    "".join,
    st.tuples(st.sampled_from(("/", "/b/", "/b", "", "http://", "HTTPS://b.s3.rig.example", "http://x/", "*")), pieces),
)
hosts = st.sampled_from(
    " s3.rig.example b.s3.rig.example B.s3.rig.example:80 a/b.s3.rig.example [::1] .s3.rig.example".split(" ")
)
values = st.one_of(
    st.sampled_from(TOKENS),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12),
    st.binary(max_size=6).map(lambda raw: raw.translate(None, b"\r\n\0").decode("utf-8", "surrogateescape")),
)
NAMES = sorted({name for name, _ in FIELDS} | {"x-amz-sdk-checksum-algorithm", "x-amz-bypass-governance-retention"})
headers = st.lists(st.one_of(st.sampled_from(FIELDS), st.tuples(st.sampled_from(NAMES), values)), max_size=6)


def read_all(head: RequestHead) -> None:
    """All that the gateway reads of a head. Raises `S3Error` or `FenceError`."""
    recognise(head)
    forwarded_headers(head)
    copy_source(head.headers.get("x-amz-copy-source") or "")
    refuse_reserved(head.headers)
    claimed(head.headers, None)
    payload_spec(head.headers, UNSIGNED_PAYLOAD)


@short(400)
@given(method=st.sampled_from(("GET", "PUT", "POST", "DELETE", "HEAD", "X")), target=targets, host=hosts, more=headers)
def test_any_head(method: str, target: str, host: str, more: list[tuple[str, str]]) -> None:
    """No head is a fault; what is understood of it is what stands there, and goes upstream as it came."""
    try:
        head = parse_head(method, target, Headers([("host", host), *more]), SUFFIXES)
    except S3Error as error:
        assert 400 <= error.status < 500
        to_xml(error, resource=target, request_id="1", host_id="2")
        return
    if head.key is not None:
        assert unquote_to_bytes(head.raw_key) == head.key.encode()
        assert 0 < len(head.key.encode()) <= MAX_KEY_BYTES
        assert target.partition("?")[0].endswith(head.raw_key)
    else:
        assert not head.raw_key
    if head.bucket is not None:
        assert "/" not in head.bucket
    assert set(forwarded_query(head).split("&")) <= set(head.raw_query.split("&"))
    try:
        read_all(head)
    except S3Error as error:
        assert error.status in {*range(400, 500), 501}
        to_xml(error, resource=target, request_id="1", host_id="2")
    except FenceError as error:
        assert error.message


@short(300)
@given(query=pieces, path=pieces)
def test_what_is_signed_is_what_is_understood(query: str, path: str) -> None:
    """A signature covers the query and path that are acted upon: two spellings of one canonical form mean the same."""
    canonical = canonical_query(query)
    assert canonical_query(canonical) == canonical
    path = "/" + path.partition("?")[0]
    assert canonical_path(canonical_path(path)) == canonical_path(path)
    assert unquote_to_bytes(canonical_path(path)) == unquote_to_bytes(path)
    try:
        understood = parse_query(query)
    except S3Error:
        return
    signed = [pair for pair in understood if pair[0] != "X-Amz-Signature"]
    assert sorted(parse_query(canonical)) == sorted(signed)
