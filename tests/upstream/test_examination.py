"""What `doctor` finds out: everything that an honest store does, each lie, and nothing is left."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.base import Capabilities
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.examination import RACERS, TOLD, Report, examine
from gateway.upstream.memory import MemoryUpstream
from gateway.upstream.scratch import CannotProbe, NotReached, Scratch
from tests.conftest import REGION, StoreServer
from tests.server.rig import real
from tests.upstream.liars import (
    BUCKET,
    Bare,
    Careless,
    Corrupting,
    Gone,
    Ignoring,
    Impatient,
    JudgingHeads,
    KeepingCuts,
    NeverDeleting,
    Overlooking,
    Showing,
    SlowLosers,
    SlowToForget,
    Store,
    Versioned,
    Winners,
    is_copy,
    is_delete,
    is_put,
)
from tests.virtual_time import run

SILENCE_S = 20.0
EMBEDDED_LACKS = {"paths", "subresources"}
"""What SeaweedFS does not do; and of several Completes, several may win."""


async def examined(store: MemoryUpstream) -> Report:
    return await examine(store, BUCKET, "nonce", silence_s=SILENCE_S)


def lacking(report: Report) -> set[str]:
    return {name for name, finding in report.findings.items() if not finding.holds}


UNPACKED = {"trailers", "signed-chunks"}
"""What the store in memory does not do: it keeps a body's framing."""


def test_an_honest_store() -> None:
    """Everything is found to hold, told in one order, and nothing is left of it."""

    async def main() -> None:
        store = Store()
        report = await examined(store)
        assert tuple(report.findings) == TOLD
        assert lacking(report) == UNPACKED
        assert report.capabilities == Capabilities(
            conditional_put=True, conditional_copy=True, conditional_delete=True, files_paths=False, overlooks=False
        )
        assert (store.buckets[BUCKET], store.uploads, report.left) == ({}, {}, ())

    run(main())


@pytest.mark.parametrize(
    ("store", "lacks"),
    [
        (Corrupting(), {"plain"}),
        (Careless(), {"metadata", "copy-metadata"}),
        (Showing(), {"withheld", "cut", "put-race"}),
        (KeepingCuts(), {"cut"}),
        (Impatient(), {"silence"}),
        (Ignoring(is_put, "if-none-match"), {"put-absent", "put-race"}),
        (Ignoring(is_put, "if-match"), {"put-match", "put-moment", "put-race"}),
        (JudgingHeads(), {"put-moment", "put-race"}),
        (Winners(2), {"put-race"}),
        (SlowLosers(winners=2), {"put-race"}),
        (Ignoring(is_copy, "if-match"), {"copy"}),
        (Ignoring(is_delete, "if-match"), {"delete"}),
        (Ignoring(lambda r: r.method == "POST", "if-none-match"), {"complete", "complete-race"}),
        (Overlooking(), {"subresources", "complete", "complete-race", "abort", "versions"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lie_is_found_and_cleaned_up(store: Store, lacks: set[str]) -> None:
    """Each costs what it concerns and nothing else, and leaves nothing."""

    async def main() -> None:
        report = await examined(store)
        assert lacking(report) - UNPACKED == lacks
        assert (store.buckets[BUCKET], store.uploads) == ({}, {})

    run(main())


def test_etags_without_quotes() -> None:
    """All conditions are tried as the store understands them."""
    assert lacking(run(examined(Bare()))) == UNPACKED


def test_the_race_has_as_many_racers_as_it_says() -> None:
    """The report tells how many won of how many, and what the others heard."""
    seen = run(examined(Store())).findings["put-race"].seen
    assert seen.startswith(f"1 of {RACERS} won")
    assert f"412 PreconditionFailed ({RACERS - 1}x)" in seen


def test_how_long_silence_is_borne() -> None:
    """A store that gives up after 6 s has borne 5 of the 20."""
    assert run(examined(Impatient())).findings["silence"].seen.startswith("5 s, then ")
    assert run(examined(Store())).findings["silence"].seen == "20 s at least"


def test_no_version_is_left() -> None:
    """Where versions are kept each is removed by its id, with the marks of their deletion."""

    async def main() -> None:
        store = Versioned()
        await examined(store)
        assert store.versions == set()

    run(main())


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("AccessDenied", CannotProbe, "403 AccessDenied"),
        ("NoSuchBucket", CannotProbe, "404 NoSuchBucket"),
        ("lost", NotReached, "reset"),
        ("not reached", NotReached, "refused"),
    ],
)
def test_what_cannot_be_tried_out_says_why(how: str, kind: type[CannotProbe], words: str) -> None:
    """A store that refuses and one that is not there are told apart."""
    with pytest.raises(CannotProbe, match=words) as raised:
        run(examined(Gone(how)))
    assert type(raised.value) is kind


def test_the_removal_of_what_was_raced_for_is_seen_to() -> None:
    """A store that says too early that the object is gone is asked again."""

    async def main() -> None:
        store = SlowToForget()
        assert (await examined(store)).left == ()
        assert store.buckets[BUCKET] == {}

    run(main())


def test_what_cannot_be_removed_is_told() -> None:
    """Where DELETE is refused the report names every key that is there afterwards."""

    async def main() -> None:
        store = NeverDeleting()
        report = await examined(store)
        assert store.buckets[BUCKET]
        assert set(report.left) >= set(store.buckets[BUCKET])
        assert "delete" in lacking(report)

    run(main())


@pytest.mark.parametrize("after", range(0, 120, 13))
def test_an_examination_that_is_interrupted_leaves_nothing(after: int) -> None:
    """At whatever moment: no object and no upload is left, also none that was just being made."""

    async def main() -> None:
        store = Store()
        examining = asyncio.create_task(examined(store))
        while len(store.sent) <= after and not examining.done():
            await asyncio.sleep(0.001)
        examining.cancel()
        await asyncio.gather(examining, return_exceptions=True)
        assert examining.cancelled() or len(store.sent) <= after
        assert (store.buckets[BUCKET], store.uploads) == ({}, {})

    run(main())


async def test_without_credentials_no_signed_chunks_are_tried(store_server: StoreServer, bucket: str) -> None:
    """There is nothing to sign them with; that is said, and nothing sent."""
    client = UpstreamClient(store_server.url, region=REGION, credentials=StaticCredentials(None))
    try:
        async with Scratch(client, bucket, "nonce") as scratch:
            with pytest.raises(CannotProbe, match="no credentials"):
                await scratch.send_by(client.send_in_signed_chunk, "signed-chunks", b"signed")
    finally:
        await client.close()


async def test_the_embedded_store(store_server: StoreServer, bucket: str) -> None:
    """SeaweedFS does all that is relied upon, but for keys, which it files as paths, and what it overlooks."""
    upstream = real(store_server)
    try:
        signed = upstream.send_in_signed_chunk
        report = await examine(upstream, bucket, "nonce", silence_s=0.4, signed_chunks=signed)
    finally:
        await upstream.close()
    assert lacking(report) - {"complete-race"} == EMBEDDED_LACKS
    assert report.findings["signed-chunks"].seen == "200, unpacked"
    left = store_server.client.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert not {"Contents", "CommonPrefixes"} & left.keys()
    assert "Uploads" not in store_server.client.list_multipart_uploads(Bucket=bucket)
