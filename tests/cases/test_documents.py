"""Documents come in the same ways as objects: every mode in every framing, verified, and whole for the store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.cases.documents import completion
from tests.cases.stores import Strict
from tests.cases.uploads import Framing, Mode, checksum, converse, upload
from tests.server.rig import BUCKET, Pairs, Rig, rule, running

TOKEN = ("x-fencing-token", "5")
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
DOCUMENTS: list[tuple[str, str, Pairs]] = [
    ("PUT", "/b?cors", ()),
    ("PUT", "/b?lifecycle", ()),
    ("PUT", "/b/k?tagging", ()),
    ("PUT", "/b/renders/7/out?tagging", (TOKEN,)),
    ("POST", "/b/k?select&select-type=2", ()),
]


def by_name(value: object) -> str | None:
    return value.name.lower() if isinstance(value, Mode | Framing) else None


class Recording(Strict):
    """Remembers each request with its whole body."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.seen: list[tuple[UpstreamRequest, bytes]] = []

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        self.seen.append((request, body))
        return super().apply(request, body)


@pytest.fixture
async def store() -> Recording:
    """A store that knows neither chunks nor trailers."""
    return Recording()


@pytest.fixture
async def rig(store: Recording) -> AsyncIterator[Rig]:
    async with running(upstream=store, rules=[rule("renders/{job}/**", "{job}")]) as rig:
        yield rig


@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", Mode, ids=by_name)
async def test_every_document_in_every_mode_and_framing(
    rig: Rig, store: Recording, mode: Mode, framing: Framing
) -> None:
    """The store gets the very document, small and large, and the checksum that trailed it: of some documents it asks
    for one."""
    for method, target, fields in DOCUMENTS:
        for document in (TAGS, TAGS + b" " * 100_000):
            sent = upload(target, document, mode, framing, fields=fields, method=method)
            store.seen.clear()
            await converse(await rig.wire(), sent)
            ((request, body),) = [(r, body) for r, body in store.seen if r.method == method]
            assert body == document
            if document == TAGS:
                kept = dict(request.headers).get("x-amz-checksum-crc32")
                assert kept == (checksum("crc32", document) if mode.trailer else None)


@pytest.mark.parametrize("framing", Framing, ids=by_name)
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.PLAIN], ids=by_name)
async def test_completes_and_batches_in_every_mode_and_framing(
    rig: Rig, store: Recording, mode: Mode, framing: Framing
) -> None:
    """The checksum that trails a Complete speaks of its document: it is not told to the store as the object's."""
    created = await rig.ask("POST", "/b/renders/7/out?uploads", [TOKEN], b"")
    upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    await rig.ask("PUT", f"/b/renders/7/out?partNumber=1&uploadId={upload_id}", [], b"x")
    target = f"/b/renders/7/out?uploadId={upload_id}"
    done = await converse(await rig.wire(), upload(target, completion([(1, b"x")]), mode, framing, method="POST"))
    assert done.status == 200, done.body
    assert "x-amz-checksum-crc32" not in dict(store.seen[-1][0].headers)
    batch = b"<Delete><Object><Key>renders/7/out</Key></Object></Delete>"
    deleted = await converse(await rig.wire(), upload("/b?delete", batch, mode, framing, method="POST", fields=[TOKEN]))
    assert deleted.status == 200, deleted.body
    assert rig.stored("renders/7/out") is None


@pytest.mark.parametrize("mode", [Mode.SIGNED_TRAILER, Mode.UNSIGNED_TRAILER], ids=by_name)
@pytest.mark.parametrize(("method", "target", "fields"), DOCUMENTS)
async def test_a_document_with_a_wrong_checksum(
    rig: Rig, store: Recording, mode: Mode, method: str, target: str, fields: Pairs
) -> None:
    """400, and not a byte of it goes upstream, small or large."""
    for document in (TAGS, TAGS + b" " * 100_000):
        wrong = checksum("crc32", b"another")
        sent = upload(target, document, mode, fields=fields, method=method, value=wrong)
        answer = await converse(await rig.wire(), sent)
        assert (answer.status, answer.code) == (400, "BadDigest")
    assert [body for _, body in store.seen if body] == []
