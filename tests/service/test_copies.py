"""R7: a copy is fenced by its destination, and never carries the source's fence along."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from gateway.core.errors import Reason
from gateway.s3.errors import S3Error
from gateway.service.copies import copy_source
from gateway.service.waits import Timing
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.service.between import answers_late
from tests.service.rig import BUCKET, DEAF, JOB, Fault, elapsed, refusal, rig
from tests.virtual_time import run

CUSTOM = (("x-amz-meta-colour", "blue"), ("content-type", "video/mp4"), ("cache-control", "no-store"))


def metadata(r, key: str) -> dict[str, str]:
    return dict(r.object(key).metadata)


@pytest.mark.parametrize("token", [0, 7])
def test_the_sources_metadata_comes_along_and_its_fence_does_not(token) -> None:
    """Fenced or not, the copy bears its own fence or none, and all else that the source bore."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A", headers=CUSTOM)
        result = await r.copy(token, "renders/k/copy")
        assert result.status == 200
        found = metadata(r, "renders/k/copy")
        assert {n: found[n] for n, _ in CUSTOM} == dict(CUSTOM)
        assert found.get("x-amz-meta-fencing-token") == ("7" if token else None)
        assert found.get("x-amz-meta-fencing-key") == ("k" if token else None)

    run(main())


def test_metadata_that_the_client_sends_for_nothing_stays_out() -> None:
    """Without REPLACE S3 overlooks it, though the gateway then says REPLACE in the client's place."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A", headers=CUSTOM)
        said = {"x_amz_meta_colour": "red", "x_amz_meta_other": "1", "content_type": "a/b", "expires": "0"}
        assert (await r.copy(7, "renders/k/copy", **said)).status == 200
        found = metadata(r, "renders/k/copy")
        assert {n: v for n, v in found.items() if "fencing" not in n} == dict(CUSTOM)

    run(main())


def test_a_source_that_is_fenced_in_between_is_not_copied() -> None:
    """R7: a copy without a token of a source that bore no fence when it was looked at; found by simulation."""

    async def main() -> None:
        r = await rig()
        await r.put(0, b"A")
        read = r.upstream.read

        async def reading_too_early(request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
            head = await read(request, body)
            if r.data() == b"A":
                await r.put(33, b"A2")
            return head

        r.upstream.read = reading_too_early
        assert (await r.copy(0, "renders/k/copy")).status == 412
        assert r.data("renders/k/copy") is None

    run(main())


def test_a_source_whose_equal_bytes_are_fenced_in_between_leaves_its_fence_behind() -> None:
    """R7: no condition tells equal bytes apart, so a copy without a token spells out what it takes along; found by
    simulation."""

    async def main() -> None:
        r = await rig()
        await r.put(0, b"A", headers=CUSTOM)
        read = r.upstream.read

        async def reading_too_early(request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
            head = await read(request, body)
            if "x-amz-meta-fencing-token" not in metadata(r, JOB):
                await r.put(33, b"A", headers=CUSTOM)
            return head

        r.upstream.read = reading_too_early
        assert (await r.copy(0, "renders/k/copy")).status == 200
        assert metadata(r, "renders/k/copy") == dict(CUSTOM)
        assert (await r.put(1, b"K", key="renders/k/copy")).status == 200

    run(main())


def test_a_source_that_changes_in_between_is_not_copied() -> None:
    """The metadata that was read belongs to one state of the source, and so does the copy."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A", headers=CUSTOM)
        read = r.upstream.read

        async def reading_too_early(request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
            head = await read(request, body)
            if r.data() == b"A":
                await r.put(33, b"A2", headers=CUSTOM)
            return head

        r.upstream.read = reading_too_early
        assert (await refusal(r.copy(7, "renders/k/copy"))).reason is Reason.STATE_MOVED
        assert r.data("renders/k/copy") is None

    run(main())


def test_the_clients_own_condition_on_the_source_keeps_its_meaning() -> None:
    """It is judged before the gateway's own takes its place."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        etag = r.object().etag
        await r.copy(7, "renders/k/copy", x_amz_copy_source_if_match=etag)
        with pytest.raises(S3Error) as caught:
            await r.copy(7, "renders/k/copy", x_amz_copy_source_if_match='"another"')
        assert caught.value.code == "PreconditionFailed"

    run(main())


def test_a_stale_copy_is_refused_by_its_destination() -> None:
    """Whatever token the source bears."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await r.put(9, b"K", key="renders/k/copy")
        assert (await refusal(r.copy(8, "renders/k/copy"))).reason is Reason.STALE_TOKEN
        assert r.data("renders/k/copy") == b"K"

    run(main())


def test_a_200_without_an_outcome_leaves_a_copy_in_doubt() -> None:
    """G5 for copies."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        r.upstream.faults = [Fault.EMPTY_200]
        assert (await refusal(r.copy(7, "renders/k/copy"))).reason is Reason.IN_DOUBT
        assert r.fences.unsettled("k")

    run(main())


def test_replaced_metadata_is_the_clients() -> None:
    """With REPLACE nothing of the source's is looked at."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A", headers=CUSTOM)
        fields = {"x_amz_metadata_directive": "REPLACE", "x_amz_meta_colour": "red"}
        await r.copy(7, "renders/k/copy", **fields)
        found = metadata(r, "renders/k/copy")
        assert found["x-amz-meta-colour"] == "red"
        assert "cache-control" not in found

    run(main())


def test_copying_onto_itself_must_change_something() -> None:
    """S3's own answer, which a spelt-out REPLACE would hide."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        for said in ({}, {"x_amz_tagging_directive": "COPY"}):
            with pytest.raises(S3Error) as caught:
                await r.copy(33, JOB, **said)
            assert caught.value.code == "InvalidRequest"
        assert (await r.copy(33, JOB, x_amz_tagging_directive="REPLACE")).status == 200

    run(main())


@pytest.mark.parametrize("key", ["renders/k/copy", JOB])
def test_an_absent_source_is_no_such_key(key) -> None:
    """As on S3, also where it would be copied onto itself."""

    async def main() -> None:
        r = await rig()
        with pytest.raises(S3Error) as caught:
            await r.copy(7, key)
        assert caught.value.code == "NoSuchKey"

    run(main())


def test_the_clients_demands_on_the_source_are_made_of_it() -> None:
    """S3 overlooks the date where an If-Match holds, and the gateway's own always would."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        asked = []

        async def read(request, body=b""):
            asked.append(dict(request.headers))
            return MemoryResponse(412, [], b"")

        r.upstream.read = read
        demands = {"x_amz_copy_source_if_unmodified_since": "then", "x_amz_copy_source_if_match": '"e"'}
        with pytest.raises(S3Error) as caught:
            await r.copy(7, "renders/k/copy", **demands)
        assert caught.value.code == "PreconditionFailed"
        assert asked == [{"if-match": '"e"', "if-unmodified-since": "then"}]

    run(main())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a b", ("a%20b", "")),
        ("ü", ("%C3%BC", "")),
        ("50% of x%zz", ("50%25%20of%20x%25zz", "")),
        ("\udcc3%BC", ("%C3%BC", "")),
        ("a%20b+c'd", ("a%20b+c'd", "")),
        ("k?versionId=a b", ("k", "versionId=a%20b")),
    ],
)
def test_a_source_is_asked_for_as_a_target_can_say_it(source, target) -> None:
    """A header may hold spaces, percent signs and letters of any script plainly, a request's line may not."""

    async def main() -> None:
        r = await rig()
        asked = []

        async def read(request, body=b""):
            asked.append((request.raw_key, request.raw_query))
            return MemoryResponse(404, [], b"")

        r.upstream.read = read
        with pytest.raises(S3Error):
            await r.copy(7, "renders/k/copy", f"{BUCKET}/{source}")
        assert asked == [target]

    run(main())


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize(
    ("source", "demand", "refused"),
    [
        ("renders/j/absent", {}, (404, "NoSuchKey")),
        (JOB, {"x_amz_copy_source_if_match": '"another"'}, (412, "PreconditionFailed")),
    ],
    ids=["absent", "another"],
)
def test_what_the_upstream_says_of_the_source_is_the_answer(there, source, demand, refused) -> None:
    """With REPLACE it alone looks at the source; its refusal is not taken for a lost condition on the copy."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        if there:
            await r.put(7, b"B", key="renders/k/copy")
        sent = len(r.upstream.sent)
        result = await r.copy(7, "renders/k/copy", f"{BUCKET}/{source}", x_amz_metadata_directive="REPLACE", **demand)
        assert (result.status, result.code) == refused
        assert len(r.upstream.sent) == sent + 1

    run(main())


@pytest.mark.parametrize("bucket", ["a b", "a\tb", "ü", "-b", "b?x", ".."])
def test_a_source_in_what_is_no_bucket(bucket) -> None:
    """Nothing of it reaches a request's line."""
    with pytest.raises(S3Error) as caught:
        copy_source(f"{quote(bucket, safe=' ')}/k")
    assert caught.value.code == "NoSuchBucket"


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("b/k", ("b", "k", "")),
        ("/b/k%2Bx", ("b", "k%2Bx", "")),
        ("b%2Fk", ("b", "k", "")),
        ("b/k?versionId=3", ("b", "k", "versionId=3")),
    ],
)
def test_a_copy_source_in_its_forms(value, parts) -> None:
    """With and without a leading slash, encoded, with a version."""
    assert copy_source(value) == parts


@pytest.mark.parametrize("value", ["", "b", "/b/", "//k"])
def test_a_copy_source_without_bucket_or_key_is_refused(value) -> None:
    """InvalidArgument, as on S3."""
    with pytest.raises(S3Error) as caught:
        copy_source(value)
    assert caught.value.code == "InvalidArgument"


def test_a_copy_in_doubt_is_remembered_over_a_crash() -> None:
    """R5: what a copy may still do takes as long as a Complete, also for a key that has no upload open."""

    async def main() -> None:
        r = await rig(capabilities=DEAF)
        await r.put(33, b"A")
        await r.put(7, b"K", key="renders/k/copy")
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.copy(7, "renders/k/copy"))
        await r.store.stop(clean=False)
        r = await rig(capabilities=DEAF, store=r.store, upstream=r.upstream, timing=Timing(handover_wait_s=1000))
        _, seconds = await elapsed(r.put(34, b"J", key=JOB))
        assert seconds == pytest.approx(30, abs=0.1)
        _, seconds = await elapsed(r.put(8, b"L", key="renders/k/copy"))
        assert seconds == pytest.approx(270, abs=0.1)
        await asyncio.sleep(60)
        assert await r.store.uploads.unfinished(None, 10) == []

    run(main())


def test_a_settled_copy_leaves_no_mark() -> None:
    """The mark goes when the copy is settled, so that the next unclean start waits no longer than it must."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        await r.copy(7, "renders/k/copy")
        await r.writes.close()
        assert await r.store.uploads.unfinished(None, 10) == []

    run(main())


@pytest.mark.parametrize("how", ["overtaken", "client gone", "store failed"])
def test_a_copy_that_ends_while_it_is_marked_leaves_no_mark(how) -> None:
    """Nothing was sent: the next unclean start has nothing to wait for. Of a store that failed nobody knows."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        answers_late(r.store.uploads, "bind", after_s=5, denied=how == "store failed")
        copying = asyncio.create_task(r.copy(7, "renders/k/copy"))
        await asyncio.sleep(1)
        assert len(await r.store.uploads.unfinished(None, 10)) == 1
        if how == "overtaken":
            await r.put(8, b"B", key="renders/k/copy")
        elif how == "client gone":
            copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        await r.writes.close()
        assert await r.store.uploads.unfinished(None, 10) == []

    run(main())


def test_a_copy_of_an_earlier_run_leaves_no_mark_once_it_can_land_no_more() -> None:
    """R5: the next unclean start waits no longer for it."""

    async def main() -> None:
        r = await rig(capabilities=DEAF)
        await r.put(33, b"A")
        r.upstream.faults = [Fault.LOST_LATE]
        await refusal(r.copy(7, "renders/k/copy"))
        await r.store.stop(clean=False)
        for live in r.fences.gates:  # nothing of that run goes on
            for passage in live.passages.values():
                passage.on_settled = None
        r = await rig(capabilities=DEAF, store=r.store, upstream=r.upstream)
        await asyncio.sleep(290)
        assert len(await r.store.uploads.unfinished(None, 10)) == 1
        await asyncio.sleep(70)
        assert await r.store.uploads.unfinished(None, 10) == []

    run(main())
