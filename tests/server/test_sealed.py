"""R3: a sealed token is refused like a lower one, wherever a floor is looked at."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import FenceError
from gateway.core.keys import FencingKey, Token
from gateway.stores.values import Event, EventKind
from tests.server.rig import BUCKET, Answer, Rig, rule, running, signed
from tests.server.test_s3_batch import delete

RULES = [rule("renders/{job}/**", "{job}")]
OBJECT = f"/{BUCKET}/renders/j/o"
SAID = [("x-fencing-token", "33")]


async def seal(rig: Rig) -> None:
    await rig.gateway.fences.seal(FencingKey("j"), Token(33), Event("j", EventKind.SEALED, 33, 33, "operator: x"))


def is_sealed(answer: Answer, outcome: str = "NotApplied") -> bool:
    assert (answer.status, answer.code) == (412, "PreconditionFailed")
    assert (answer.header("x-fencing-reason"), answer.header("x-fencing-floor")) == ("Sealed", "33")
    assert answer.header("x-fencing-outcome") == outcome
    assert answer.header("retry-after") is None
    return True


async def begun(rig: Rig) -> tuple[str, str]:
    """An upload of 33, and the document that completes it."""
    before = set(rig.upstream.inner.uploads)  # type: ignore[attr-defined]
    await rig.ask("POST", f"{OBJECT}?uploads", SAID)
    (upload_id,) = set(rig.upstream.inner.uploads) - before  # type: ignore[attr-defined]
    etag = (await rig.ask("PUT", f"{OBJECT}?partNumber=1&uploadId={upload_id}", (), b"part")).header("etag")
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    return upload_id, f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>"


async def test_every_call_refuses_a_sealed_token() -> None:
    """Writes, copies, settings of the object, uploads' beginnings, parts and Completes, batches and `check`: all say
    Sealed, and not a byte goes upstream; the next token begins anew."""
    async with running(rules=RULES) as rig:
        await rig.put("renders/j/o", b"A", 33)
        upload_id, document = await begun(rig)
        await seal(rig)
        sent = len(rig.upstream.writes)
        copy = ("x-amz-copy-source", f"{BUCKET}/renders/j/o")
        for method, target, headers, body in (
            ("PUT", OBJECT, SAID, b"A2"),
            ("DELETE", OBJECT, SAID, None),
            ("PUT", f"/{BUCKET}/renders/j/copy", [*SAID, copy], None),
            ("PUT", f"{OBJECT}?tagging", SAID, b"<Tagging><TagSet></TagSet></Tagging>"),
            ("POST", f"{OBJECT}?uploads", SAID, None),
            ("PUT", f"{OBJECT}?partNumber=2&uploadId={upload_id}", [], b"part"),
            ("PUT", f"{OBJECT}?partNumber=2&uploadId={upload_id}", [copy], None),
            ("POST", f"{OBJECT}?uploadId={upload_id}", [], document.encode()),
        ):
            assert is_sealed(await rig.ask(method, target, headers, body)), (method, target)
        assert b"<Code>PreconditionFailed</Code>" in (await delete(rig, "renders/j/o", token=33)).body
        with pytest.raises(FenceError, match="sealed"):
            await rig.gateway.fences.admit(FencingKey("j"), Token(33), cause="check")
        assert len(rig.upstream.writes) == sent
        assert rig.stored("renders/j/o").data == b"A"
        assert (await rig.put("renders/j/o", b"B", 34)).status == 200


async def test_a_completed_upload_of_a_sealed_token_is_unknown() -> None:
    """R6: it did succeed once; whether it still stands the gateway does not say."""
    async with running(rules=RULES) as rig:
        upload_id, document = await begun(rig)
        target = f"{OBJECT}?uploadId={upload_id}"
        assert (await rig.ask("POST", target, [], document.encode())).status == 200
        assert (await rig.ask("POST", target, [], document.encode())).status == 200
        await seal(rig)
        assert is_sealed(await rig.ask("POST", target, [], document.encode()), "Unknown")


async def test_an_upload_of_a_sealed_token_can_be_thrown_away() -> None:
    """R6: aborting discards what was staged, whoever holds the key."""
    async with running(rules=RULES) as rig:
        upload_id, _ = await begun(rig)
        await seal(rig)
        assert (await rig.ask("DELETE", f"{OBJECT}?uploadId={upload_id}")).status == 204


@pytest.mark.parametrize("target", [OBJECT, f"{OBJECT}?partNumber=1&uploadId={{}}"], ids=["a PUT", "a part"])
async def test_sealing_interrupts_what_is_staged(target: str) -> None:
    """R3: whoever is still sending is told at once, and nothing of it is visible."""
    async with running(rules=RULES, small_body_bytes=16) as rig:
        upload_id, _ = await begun(rig)
        target = target.format(upload_id)
        staged = asyncio.Event()
        open_ = rig.upstream.open

        async def opening(request, content_length):
            exchange = await open_(request, content_length)
            staged.set()
            return exchange

        rig.upstream.open = opening  # type: ignore[method-assign]
        wire = await rig.wire()
        head = signed("PUT", target, [*SAID, ("content-length", "200000")], None, payload="UNSIGNED-PAYLOAD")
        await wire.send(head + b"A" * 100_000)
        await asyncio.wait_for(staged.wait(), 10)
        await seal(rig)
        assert is_sealed(await wire.answer())
        assert rig.stored("renders/j/o") is None
