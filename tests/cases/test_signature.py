"""Signatures: what they cover is what arrives, and what they do not cover is refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from gateway.s3.claim import STREAMING_UNSIGNED_TRAILER
from gateway.s3.sigv4 import presign
from tests.cases.proof import proved
from tests.cases.sides import Sides
from tests.cases.uploads import Framing, Mode, converse, upload
from tests.conftest import REGION
from tests.server.rig import CREDENTIALS, HOST, Pairs, Rig, raw, running, signed

EMPTY = sha256(b"").hexdigest()
SIZED = ("content-length", "0")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        assert (await rig.put("k", b"there", 5)).status == 200
        rig.upstream.requests.clear()
        rig.upstream.writes.clear()
        yield rig


def by_url(method: str, target: str, fields: Pairs = (), *, host: str = HOST, used_at: str = HOST) -> bytes:
    """The head of a request by a presigned URL, which covers `fields`."""
    path, _, query = target.partition("?")
    query = presign(
        method, host, path, query, fields, expires_s=60, credentials=CREDENTIALS, region=REGION, now=time.time()
    )
    return raw(f"{method} {path}?{query} HTTP/1.1", [("host", used_at), *fields])


# --- values


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["a  b"], "a  b"),
        (["a \t b"], "a \t b"),
        (["  a  b  "], "a  b"),
        (["a", "b"], "a,b"),
        (["a  b", "c  d"], "a  b,c  d"),
        ([""], ""),
        (["grün  weiß"], "grün  weiß"),
        (["caf\udce9"], "caf\udce9"),
        (["a b"], "a b"),
    ],
    ids=["two spaces", "a tab", "around it", "two lines", "both", "empty", "utf-8", "latin-1", "no-break space"],
)
async def test_a_value_is_kept_as_it_was_sent(rig: Rig, sent: list[str], kept: str) -> None:
    """Runs of spaces collapse in what is signed, and stay in what is stored; lines of one name join with a comma."""
    fields = [("x-amz-meta-d", value) for value in sent]
    put = proved("PUT", "/b/k", [*fields, SIZED, ("x-fencing-token", "5")], EMPTY)
    answer = await rig.say(put, "PUT")
    assert answer.status == 200, answer.body
    stored = rig.stored("k")
    assert stored is not None
    assert dict(stored.metadata)["x-amz-meta-d"] == kept
    assert (await rig.ask("HEAD", "/b/k")).header("x-amz-meta-d") == kept


@pytest.mark.parametrize("value", ["a  b", "grün", "a b c", "=?UTF-8?Q?gr=C3=BCn?=", 'a"b\\c', "1;2,3"])
async def test_metadata_as_at_the_store(sides: Sides, value: str) -> None:
    """The store takes the gateway's own signature over the same values, and shows what it shows without it."""
    (await sides.ask("PUT", "/{b}/metadata", [("x-amz-meta-d", value)], b"x")).alike()
    (await sides.ask("HEAD", "/{b}/metadata")).alike()


@pytest.mark.parametrize("name", ["x-amz-meta-t", "content-type", "x-amz-tagging"])
@pytest.mark.parametrize("control", [*range(1, 9), *range(11, 13), *range(14, 32), 0, 127])
async def test_a_control_character_in_a_value(rig: Rig, name: str, control: int) -> None:
    """400, and nothing goes upstream."""
    head = proved("PUT", "/b/k", [(name, f"a{chr(control)}b"), SIZED], EMPTY)
    answer = await rig.say(head, "PUT")
    assert (answer.status, answer.closes) == (400, True)
    assert rig.upstream.requests == []


# --- queries and hosts


@pytest.mark.parametrize(
    "query",
    [
        "x",
        "x=",
        "prefix=a%20b&delimiter=%2F",
        "prefix=a+b&delimiter=/",
        "b=2&a=1&a=0",
        "a-b=1&a%20b=2&a.b=3&A=4",
        "%C3%A9=1&e=2&marker=%2B",
        "max-keys=2&marker=a%26b%3Dc",
    ],
)
async def test_a_query_signs_in_its_canonical_form_and_goes_on_as_it_came(rig: Rig, query: str) -> None:
    """`?x` signs as `x=`, and pairs are sorted after they have been encoded; upstream goes what was sent."""
    answer = await rig.say(proved("GET", f"/b/k?{query}", [], EMPTY))
    assert answer.status != 403, answer.body
    assert [request.raw_query for request in rig.upstream.requests] == [query]
    assert (await rig.say(by_url("GET", f"/b/k?{query}"))).status != 403
    assert rig.upstream.requests[-1].raw_query == query


@pytest.mark.parametrize(("host", "used_at"), [(HOST, f"{HOST}:80"), (f"{HOST}:80", HOST), (HOST, HOST)])
async def test_a_default_port_and_what_proxies_say_change_nothing(rig: Rig, host: str, used_at: str) -> None:
    """A URL that was signed for `host` is used with `host:80`, behind a proxy that speaks of another port and host."""
    head = by_url("GET", "/b/k", host=host, used_at=used_at)
    told = b"X-Forwarded-Port: 443\r\nX-Forwarded-Host: elsewhere.example\r\nX-Forwarded-Proto: https\r\n"
    answer = await rig.say(head[:-2] + told + b"Forwarded: host=elsewhere.example\r\n\r\n")
    assert answer.body == b"there"
    names = {name for request in rig.upstream.requests for name, _ in request.headers}
    assert not [name for name in names if "forwarded" in name]
    assert (await rig.say(by_url("GET", "/b/k", used_at=f"{HOST}:8080"))).status == 403


# --- headers that others would drop


@pytest.mark.parametrize("value", ["identity", "gzip, deflate", "gzip;q=0.5, *;q=0"])
async def test_a_signed_accept_encoding_arrives_as_signed(rig: Rig, value: str) -> None:
    """It is verified as it was sent, and the store is asked for the same encodings."""
    answer = await rig.say(proved("GET", "/b/k", [("accept-encoding", value)], EMPTY))
    assert answer.body == b"there"
    assert dict(rig.upstream.requests[-1].headers)["accept-encoding"] == value
    changed = proved("GET", "/b/k", [("accept-encoding", value)], EMPTY).replace(b"encoding: ", b"encoding: br, ")
    assert (await rig.say(changed)).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [("expect", "100-continue")],
        [("connection", "keep-alive")],
        [("te", "trailers")],
        [("user-agent", "Old SDK  1.0 (a; b)")],
    ],
)
async def test_signed_headers_of_the_hop(rig: Rig, extra: Pairs) -> None:
    """Older SDKs sign Transfer-Encoding of a chunked PUT, and others of the hop; upstream goes none of them."""
    fields = [("transfer-encoding", "chunked"), ("x-amz-decoded-content-length", "5"), *extra]
    wire = await rig.wire()
    await wire.send(proved("PUT", "/b/k2", fields, "UNSIGNED-PAYLOAD"))
    if ("expect", "100-continue") in extra:
        assert (await wire.answer()).status == 100
    await wire.send(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")
    assert (await wire.answer("PUT")).status == 200
    stored = rig.stored("k2")
    assert stored is not None
    assert stored.data == b"hello"
    sent = dict(rig.upstream.requests[-1].headers)
    assert sent.keys() <= {"user-agent"}


# --- what nobody signed


UNSIGNED = [
    ("x-amz-copy-source", "/b/secret"),
    ("x-amz-acl", "public-read"),
    ("x-amz-meta-a", "1"),
    ("x-amz-tagging", "a=b"),
    ("x-amz-security-token", "token"),
    ("x-amz-storage-class", "GLACIER"),
    ("X-AMZ-Grant-Read", "id=1"),
    ("x-amz-decoded-content-length", "1"),
    ("x-amz-website-redirect-location", "http://elsewhere.example/"),
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-bypass-governance-retention", "true"),
]


@pytest.mark.parametrize("added", UNSIGNED, ids=lambda field: field[0])
async def test_an_unsigned_amz_header_is_refused(rig: Rig, added: tuple[str, str]) -> None:
    """Added after signing, to headers or to a presigned URL: 403 (a session token that nobody issued: 400)."""
    line = f"{added[0]}: {added[1]}\r\n\r\n".encode()
    for head in (signed("PUT", "/b/k", [], b""), by_url("PUT", "/b/k", [SIZED])):
        answer = await rig.say(head[:-2] + line, "PUT")
        token = added[0] == "x-amz-security-token"
        assert (answer.status, answer.code) == ((400, "InvalidToken") if token else (403, "AccessDenied"))
    assert rig.upstream.requests == []


async def test_headers_that_proxies_add_may_be_unsigned(rig: Rig) -> None:
    """Traces, and what the SDKs say of their attempts, prove nothing and harm nothing."""
    added = b"x-amzn-trace-id: Root=1\r\namz-sdk-request: attempt=1\r\namz-sdk-invocation-id: 1\r\nvia: 1.1 p\r\n\r\n"
    assert (await rig.say(signed("GET", "/b/k")[:-2] + added)).body == b"there"


# --- unsigned payloads still need a signature


@pytest.mark.parametrize("framing", Framing)
async def test_an_unsigned_trailer_needs_a_signature(rig: Rig, framing: Framing) -> None:
    """With a bad signature, with credentials in the query alone, with none: 403, and no body is asked for."""
    sent = upload("/b/k", b"data", Mode.UNSIGNED_TRAILER, framing)
    start = sent.head.index(b"Signature=") + 10
    forged = sent.head[:start] + b"0" * 64 + sent.head[start + 64 :]
    fields = [
        ("content-encoding", "aws-chunked"),
        ("x-amz-content-sha256", STREAMING_UNSIGNED_TRAILER),
        ("x-amz-decoded-content-length", "4"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        *([("transfer-encoding", "chunked")] if framing.chunked else [("content-length", str(len(sent.body)))]),
        *([("expect", "100-continue")] if framing.expects else []),
    ]
    query_only = by_url("PUT", "/b/k", fields)
    bare = raw(f"PUT /b/k?X-Amz-Credential={CREDENTIALS.access_key} HTTP/1.1", [("host", HOST), *fields])
    nobody = raw("PUT /b/k HTTP/1.1", [("host", HOST), *fields])
    for head in (forged, query_only, bare, nobody):
        wire = await rig.wire()
        await wire.send(head if framing.expects else head + sent.framed())
        answer = await wire.answer("PUT")
        assert (answer.status, answer.closes) == (403, True), answer.body
        assert await wire.rest() == b""
    assert rig.upstream.requests == []


# --- clocks


async def test_a_presigned_url_of_one_second(rig: Rig) -> None:
    """It works at once, and is refused after two seconds."""
    query = presign(
        "GET", HOST, "/b/k", "", expires_s=1, credentials=CREDENTIALS, region=REGION, now=rig.clock.wall() + 0.9
    )
    head = raw(f"GET /b/k?{query} HTTP/1.1", [("host", HOST)])
    assert (await rig.say(head)).body == b"there"
    rig.clock.ahead_s = 3
    answer = await rig.say(head)
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert answer.xml["Message"] == "Request has expired"


@pytest.mark.parametrize("minutes", [16, -16])
@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/b/k", None),
        ("GET", "/b", None),
        ("GET", "/", None),
        ("PUT", "/b/k", b"x"),
        ("DELETE", "/b/k", None),
        ("POST", "/b?delete", b"<Delete/>"),
        ("POST", "/b/k?uploads", b""),
        ("PUT", "/b/k?partNumber=1&uploadId=u", b"x"),
    ],
)
async def test_any_request_whose_clock_is_off(
    rig: Rig, method: str, target: str, body: bytes | None, minutes: int
) -> None:
    """16 minutes either way are RequestTimeTooSkewed, and the answer names the server's time and the bound."""
    now = time.time()
    answer = await rig.ask(method, target, [], body, now=now + minutes * 60)
    assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
    told = answer.xml
    assert abs(time.mktime(time.strptime(told["ServerTime"], "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(time.gmtime())) < 5
    assert told["MaxAllowedSkewMilliseconds"] == "900000"
    assert rig.upstream.requests == []


async def test_a_skewed_upload_is_not_read(rig: Rig) -> None:
    """Also where the chunks are signed, and the client waits to be asked for them."""
    rig.clock.ahead_s = 16 * 60
    for mode in Mode:
        if mode is not Mode.PLAIN:
            answer = await converse(await rig.wire(), upload("/b/k", b"data", mode, Framing.EXPECT))
            assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
    assert rig.upstream.requests == []
