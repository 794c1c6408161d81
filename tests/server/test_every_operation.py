"""The table of operations from head to answer (R1, R8): what fences what, and that a stale token reaches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.core.keys import Mode, Rule
from gateway.s3.operations import OPERATIONS, Body, Effect, Fences, Level, Operation
from tests.server.rig import BUCKET, Answer, Pairs, Rig, rule, running

KEY = "renders/7/frame"
FENCED = [row for row in OPERATIONS if row.fences is not Fences.NOTHING and row.effect is not Effect.NEVER]
RULED = [rule("renders/{job}/**", "{job}")]
DOCUMENTS = {
    "DeleteObjects": f"<Delete><Object><Key>{KEY}</Key></Object></Delete>",
    "RestoreObject": "<RestoreRequest><Days>1</Days></RestoreRequest>",
}


def by_name(row: Operation) -> str:
    return row.name


async def ask(rig: Rig, row: Operation, upload_id: str, *said: tuple[str, str]) -> Answer:
    """The plainest request of a row, for the object or for its bucket."""
    values = {"uploadId": upload_id, "partNumber": "1", "annotationName": "note"}
    names = [name for name in (row.subresource, *row.requires) if name is not None]
    query = "&".join(f"{name}={values[name]}" if name in values else name for name in names)
    target = f"/{BUCKET}" + (f"/{KEY}" if row.level is Level.OBJECT else "") + (query and f"?{query}")
    headers: Pairs = said if row.header is None else ((row.header, f"{BUCKET}/source"), *said)
    bodiless = row.method == "DELETE" or row.header is not None
    body = b"" if bodiless else b"late" if row.body is Body.PAYLOAD else DOCUMENTS.get(row.name, "<X/>").encode()
    return await rig.ask(row.method, target, headers, body)


async def created(rig: Rig, *said: tuple[str, str]) -> str:
    """Begin an upload of the object; answers its id."""
    body = (await rig.ask("POST", f"/{BUCKET}/{KEY}?uploads", said, b"")).body
    return body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()


@asynccontextmanager
async def overtaken(rules: list[Rule], *named: tuple[str, str]) -> AsyncIterator[tuple[Rig, str]]:
    """A gateway where token 34 has written the object after 33 had begun an upload, which is aborted by now."""
    async with running(rules=rules) as rig:
        await rig.put("source", b"source")
        upload_id = await created(rig, *named, ("x-fencing-token", "33"))
        assert (await rig.put(KEY, b"B", 34, *named)).status == 200
        async with asyncio.timeout(5):
            while f"DELETE {BUCKET}/{KEY}?uploadId={upload_id}" not in rig.upstream.writes:
                await asyncio.sleep(0)
        rig.upstream.requests.clear()
        yield rig, upload_id
        assert_kept(rig)
        assert rig.upstream.requests == []


def assert_kept(rig: Rig) -> None:
    """The object is what token 34 wrote."""
    stored = rig.stored(KEY)
    assert stored is not None
    assert stored.data == b"B"


def refusal(row: Operation, answer: Answer) -> str:
    """The code of a refusal: in a batch it is the object's own."""
    if row.fences is not Fences.BATCH:
        assert answer.xml["FencingOutcome"] == "NotApplied"
        return answer.code
    assert b"<Deleted>" not in answer.body
    return answer.body.partition(b"<Code>")[2].partition(b"<")[0].decode()


WAYS = {"by rule": (RULED, ()), "by header": ([], (("x-fencing-key", "7"),)), "by itself": ([], ())}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", [row for row in FENCED if row.effect is not Effect.DISCARD], ids=by_name)
async def test_a_stale_token_reaches_nothing(row: Operation, way: str) -> None:
    """Every operation with an effect on an object is refused below the floor and the store hears nothing of it, however
    its key is named, and for parts and Complete also where the token is the upload's."""
    rules, named = WAYS[way]
    async with overtaken(rules, *named) as (rig, upload_id):
        answers = [await ask(rig, row, upload_id, *named, ("x-fencing-token", "33"))]
        if row.fences is Fences.UPLOAD:
            answers.append(await ask(rig, row, upload_id))
        for answer in answers:
            assert refusal(row, answer) == "PreconditionFailed", answer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", [row for row in FENCED if row.fences is not Fences.UPLOAD], ids=by_name)
async def test_without_a_token_nothing_is_reached_either(row: Operation, way: str) -> None:
    """The key has a floor: a write that bears no token is refused, whether it names the key or not."""
    rules, named = WAYS[way]
    async with overtaken(rules, *named) as (rig, upload_id):
        for said in {(), named}:
            assert refusal(row, await ask(rig, row, upload_id, *said)) in ("FencingTokenRequired", "InvalidArgument")


@pytest.mark.parametrize("row", [row for row in FENCED if row.fences is not Fences.UPLOAD], ids=by_name)
async def test_another_key_reaches_nothing(row: Operation) -> None:
    """However high its token: the object is another job's."""
    for rules, named in WAYS.values():
        async with overtaken(rules, *named) as (rig, upload_id):
            answer = await ask(rig, row, upload_id, ("x-fencing-key", "another"), ("x-fencing-token", "99"))
            code = answer.code if answer.status != 200 else refusal(row, answer)
            assert code == "InvalidArgument"


@pytest.mark.parametrize("row", [row for row in FENCED if row.fences is Fences.UPLOAD], ids=by_name)
async def test_an_upload_is_its_own_tokens(row: Operation) -> None:
    """A token that is not the upload's touches nothing of it, lower or higher; nor does one that names another key, or
    an upload that nobody has begun here."""
    async with running(rules=RULED) as rig:
        upload_id = await created(rig, ("x-fencing-token", "34"))
        rig.upstream.requests.clear()
        for said in ([("x-fencing-token", "33")], [("x-fencing-token", "35")], [("x-fencing-key", "another")]):
            assert refusal(row, await ask(rig, row, upload_id, *said)) == "InvalidArgument"
        assert (await ask(rig, row, "unheard-of", ("x-fencing-token", "34"))).code == "NoSuchUpload"
        assert rig.upstream.requests == []


@pytest.mark.parametrize("row", FENCED, ids=by_name)
async def test_the_floor_itself_reaches_the_store(row: Operation) -> None:
    """The same requests pass with the token that holds the key: what refuses the others is the fence."""
    async with running(rules=RULED) as rig:
        await rig.put("source", b"source")
        assert (await rig.put(KEY, b"B", 34)).status == 200
        upload_id = await created(rig, ("x-fencing-token", "34"))
        before = len(rig.upstream.writes)
        await ask(rig, row, upload_id, ("x-fencing-token", "34"))
        method, _, target = rig.upstream.writes[before].partition(" ")
        assert (method, target.partition("?")[0].rstrip("/")) == (
            row.method,
            BUCKET if row.level is Level.BUCKET else f"{BUCKET}/{KEY}",
        )


async def test_an_overtaken_upload_may_still_be_thrown_away_by_its_own_worker() -> None:
    """To abort has no visible effect, and the worker that cleans up behind itself is not told off."""
    async with running(rules=RULED) as rig:
        upload_id = await created(rig, ("x-fencing-token", "33"))
        assert (await rig.put(KEY, b"B", 34)).status == 200
        (row,) = [row for row in FENCED if row.effect is Effect.DISCARD]
        answer = await ask(rig, row, upload_id, ("x-fencing-token", "33"))
        assert answer.status == 204 or answer.code == "NoSuchUpload"
        assert_kept(rig)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.effect is Effect.NEVER], ids=by_name)
async def test_ways_around_the_fence_are_closed(row: Operation, mode: Mode) -> None:
    """They are never passed, whatever the mode."""
    async with running(rules=[rule("**", mode=mode)]) as rig:
        answer = await ask(rig, row, "u")
        assert (answer.status, answer.xml["FencingReason"]) == (501, "OperationNotFenced")
        assert rig.upstream.requests == []


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_restore_writes_nowhere_else(mode: Mode) -> None:
    """A RestoreObject of type SELECT names the place of its results, which no fence covers: refused in every mode, and
    so is what cannot be read. Without one it goes through."""
    output = "<OutputLocation><S3><BucketName>b</BucketName><Prefix>renders/7/</Prefix></S3></OutputLocation>"
    async with running(rules=[rule("**", mode=mode)]) as rig:
        for request in (
            f"<RestoreRequest><Type>SELECT</Type>{output}</RestoreRequest>",
            f'<a:RestoreRequest xmlns:a="http://s3.amazonaws.com/doc/2006-03-01/"><a:x>{output}</a:x></a:RestoreRequest>',
            "<RestoreRequest><outputlocation/></RestoreRequest>",
            f"<RestoreRequest>{' ' * 65536}{output}</RestoreRequest>",
        ):
            answer = await rig.ask("POST", f"/{BUCKET}/{KEY}?restore", [], request.encode())
            assert (answer.status, answer.xml["FencingReason"]) == (501, "OperationNotFenced")
        for request in ("<RestoreRequest>", "<!DOCTYPE x><RestoreRequest/>"):
            assert (await rig.ask("POST", f"/{BUCKET}/{KEY}?restore", [], request.encode())).code == "MalformedXML"
        assert rig.upstream.writes == []
        await rig.ask("POST", f"/{BUCKET}/{KEY}?restore", [], DOCUMENTS["RestoreObject"].encode())
        await rig.ask("POST", f"/{BUCKET}/{KEY}?restore", [], b"")
        assert rig.upstream.writes == [f"POST {BUCKET}/{KEY}?restore"] * 2
