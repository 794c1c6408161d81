"""R7: DeleteObjects, decided object by object."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import FenceError, Outcome, Reason
from gateway.core.keys import FencingKey, Token
from gateway.s3.request import Headers, parse_head
from gateway.s3.xml import BatchObject, parse_batch_result
from gateway.service.batches import Batches
from gateway.service.values import Result
from gateway.service.waits import Timing
from gateway.stores.values import Event, EventKind
from gateway.upstream.memory import MemoryResponse
from tests.service.rig import BUCKET, DEAF, JOB, Fault, elapsed, refusal, rig
from tests.virtual_time import run

HEAD = parse_head("POST", f"/{BUCKET}?delete", Headers([]))


async def answer(
    r, *wanted: tuple[str, int | None], quiet: bool = False, version_id: str | None = None, refusals: Any = None
) -> Result:
    """Delete objects, each with its token (None: no fence covers it); `refusals` takes what the fence refuses."""
    writes = [
        (BatchObject(key, version_id, (("Key", key),)), None if token is None else r.write("DELETE", key, token, None))
        for key, token in wanted
    ]
    told = [] if refusals is None else refusals
    return await Batches(r.writes).delete(
        HEAD, BUCKET, writes, quiet=quiet, on_refusal=lambda error, _: told.append(error)
    )


async def delete(r, *wanted: tuple[str, int | None], quiet: bool = False) -> tuple[bytes, list[FenceError]]:
    """The same; answers the body and the refusals."""
    refusals: list[FenceError] = []
    result = await answer(r, *wanted, quiet=quiet, refusals=refusals)
    assert result.status == 200
    return result.body, refusals


def test_what_is_refused_is_its_own_error_and_the_rest_goes_through() -> None:
    """One stale, one with the right token, one without a fence: one request upstream."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        await r.put(0, b"3", key="plain")
        sent = len(r.upstream.sent)
        body, refusals = await delete(r, ("renders/a/o", 33), ("renders/b/o", 5), ("plain", None))
        assert [error.reason for error in refusals] == [Reason.STALE_TOKEN]
        assert b"<Error><Key>renders/a/o</Key><Code>PreconditionFailed</Code>" in body
        assert b"<Deleted><Key>renders/b/o</Key></Deleted>" in body
        assert b"<Deleted><Key>plain</Key></Deleted>" in body
        assert [r.data(key) for key in ("renders/a/o", "renders/b/o", "plain")] == [b"1", None, None]
        assert len(r.upstream.sent) == sent + 1

    run(main())


def test_all_refused_sends_nothing() -> None:
    """There is nothing left to ask the upstream for."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        sent = len(r.upstream.sent)
        _, refusals = await delete(r, ("renders/a/o", 33))
        assert len(refusals) == 1
        assert len(r.upstream.sent) == sent

    run(main())


def test_a_pending_hand_over_is_that_objects_error_and_nobody_waits() -> None:
    """A batch never holds one gate while it waits for another."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"1", key="renders/a/o"))
        (_, refusals), seconds = await elapsed(delete(r, ("renders/a/o", 34), ("renders/b/o", 1)))
        assert [error.reason for error in refusals] == [Reason.HANDOVER_PENDING]
        assert seconds == 0

    run(main())


@pytest.mark.parametrize("fault", [Fault.LOST_DROPPED, Fault.ERROR_500_DROPPED, Fault.EMPTY_200], ids=lambda f: f.name)
def test_a_lost_answer_leaves_every_object_in_doubt(fault) -> None:
    """The hand-overs of all their keys wait for the settle time-out."""

    async def main() -> None:
        r = await rig(capabilities=DEAF, timing=Timing(handover_wait_s=60))
        await r.put(5, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        r.upstream.faults = [fault]
        error = await refusal(delete(r, ("renders/a/o", 5), ("renders/b/o", 5)))
        assert error.outcome is Outcome.UNKNOWN
        times = [elapsed(r.put(6, b"x", key=f"renders/{job}/o")) for job in "ab"]
        for _, seconds in await asyncio.gather(*times):
            assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_quiet_names_the_errors_alone() -> None:
    """As on S3."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        body, _ = await delete(r, ("renders/a/o", 33), ("renders/b/o", 5), quiet=True)
        assert b"<Deleted>" not in body
        assert b"<Error>" in body

    run(main())


def test_an_object_that_another_keys_send_may_still_change_is_left_out() -> None:
    """R9: its own error, and not a byte of it in the request."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        await r.put(5, b"2", key="renders/b/o")
        r.writes.objects.pin(BUCKET, "renders/a/o").begin(FencingKey("another"))
        _, refusals = await delete(r, ("renders/a/o", 5), ("renders/b/o", 5))
        assert [error.reason for error in refusals] == [Reason.HANDOVER_PENDING]
        assert [r.data(key) for key in ("renders/a/o", "renders/b/o")] == [b"1", None]

    run(main())


@pytest.mark.parametrize("fault", [Fault.REFUSED_403, Fault.NOT_REACHED], ids=lambda fault: fault.name)
def test_a_batch_that_is_refused_or_not_sent_leaves_no_doubt(fault) -> None:
    """R5: final for all of its objects."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        r.upstream.faults = [fault]
        if fault is Fault.NOT_REACHED:
            assert (await refusal(delete(r, ("renders/a/o", 5)))).outcome is Outcome.NOT_APPLIED
        else:
            assert (await answer(r, ("renders/a/o", 5))).code == "AccessDenied"
        assert r.fences.unsettled() == []

    run(main())


@pytest.mark.parametrize(
    ("element", "doubtful"),
    [
        ("<Deleted><Key>renders/a/o</Key></Deleted>", False),
        ("<Error><Key>renders/a/o</Key><Code>AccessDenied</Code><Message/></Error>", False),
        ("<Error><Key>renders/a/o</Key><Code>InternalError</Code><Message/></Error>", True),
        ("", True),
    ],
    ids=["deleted", "refused", "failed", "not named"],
)
def test_each_object_is_settled_by_its_own_element(element, doubtful) -> None:
    """R5, R7: of what the answer does not name, or names with an error that is not final, nobody knows."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        body = f"<DeleteResult>{element}</DeleteResult>".encode()
        r.upstream.apply = lambda request, data: MemoryResponse(200, [], body)
        result = await answer(r, ("renders/a/o", 5))
        assert (b"<Error>" in result.body) == (element[:9] != "<Deleted>")
        assert bool(r.fences.unsettled("a")) == doubtful

    run(main())


def deleted(version_id: str | None) -> str:
    """An element of an answer."""
    version = "" if version_id is None else f"<VersionId>{version_id}</VersionId>"
    return f"<Deleted><Key>renders/a/o</Key>{version}</Deleted>"


REFUSED = "<Error><Key>renders/a/o</Key><VersionId>v1</VersionId><Code>AccessDenied</Code><Message/></Error>"


@pytest.mark.parametrize(
    ("asked", "element", "unnamed"),
    [
        (["v1", "v2"], deleted("v1"), ["v2"]),
        (["v1", "v2"], deleted("v2") + deleted("v1"), []),
        (["v1", "v2"], deleted(None), ["v1", "v2"]),
        (["v1", "v2"], deleted(None) + deleted(None), []),
        (["v1", "v2"], REFUSED, ["v2"]),
        (["v1", "v2"], REFUSED + deleted(None), []),
        (["v1", None], deleted(None), ["v1"]),
        (["v1", None], deleted("v1"), [None]),
        (["null"], deleted(None), []),
        ([None], deleted("v9"), []),
        ([None, None], deleted(None), []),
        ([None, "null"], deleted(None) * 2, []),
        ([None, None, "v1"], deleted(None) * 2, ["v1"]),
    ],
)
def test_versions_of_one_key_are_settled_one_by_one(
    asked: list[str | None], element: str, unnamed: list[str | None]
) -> None:
    """R5, R7: each by the element that names it, and by one that names no version only where there is no doubt whose
    it is."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        body = f"<DeleteResult>{element}</DeleteResult>".encode()
        r.upstream.apply = lambda request, data: MemoryResponse(200, [], body)
        writes = [
            (BatchObject("renders/a/o", version, ()), r.write("DELETE", "renders/a/o", 5, None)) for version in asked
        ]
        result = await Batches(r.writes).delete(HEAD, BUCKET, writes, quiet=False, on_refusal=lambda *_: None)
        _, errors = parse_batch_result(result.body)
        assert [one.version_id for one in errors if one.code == "InternalError"] == unnamed
        assert len(r.fences.unsettled("a")) == len(unnamed)

    run(main())


def test_the_deletion_of_a_version_does_not_mean_absence() -> None:
    """What is remembered of the object is nothing, not that it is gone."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        body = b"<DeleteResult><Deleted><Key>renders/a/o</Key><VersionId>v1</VersionId></Deleted></DeleteResult>"
        r.upstream.apply = lambda request, data: MemoryResponse(200, [], body)
        await answer(r, ("renders/a/o", 5), version_id="v1")
        assert r.writes.objects.pin(BUCKET, "renders/a/o").state is None

    run(main())


def test_the_digest_of_the_clients_body_does_not_go_with_the_gateways() -> None:
    """The body is a new one; one digest speaks of it."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"1", key="renders/a/o")
        headers = [("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), ("x-amz-checksum-crc32", "AAAAAA==")]
        head = parse_head("POST", f"/{BUCKET}?delete", Headers(headers))
        asked = BatchObject("renders/a/o", None, (("Key", "renders/a/o"),))
        write = r.write("DELETE", "renders/a/o", 5, None)
        await Batches(r.writes).delete(head, BUCKET, [(asked, write)], quiet=False, on_refusal=lambda *_: None)
        digests = [(n, v) for n, v in r.upstream.sent[-1].headers if n in dict(headers)]
        assert [name for name, _ in digests] == ["content-md5"]
        assert digests[0] != headers[0]

    run(main())


def test_the_upstreams_fields_come_along() -> None:
    """All that does not speak of its body, where the gateway has written one of its own."""

    async def main() -> None:
        r = await rig()
        fields = [("server", "Store/1"), ("vary", "Origin"), ("content-type", "text/xml"), ("content-length", "9")]
        r.upstream.apply = lambda request, data: MemoryResponse(200, fields, b"<DeleteResult/>")
        result = await answer(r, ("plain", None), quiet=True)
        assert result.headers == [*fields[:2], ("content-type", "application/xml")]
        result = await answer(r, ("plain", None))
        assert (result.headers, result.body) == (fields, b"<DeleteResult/>")

    run(main())


def test_what_is_refused_at_its_commit_point_cannot_end_the_batch() -> None:
    """Its job is just being completed; when that is recorded, the rest is on its way, and is told how it went."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"1")
        await r.put(0, b"2", key="plain")
        r.upstream.faults = [Fault.SILENT]
        r.upstream.reached.clear()
        async with r.fences.closed(FencingKey("j"), Token(34)):
            batch = asyncio.create_task(delete(r, (JOB, 34), ("plain", None)))
            await r.upstream.reached.wait()
            await r.fences.seal(FencingKey("j"), Token(34), Event("j", EventKind.SEALED, 34, 34))
        r.upstream.silent.set()
        body, refusals = await batch
        assert [error.reason for error in refusals] == [Reason.HANDOVER_PENDING]
        assert b"<Deleted><Key>plain</Key></Deleted>" in body
        assert [r.data(), r.data("plain")] == [b"1", None]

    run(main())


def test_a_batch_in_doubt_forgets_what_was_known_of_its_objects() -> None:
    """R4: they may be gone. A write that streams, and cannot be sent twice, looks before it is sent."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"before")
        r.upstream.faults = [Fault.LOST_APPLIED]
        assert (await refusal(delete(r, (JOB, 33)))).outcome is Outcome.UNKNOWN
        assert (await r.put(33, b"x" * 100)).status == 200

    run(main())
