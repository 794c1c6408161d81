"""Keys and paths: what a target spells is what the signature covers, what the store gets, and what it is asked for."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from tests.cases.sides import Sides
from tests.server.rig import HOST, rule, running, signed

TOKEN = ("x-fencing-token", "5")
SPELLINGS = [
    "foo%27bar",
    "foo'bar",
    "a%3Ab",
    "a%3ab",
    "a:b",
    "10%2B2.jpg",
    "10+2.jpg",
    "q%3Fx",
    "h%23x",
    "a%26b%3D1",
    "100%25",
    "100%2525",
    "a%20b",
    "%C3%A4",
    "%7Ea",
    "~a",
    "(a)*!$,;@",
    "/foo",
    "123//456",
    "x/.",
    "x/..",
    "foo/../key",
    "../../key",
    "./key",
    ".",
    "..",
    "%2E%2E/key",
    "a%2Fb",
    "a%5Cb",
    "//",
    "dir/",
    "a%0Ab",
    "a%01b",
]


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD", "DELETE"])
async def test_a_key_goes_upstream_as_it_was_spelt(method: str) -> None:
    """Not an escape is added, dropped or written otherwise, in path style and virtual-host style, fenced or not; the
    object is the one that the decoded key names."""
    async with running(rules=[rule("renders/**", "all")]) as rig:
        for spelling in SPELLINGS:
            for raw_key, fields in ((spelling, ()), ("renders/" + spelling, (TOKEN,))):
                for target, host in ((f"/b/{raw_key}", HOST), (f"/{raw_key}", f"b.{HOST}")):
                    if method != "PUT":
                        await rig.ask("PUT", f"/b/{raw_key}", fields, b"there")
                    rig.upstream.requests.clear()
                    answer = await rig.ask(method, target, fields, b"new" if method == "PUT" else None, host=host)
                    assert answer.status == (204 if method == "DELETE" else 200), (raw_key, answer.body)
                    assert {(r.bucket, r.raw_key) for r in rig.upstream.requests} == {("b", raw_key)}
                    stored = rig.stored(unquote(raw_key))
                    assert (stored is None) == (method == "DELETE")


async def test_an_absolute_target_is_read_like_any_other() -> None:
    """`GET http://host/b/k`, in path style and virtual-host style, with and without a query."""
    async with running() as rig:
        await rig.put("k", b"there", 5)
        for target, host in (("/b/k", HOST), ("/k", f"b.{HOST}"), ("/b/k?partNumber=1", HOST)):
            head = signed("GET", target, host=host)
            rig.upstream.requests.clear()
            await rig.say(head.replace(b"GET /", f"GET http://{host}/".encode(), 1))
            (request,) = rig.upstream.requests
            assert (request.bucket, request.raw_key) == ("b", "k")
            assert request.raw_query == target.partition("?")[2]


@pytest.mark.parametrize("spelling", [spelling for spelling in SPELLINGS if spelling != "//"])
async def test_odd_keys_as_at_the_store(sides: Sides, spelling: str) -> None:
    """Written, read, listed and deleted, an odd key gets through the gateway just what the store gives it. (This store
    files objects as paths; what would be a folder with bytes is `tests.server.test_object_names`'s matter.)"""
    target = "/{b}/" + spelling
    (await sides.ask("PUT", target, [], b"" if spelling.endswith("/") else spelling.encode())).alike()
    for method in ("GET", "HEAD"):
        (await sides.ask(method, target)).alike()
    (await sides.ask("GET", "/{b}?list-type=2&encoding-type=url&prefix=" + spelling.lstrip("/"))).alike()
    (await sides.ask("DELETE", target)).alike()
    (await sides.ask("GET", target)).alike()


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/{b}"),
        ("HEAD", "/{b}"),
        ("GET", "/{b}/"),
        ("GET", "/{b}?location"),
        ("GET", "/{b}?policy"),
        ("GET", "/{b}?max-keys=x"),
        ("GET", "/{b}/absent"),
        ("GET", "/no-such-bucket"),
        ("GET", "/no-such-bucket/k"),
        ("PUT", "/no-such-bucket/k"),
        ("DELETE", "/no-such-bucket/k"),
        ("POST", "/no-such-bucket/k?uploads"),
    ],
)
async def test_targets_without_an_object_as_at_the_store(sides: Sides, method: str, target: str) -> None:
    """A bucket alone, with and without its slash, and what is not there."""
    (await sides.ask(method, target, [], None if method in ("GET", "HEAD", "DELETE") else b"")).alike()


async def test_the_longest_key(sides: Sides) -> None:
    """1024 bytes of UTF-8 work as at the store; one byte more is KeyTooLongError and not 500."""
    longest = "%C3%A9" * 127 + "/" + "%C3%A9" * 127 + "/" + "%C3%A9" * 127 + "/" + "%C3%A9" * 127 + "/" + "abcd"
    assert len(unquote(longest).encode()) == 1024
    for method, body in (("PUT", b"x"), ("GET", None), ("DELETE", None)):
        (await sides.ask(method, "/{b}/" + longest, [], body)).alike()
    for raw_key in ("a" * 1025, longest + "a"):
        answer = await sides.through("PUT", "/{b}/" + raw_key, [TOKEN], b"x")
        assert (answer.status, answer.code) == (400, "KeyTooLongError")
        assert (await sides.through("HEAD", "/{b}/" + raw_key)).status == 400
