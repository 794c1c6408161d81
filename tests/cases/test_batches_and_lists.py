"""Batches of deletions, and lists."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, unquote

import pytest

from gateway.upstream.base import UpstreamRequest
from tests.cases.documents import texts
from tests.cases.sides import Sides
from tests.server.rig import Pairs, Rig, rule, running

TOKEN = ("x-fencing-token", "5")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        yield rig


# --- batches


def batch(*keys: str) -> bytes:
    """A DeleteObjects document, its keys written as they are."""
    return b"<Delete>" + "".join(f"<Object><Key>{key}</Key></Object>" for key in keys).encode() + b"</Delete>"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (lambda body: [("x-amz-checksum-crc32", crc32(body))], 200),
        (lambda body: [("x-amz-checksum-crc32", crc32(body)), ("x-amz-sdk-checksum-algorithm", "CRC32")], 200),
        (lambda body: [("content-md5", b64encode(hashlib.md5(body).digest()).decode())], 200),
        (lambda body: [("x-amz-checksum-crc32", crc32(b"another"))], 400),
        (lambda body: [("content-md5", b64encode(hashlib.md5(b"another").digest()).decode())], 400),
    ],
    ids=["crc32", "crc32 named", "md5", "wrong crc32", "wrong md5"],
)
async def test_the_digest_of_a_batch(sides: Sides, fields: Callable[[bytes], Pairs], status: int) -> None:
    """A CRC32 without Content-MD5 is enough; a wrong digest is 400, and nothing is deleted."""
    for key in ("one", "renders/7/two"):
        await sides.through("PUT", "/{b}/" + key, [TOKEN] if "/" in key else [], b"x")
    body = batch("one", "renders/7/two")
    answer = await sides.through("POST", "/{b}?delete", [*fields(body), TOKEN, ("x-fencing-key", "7")], body)
    assert answer.status == status, answer.body
    left = await sides.through("GET", "/{b}?list-type=2&prefix=renders")
    assert len(texts(left.body, "Contents")) == (0 if status == 200 else 1)


def crc32(body: bytes) -> str:
    return b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


@pytest.mark.parametrize(
    "document",
    [
        batch(*(f"k{number}" for number in range(1001))),
        batch("k0", "a&#x10;"),
        batch("k0", "a\x10"),
        b"<!DOCTYPE Delete>" + batch("k0"),
        b'<!DOCTYPE d [<!ENTITY x "k0">]>' + batch("&x;"),
        batch("k0")[:-1],
        b"<Delete></Delete>",
    ],
    ids=["1001 keys", "a control character", "a raw one", "doctype", "entity", "cut", "empty"],
)
async def test_batches_that_are_refused(rig: Rig, document: bytes) -> None:
    """MalformedXML, nothing goes upstream, nothing is deleted."""
    await rig.ask("PUT", "/b/k0", [], b"x")
    rig.upstream.writes.clear()
    answer = await rig.ask("POST", "/b?delete", [], document)
    assert (answer.status, answer.code) == (400, "MalformedXML")
    assert rig.upstream.writes == []
    assert rig.stored("k0") is not None


async def test_a_batch_of_a_thousand_some_fenced_and_some_not(rig: Rig) -> None:
    """What the fence refuses is that key's own error; the rest is gone, in one request."""
    for key, token in (("renders/1/a", "1"), ("renders/2/a", "2")):
        assert (await rig.ask("PUT", f"/b/{key}", [("x-fencing-token", token)], b"x")).status == 200
    await rig.ask("PUT", "/b/k0", [], b"x")
    rig.upstream.writes.clear()
    keys = ["renders/1/a", "renders/2/a", *(f"k{number}" for number in range(998))]
    answer = await rig.ask("POST", "/b?delete", [], batch(*keys))
    assert answer.status == 200
    assert [rig.stored(key) is None for key in keys[:3]] == [False, False, True]
    assert len(texts(answer.body, "Deleted")) == 998
    assert texts(answer.body, "Code") == ["FencingTokenRequired"] * 2
    assert rig.upstream.writes == ["POST b/?delete"]


# --- lists


KEYS = ["a%20b", "a%2Bb", "a%25b", "a%0Ab", "a%01b", "a%26b%3C", "dir/one", "dir/two", "%C3%A4/x", "z"]


@pytest.mark.parametrize("query", ["", "list-type=2", "versions"])
@pytest.mark.parametrize("encoding", ["", "encoding-type=url"])
@pytest.mark.parametrize("delimiter", ["", "delimiter=%2F", "delimiter=b"])
async def test_lists_as_at_the_store(sides: Sides, query: str, encoding: str, delimiter: str) -> None:
    """Keys with spaces, `+`, `%` and control characters; V1, V2 and versions, whole and under prefixes."""
    for key in KEYS:
        await sides.direct("PUT", "/{b}/" + key, [], b"x")
        await sides.rig.gateway.writes.upstream.send(UpstreamRequest("PUT", sides.of_gateway, key, "", ()), b"x", 10)
    for prefix in ("", "prefix=a", "prefix=a%20", "prefix=a+", "prefix=a%2B", "prefix=%C3%A4%2F", "prefix=none"):
        joined = "&".join(part for part in (query, encoding, delimiter, prefix) if part)
        (await sides.ask("GET", "/{b}?" + joined)).alike()


@pytest.mark.parametrize("delimiter", ["", "&delimiter=%2F"])
@pytest.mark.parametrize("kind", ["", "list-type=2&"])
async def test_pages_as_at_the_store(sides: Sides, kind: str, delimiter: str) -> None:
    """Two keys a page, from the first page to the last: every page is the store's."""
    for key in KEYS:
        await sides.ask("PUT", "/{b}/" + key, [], b"x")
    after = ""
    for _ in range(len(KEYS)):
        both = await sides.ask("GET", "/{b}?" + kind + "max-keys=2&encoding-type=url" + delimiter + after)
        both.alike()
        if texts(both.through.body, "IsTruncated") != ["true"]:
            return
        if kind:
            (token,) = texts(both.through.body, "NextContinuationToken")
            after = "&continuation-token=" + quote(token, safe="")
        else:
            found = texts(both.through.body, "NextMarker") or texts(both.through.body, "Key")[-1:]
            after = "&marker=" + quote(unquote(found[0]), safe="")
    raise AssertionError("the list does not end")


@pytest.mark.parametrize(
    "query",
    ["max-keys=0", "max-keys=-1", "max-keys=x", "list-type=3", "encoding-type=other", "max-keys=100000", "marker=z"],
)
async def test_odd_parameters_of_lists_as_at_the_store(sides: Sides, query: str) -> None:
    """The store's own answer."""
    await sides.ask("PUT", "/{b}/k", [], b"x")
    (await sides.ask("GET", "/{b}?" + query)).alike()
