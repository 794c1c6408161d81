"""Multipart uploads: completed twice, wrongly or late; and keys in the answers."""

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest

from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.cases.documents import completion, texts
from tests.cases.sides import Sides
from tests.server.rig import BUCKET, HOST, Answer, Pairs, Rig, rule, running

TOKEN = ("x-fencing-token", "5")
RULES = (rule("renders/{job}/**", "{job}"),)
PART = b"p" * (5 << 20)
ODD = "a&b<"
RAW_ODD = "a%26b%3C"


class Talking(MemoryUpstream):
    """Begins to answer a Complete before it knows its outcome, and then says `rest`."""

    def __init__(self, rest: bytes, *, applies: bool) -> None:
        super().__init__(BUCKET)
        self._rest, self._applies = rest, applies

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if request.method == "POST" and "uploadId=" in request.raw_query:
            if self._applies:
                super().apply(request, body)
            return MemoryResponse(200, [("content-type", "application/xml")], b" \n \n" * 5 + self._rest)
        return super().apply(request, body)


async def begun(rig: Rig, key: str, fields: Pairs, parts: list[tuple[int, bytes]]) -> str:
    """Create an upload and send its parts; the target of its Complete."""
    created = await rig.ask("POST", f"/b/{key}?uploads", fields, b"")
    (upload_id,) = texts(created.body, "UploadId")
    for number, data in parts:
        sent = await rig.ask("PUT", f"/b/{key}?partNumber={number}&uploadId={upload_id}", [], data)
        assert sent.status == 200
    return f"/b/{key}?uploadId={upload_id}"


INTERNAL = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>late</Message></Error>"


@pytest.mark.parametrize("rest", [INTERNAL, INTERNAL[21:], b""], ids=["declared", "bare", "nothing"])
@pytest.mark.parametrize("fields", [(), (TOKEN,)], ids=["without token", "with token"])
async def test_a_complete_that_fails_in_its_200(rest: bytes, fields: Pairs) -> None:
    """200, spaces, and then `<Error>` or nothing: an error for the client, in doubt for the gate."""
    async with running(upstream=Talking(rest, applies=False), rules=RULES) as rig:
        target = await begun(rig, "renders/7/out", fields, [(1, b"x")])
        answer = await rig.ask("POST", target, [], completion([(1, b"x")]))
        assert (answer.status, answer.code) == (503, "SlowDown")
        assert answer.xml["FencingReason"] == "InDoubt"
        assert answer.xml["FencingOutcome"] == "Unknown"
        assert len(rig.gateway.fences.unsettled()) == 1
        later = await rig.ask("PUT", "/b/renders/7/out", [("x-fencing-token", "6")], b"6")
        assert (later.status, later.xml["FencingReason"]) == (503, "HandoverPending")
        assert rig.stored("renders/7/out") is None


async def test_a_complete_that_fails_in_its_200_and_has_succeeded() -> None:
    """The object bears the upload's nonce: the client is told success, once and again, and where, also by the scheme
    that it speaks with a proxy."""
    async with running(upstream=Talking(INTERNAL, applies=True), rules=RULES) as rig:
        target = await begun(rig, "renders/7/out", [TOKEN], [(1, b"x")])
        for scheme in ("http", "https"):
            told = [("x-forwarded-proto", scheme)]
            answer = await rig.ask("POST", target, [], completion([(1, b"x")]), unsigned=told)
            assert answer.status == 200
            assert texts(answer.body, "Key") == ["renders/7/out"]
            assert texts(answer.body, "Location") == [f"{scheme}://{HOST}/b/renders/7/out"]


@pytest.mark.parametrize("key", ["plain", "renders/7/out"])
async def test_a_complete_sent_twice(sides: Sides, key: str) -> None:
    """Success twice, with one ETag and the address that the client knows, and the object is there once."""
    fields = [TOKEN] if key.startswith("renders") else []
    created = await sides.through("POST", f"/{{b}}/{key}?uploads", fields, b"")
    (upload_id,) = texts(created.body, "UploadId")
    parts = [(1, PART), (2, b"end")]
    for number, data in parts:
        await sides.through("PUT", f"/{{b}}/{key}?partNumber={number}&uploadId={upload_id}", [], data)
    answers = [
        await sides.through("POST", f"/{{b}}/{key}?uploadId={upload_id}", [], completion(parts)) for _ in range(2)
    ]
    assert [answer.status for answer in answers] == [200, 200]
    assert len({tuple(texts(answer.body, "ETag")) for answer in answers}) == 1
    for answer in answers:
        assert texts(answer.body, "Location") == [f"http://{HOST}/{sides.of_gateway}/{key}"]
    assert (await sides.through("GET", f"/{{b}}/{key}")).body == PART + b"end"


@pytest.mark.parametrize(
    ("parts", "listed"),
    [
        ([(1, PART), (2, b"end")], [(2, b"end"), (1, PART)]),
        ([(1, PART), (2, b"end")], [(1, PART), (1, PART)]),
        ([(1, PART), (2, b"small"), (3, b"end")], None),
        ([(1, b"small"), (2, b"end")], None),
        ([(1, b"x")], [(1, b"another")]),
        ([(1, b"x")], [(1, b"x"), (2, b"never sent")]),
        ([(1, b"x")], []),
        ([(10000, b"x")], None),
    ],
    ids=["order", "twice", "small in the middle", "small first", "another etag", "missing", "none", "last number"],
)
async def test_completes_that_s3_refuses(
    sides: Sides, parts: list[tuple[int, bytes]], listed: list[tuple[int, bytes]] | None
) -> None:
    """Parts in wrong order, under 5 MiB in the middle, unknown: the store's own answer, and the upload goes on."""
    created = await sides.ask("POST", "/{b}/k?uploads", [], b"")
    ids = [texts(answer.body, "UploadId")[0] for answer in (created.direct, created.through)]
    answers: list[Answer] = []
    for side, upload_id in zip((sides.direct, sides.through), ids, strict=True):
        for number, data in parts:
            part = await side("PUT", f"/{{b}}/k?partNumber={number}&uploadId={upload_id}", [], data)
            assert part.status == 200
        document = completion(parts if listed is None else listed)
        answers.append(await side("POST", f"/{{b}}/k?uploadId={upload_id}", [], document))
    direct, through = answers
    assert through.status == direct.status
    if through.status >= 300:
        assert through.code == direct.code
    assert (await sides.through("HEAD", "/{b}/k")).status == (await sides.direct("HEAD", "/{b}/k")).status


@pytest.mark.parametrize("number", ["0", "10001", "-1", "x", "", "1.0", "+1"])
async def test_part_numbers_that_are_none(sides: Sides, number: str) -> None:
    """400, whatever the store would make of it: one without a number it would take for the object itself."""
    created = await sides.through("POST", "/{b}/k?uploads", [], b"")
    (upload_id,) = texts(created.body, "UploadId")
    answer = await sides.through("PUT", f"/{{b}}/k?partNumber={number}&uploadId={upload_id}", [], b"x")
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert (await sides.through("HEAD", "/{b}/k")).status == 404


async def test_every_xml_that_echoes_a_key_is_well_formed(sides: Sides) -> None:
    """`a&b<` in the answers to Create, Complete and its repetition, in lists of all kinds, batches and errors."""
    for target in ("/{b}/" + RAW_ODD, "/{b}/renders/7/" + RAW_ODD):
        fields = [TOKEN] if "renders" in target else []
        key = target.removeprefix("/{b}/").replace(RAW_ODD, ODD)
        created = await sides.through("POST", target + "?uploads", fields, b"")
        assert texts(created.body, "Key") == [key]
        (upload_id,) = texts(created.body, "UploadId")
        await sides.through("PUT", f"{target}?partNumber=1&uploadId={upload_id}", [], b"x")
        for method, where in (("GET", f"{target}?uploadId={upload_id}"), ("GET", "/{b}?uploads")):
            assert texts((await sides.through(method, where)).body, "Key") == [key]
        for _ in range(2):
            done = await sides.through("POST", f"{target}?uploadId={upload_id}", [], completion([(1, b"x")]))
            assert texts(done.body, "Key") == [key]
        for query in ("", "list-type=2", "versions"):
            assert key in texts((await sides.through("GET", "/{b}?" + query)).body, "Key")
        if fields:
            stale = await sides.through("PUT", target, [("x-fencing-token", "4")], b"x")
            assert texts(stale.body, "Resource")[0].endswith(key)
        batch = f"<Delete><Object><Key>{escape(key)}</Key></Object></Delete>".encode()
        deleted = await sides.through("POST", "/{b}?delete", [], batch)
        assert texts(deleted.body, "Key") == [key]
        gone = await sides.through("GET", f"{target}-gone")
        assert texts(gone.body, "Code") == ["NoSuchKey"]
