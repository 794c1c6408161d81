"""Copies, forms of browsers, and their preflights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.cases.sides import Sides
from tests.server.rig import HOST, Pairs, Rig, raw, rule, running

TOKEN = ("x-fencing-token", "5")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        yield rig


# --- copies


@pytest.mark.parametrize(
    "source",
    ["{b}/a%7B%2Bb", "/{b}/a%7B%2Bb", "{b}/a{+b", "{b}/%C3%BC", "{b}/ü", "{b}/plain?versionId=null", "{b}%2Fplain"],
)
async def test_copy_sources_as_at_the_store(sides: Sides, source: str) -> None:
    """Escaped, with raw non-ASCII, with a version, with and without its slash: the same object is copied; and fenced,
    the same bytes and metadata."""
    for key in ("a%7B%2Bb", "a%7B+b", "%C3%BC", "plain"):
        fields = [("x-amz-meta-from", key.replace("%", "_")), ("content-type", "text/odd")]
        await sides.ask("PUT", "/{b}/" + key, fields, key.encode())
    (await sides.ask("PUT", "/{b}/copy", [("x-amz-copy-source", source)], b"")).alike()
    for method in ("GET", "HEAD"):
        both = await sides.ask(method, "/{b}/copy")
        both.alike()
    fenced = await sides.through("PUT", "/{b}/renders/7/copy", [("x-amz-copy-source", source), TOKEN], b"")
    assert fenced.status == both.direct.status
    copied = await sides.through("GET", "/{b}/renders/7/copy")
    plain = await sides.through("GET", "/{b}/copy")
    assert copied.body == plain.body
    for name in ("x-amz-meta-from", "content-type"):
        assert copied.header(name) == plain.header(name)


@pytest.mark.parametrize(
    "fields",
    [
        [("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-new", "1")],
        [("x-amz-tagging-directive", "REPLACE"), ("x-amz-tagging", "new=1")],
        [("x-amz-tagging-directive", "COPY")],
        [("x-amz-metadata-directive", "REPLACE"), ("x-amz-tagging-directive", "COPY")],
        [("x-amz-metadata-directive", "COPY")],
    ],
    ids=str,
)
@pytest.mark.parametrize("destination", ["source", "another"])
async def test_directives_of_copies_as_at_the_store(sides: Sides, destination: str, fields: Pairs) -> None:
    """A copy, also onto itself, with replaced metadata or tags: object, metadata and tags are the store's."""
    own = [("x-amz-meta-old", "1"), ("x-amz-tagging", "old=1"), ("content-type", "text/odd")]
    await sides.ask("PUT", "/{b}/source", own, b"data")
    both = await sides.ask("PUT", "/{b}/" + destination, [("x-amz-copy-source", "{b}/source"), *fields], b"")
    assert both.through.status == both.direct.status, both
    for method, query in (("GET", ""), ("HEAD", ""), ("GET", "?tagging")):
        (await sides.ask(method, "/{b}/" + destination + query)).alike()


@pytest.mark.parametrize("given", [["replace"], ["Copy"], ["OTHER"], [""], ["REPLACE", "COPY"], ["REPLACE", "REPLACE"]])
@pytest.mark.parametrize("destination", ["source", "another", "renders/7/out"])
async def test_a_directive_that_is_none(rig: Rig, destination: str, given: list[str]) -> None:
    """Only COPY and REPLACE are any, as on S3: a store that took one for the other would copy the source's fence."""
    await rig.put("renders/8/source", b"fenced", 8)
    await rig.put("source", b"data", None)
    before = rig.stored(destination)
    for source in ("b/renders/8/source", "b/source"):
        fields = [("x-amz-copy-source", source), *(("x-amz-metadata-directive", value) for value in given)]
        answer = await rig.ask("PUT", f"/b/{destination}", [*fields, TOKEN], b"")
        assert (answer.status, answer.code) == (400, "InvalidArgument")
        assert answer.xml["Message"] == "Unknown metadata directive."
        assert rig.stored(destination) == before


# --- forms and preflights


@pytest.mark.parametrize("target", ["/b", "/b/", "/"])
@pytest.mark.parametrize("wait", [True, False], ids=["Expect", "at once"])
async def test_a_browsers_form_is_never_passed(rig: Rig, target: str, wait: bool) -> None:
    """With its policy or without, also where it names no bucket: 501, and not a byte of it upstream."""
    form = (
        b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\nrenders/7/out\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\ndata\r\n--x--\r\n'
    )
    fields = [
        ("host", HOST),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-length", str(len(form))),
        *([("expect", "100-continue")] if wait else []),
    ]
    answer = await rig.say(raw(f"POST {target} HTTP/1.1", fields) + (b"" if wait else form), "POST")
    assert answer.status == 501
    assert answer.closes
    assert rig.upstream.requests == []


CORS = b"""<CORSConfiguration><CORSRule><AllowedOrigin>https://a.example</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>
<AllowedMethod>GET</AllowedMethod><AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader></CORSRule>
</CORSConfiguration>"""


@pytest.mark.parametrize("target", ["/{b}/k", "/{b}/", "/{b}/?list-type=2", "/{b}/renders/7/out", "/absent-bucket/"])
@pytest.mark.parametrize(
    "fields",
    [
        [("origin", "https://a.example"), ("access-control-request-method", "PUT")],
        [
            ("origin", "https://a.example"),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-fencing-token,content-type,x-amz-date"),
        ],
        [("origin", "https://b.example"), ("access-control-request-method", "PUT")],
        [("origin", "https://a.example"), ("access-control-request-method", "DELETE")],
        [],
    ],
    ids=["put", "headers", "another origin", "another method", "bare"],
)
async def test_a_preflight_needs_no_signature(sides: Sides, target: str, fields: Pairs) -> None:
    """The store decides by the bucket's rules, and answers through the gateway what it answers without it; also for a
    bucket without its slash, which this store does not take by itself."""
    assert (await sides.ask("PUT", "/{b}?cors", [], CORS)).through.status == 200
    both = await sides.unsigned(f"OPTIONS {target}", fields)
    both.alike()
    if "/?" in target or target.endswith("/"):
        bare = target.replace("{b}", sides.of_gateway).replace("/?", "?").removesuffix("/")
        answer = await sides.rig.say(raw(f"OPTIONS {bare} HTTP/1.1", [("host", HOST), *fields]), "OPTIONS")
        replace(both, through=answer).alike()
