"""R4: the probe believes only what it has seen; each store here lies in one way."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from gateway.clock import SystemClock
from gateway.s3.checksums import ALGORITHMS
from gateway.upstream.base import Capabilities, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from gateway.upstream.probe import RACERS, RETRY_AFTER_S, Prober
from gateway.upstream.scratch import SCRATCH_PREFIX
from tests.cases.stores import Keeping
from tests.upstream.liars import (
    BUCKET,
    AnsweringLate,
    Bare,
    BusyOnce,
    Filing,
    Forbidding,
    Forgetting,
    Gone,
    Ignoring,
    IgnoringStale,
    JudgingHeads,
    NoAbsence,
    NoDelete,
    Overlooking,
    RefusingMatch,
    SlowLosers,
    Store,
    Suspended,
    Versioned,
    Winners,
    is_copy,
    is_delete,
    is_put,
)
from tests.virtual_time import VirtualClock, run

PROBE = SCRATCH_PREFIX + "nonce1"
NONE = Capabilities(files_paths=False, overlooks=False)
ALL = replace(NONE, conditional_put=True, conditional_copy=True, conditional_delete=True)


def scratch_of(request: UpstreamRequest) -> str:
    """The probe to which the object of a request belongs."""
    return request.raw_key.rpartition("-")[0].removeprefix("/")


async def probed(store: MemoryUpstream) -> Capabilities:
    """What is believed once all is known and cleaned up."""
    prober = Prober(store, VirtualClock(), await_race=True)
    found = await prober.of_bucket(BUCKET)
    await finished(prober)
    return found


async def finished(prober: Prober) -> None:
    """Wait until the probe that is under way has ended by itself."""
    assert prober._task is not None
    await prober._task


def test_an_honest_store_proves_everything_and_keeps_nothing() -> None:
    """PUT, copy and delete; the scratch object is gone afterwards."""

    async def main() -> None:
        store = Store()
        assert await probed(store) == ALL
        assert store.buckets[BUCKET] == {}

    run(main())


@pytest.mark.parametrize(
    ("store", "proved"),
    [
        (Ignoring(is_put, "if-none-match"), NONE),
        (Ignoring(is_put, "if-match"), NONE),
        (IgnoringStale(is_put), NONE),
        (RefusingMatch(is_put), NONE),
        (Winners(0), NONE),
        (Winners(2), NONE),
        (Winners(RACERS), NONE),
        (Forgetting(), NONE),
        (JudgingHeads(), NONE),
        (AnsweringLate(), NONE),
        (Forbidding(), NONE),
        (Ignoring(is_copy, "if-none-match"), replace(ALL, conditional_copy=False)),
        (Ignoring(is_copy, "if-match"), replace(ALL, conditional_copy=False)),
        (RefusingMatch(is_copy), replace(ALL, conditional_copy=False)),
        (Ignoring(is_delete, "if-match"), replace(ALL, conditional_delete=False)),
        (RefusingMatch(is_delete), replace(ALL, conditional_delete=False)),
        (Bare(), replace(ALL, bare_etag=True)),
        (Filing(), replace(ALL, files_paths=True)),
        (Overlooking(), replace(ALL, overlooks=True)),
    ],
    ids=[
        "PUT ignores If-None-Match",
        "PUT ignores If-Match",
        "PUT takes an ETag of the past",
        "PUT refuses every If-Match",
        "no racer wins",
        "two racers win",
        "all racers win",
        "the winner is not kept",
        "conditions judged when the head arrives",
        "a failed condition is 500",
        "every condition is forbidden",
        "copy ignores If-None-Match",
        "copy ignores If-Match",
        "copy refuses every If-Match",
        "DELETE ignores If-Match",
        "DELETE refuses every If-Match",
        "ETags without quotes",
        "objects filed as paths",
        "subresources overlooked",
    ],
)
def test_what_a_store_does_not_do_is_not_believed(store, proved) -> None:
    """Each lie costs what it concerns, and nothing else."""
    assert run(probed(store)) == proved


@pytest.mark.parametrize(
    "known", [(), ("crc32",), ("sha1",), ("crc32", "crc64nvme", "sha1"), tuple(sorted(ALGORITHMS))]
)
def test_each_trailing_checksum_is_proved_by_itself(known) -> None:
    """A store may know some algorithms and refuse a body that another trails; one without CRC32 is asked no further."""
    store = Keeping(BUCKET, algorithms=known)
    proved = run(Prober(store, VirtualClock()).of_bucket(BUCKET))
    assert proved == replace(ALL, trailers=frozenset(known) if "crc32" in known else frozenset())
    assert store.buckets[BUCKET] == {}


def test_a_store_that_takes_no_condition_is_found_out_and_cleaned_up() -> None:
    """Writing works and conditions do not: nothing is proved, nothing is left behind."""

    async def main() -> None:
        store = NoAbsence()
        assert await probed(store) == NONE
        assert store.buckets[BUCKET] == {}

    run(main())


@pytest.mark.parametrize("how", ["lost", "not reached", "AccessDenied", "NoSuchBucket", "InternalError"])
def test_what_cannot_be_probed_is_not_proved_and_is_probed_again_later(how) -> None:
    """The caller is never failed; the next look comes after a while, not with every write."""

    async def main() -> None:
        store = Gone(how)
        prober = Prober(store, VirtualClock())
        assert await prober.of_bucket(BUCKET) == Capabilities()
        store.how = None
        assert await prober.of_bucket(BUCKET) == Capabilities()
        assert await prober.of_bucket("other") == Capabilities()
        await asyncio.sleep(RETRY_AFTER_S)
        assert await prober.of_bucket(BUCKET) == ALL

    run(main())


def test_nothing_is_concluded_from_a_busy_moment() -> None:
    """Whatever a store was too busy for, it is believed to do neither more nor less for that; it is asked again."""

    async def main() -> None:
        nth, busy = 0, True
        while busy:
            nth += 1
            store = BusyOnce(nth)
            prober = Prober(store, VirtualClock(), await_race=True)
            assert await prober.of_bucket(BUCKET) in (ALL, Capabilities()), nth
            await finished(prober)
            await asyncio.sleep(RETRY_AFTER_S)
            assert await prober.of_bucket(BUCKET) == ALL, nth
            await finished(prober)
            assert store.buckets[BUCKET] == {}
            busy = store.left <= 0
        assert nth > 40

    run(main())


@pytest.mark.parametrize("spelling", ["^/", "[^/]//"])
@pytest.mark.parametrize(("status", "files_paths"), [(200, True), (400, False), (403, True), (500, True)])
def test_what_is_answered_by_an_error_is_not_believed_to_be_kept_apart(
    spelling: str, status: int, files_paths: bool
) -> None:
    """Only that `/a` and `a//b` are absent, or no names at all (rclone), tells that they are not `a` and `a/b`."""

    class Failing(Store):
        def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
            odd = re.search(spelling, request.raw_key)
            return MemoryResponse(status, [], b"") if odd else super().apply(request, body)

    assert run(probed(Failing())) == replace(ALL, files_paths=files_paths)


def test_an_operation_that_was_lost_is_not_believed_to_be_known() -> None:
    """Only a refusal, or an object that is left alone, tells that the store does not do the plain operation instead."""

    class Failing(Store):
        def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
            lost = "annotation" in request.raw_query
            return MemoryResponse(500, [], b"") if lost else super().apply(request, body)

    assert run(probed(Failing())) == replace(ALL, overlooks=True)


def test_a_bucket_that_cannot_be_probed_does_not_keep_another_from_it() -> None:
    """A missing bucket says nothing of the store."""

    async def main() -> None:
        prober = Prober(Store(), VirtualClock())
        assert await prober.of_bucket("missing") == Capabilities()
        assert await prober.of_bucket(BUCKET) == ALL

    run(main())


def test_one_probe_serves_all_who_ask() -> None:
    """Also those who ask while it runs, and those who ask of other buckets."""

    async def main() -> None:
        store = Store()
        prober = Prober(store, VirtualClock())
        answers = await asyncio.gather(*(prober.of_bucket(BUCKET) for _ in range(3)))
        sent = len(store.sent)
        assert answers == [ALL] * 3
        assert {scratch_of(request) for request in store.sent} == {PROBE}
        assert await prober.of_bucket("another") == ALL
        assert len(store.sent) == sent

    run(main())


def test_in_a_versioned_bucket_no_version_is_left() -> None:
    """Every version that the probe made is deleted by its id, the mark of its own deletion too."""

    async def main() -> None:
        store = Versioned()
        assert await probed(store) == ALL
        assert store.versions == set()

    run(main())


def test_where_versions_are_kept_no_longer_no_mark_is_left() -> None:
    """The bucket's owner would see them in its lists, and could not delete the bucket."""

    async def main() -> None:
        store = Suspended()
        assert await probed(store) == ALL
        assert (store.marks, store.buckets[BUCKET]) == (set(), {})

    run(main())


def test_the_first_write_waits_for_no_loser_and_sees_no_scratch_object() -> None:
    """As soon as the race has a winner all else is proved and removed; the losers are heard beside the first writes."""

    async def main() -> None:
        store = SlowLosers()
        prober = Prober(store, VirtualClock())
        started = asyncio.get_running_loop().time()
        assert await prober.of_bucket(BUCKET) == ALL
        assert asyncio.get_running_loop().time() - started < SlowLosers.LOSERS_WAIT_S
        assert not store.losers_heard
        assert store.buckets[BUCKET] == {}
        await finished(prober)
        assert store.losers_heard
        assert await prober.of_bucket(BUCKET) == ALL

    run(main())


def test_a_second_winner_that_comes_late_takes_the_conditions_away() -> None:
    """What has been believed meanwhile is believed no longer; what the late winner left is removed."""

    async def main() -> None:
        store = SlowLosers(winners=2)
        prober = Prober(store, VirtualClock())
        assert await prober.of_bucket(BUCKET) == ALL
        await finished(prober)
        assert await prober.of_bucket(BUCKET) == NONE
        assert store.buckets[BUCKET] == {}

    run(main())


def test_where_conditions_are_required_nobody_is_answered_before_the_last_loser() -> None:
    """`conditional = "require"` believes nothing that might still be taken away."""

    async def main() -> None:
        store = SlowLosers(winners=2)
        assert await Prober(store, VirtualClock(), await_race=True).of_bucket(BUCKET) == NONE

    run(main())


def test_who_goes_away_does_not_end_the_probe_for_the_others() -> None:
    """The first to ask is cancelled; the second gets the answer of the same probe."""

    async def main() -> None:
        store = Store()
        prober = Prober(store, VirtualClock())
        first = asyncio.create_task(prober.of_bucket(BUCKET))
        second = asyncio.create_task(prober.of_bucket(BUCKET))
        while not store.sent:
            await asyncio.sleep(0.001)
        first.cancel()
        assert await second == ALL
        assert {scratch_of(request) for request in store.sent} == {PROBE}

    run(main())


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_a_probe_that_is_ended_at_any_moment_leaves_nothing(after: int) -> None:
    """Whatever it was about, its objects, also those that were just being written, are gone; who waits is answered."""

    async def main() -> None:
        store = Store()
        prober = Prober(store, VirtualClock())
        asking = asyncio.create_task(prober.of_bucket(BUCKET))
        while len(store.sent) <= after and not asking.done():
            await asyncio.sleep(0.001)
        await prober.close()
        await prober.close()
        assert store.buckets[BUCKET] == {}
        assert await asking in (ALL, Capabilities())

    run(main())


def test_a_failed_clean_up_fails_nobody() -> None:
    """Where nothing can be deleted the probe has not been made, and the caller is told what is proved: nothing."""
    assert run(probed(NoDelete())) == Capabilities()


async def test_buckets_that_cannot_be_probed_do_not_pile_up() -> None:
    """A client may name thousands that are not there; each is remembered only while it is left alone."""
    clock = Ticking()
    prober = Prober(MemoryUpstream(), clock)
    for n in range(100):
        await prober.of_bucket(f"absent-{n}")
        clock.now += RETRY_AFTER_S / 10
    assert len(prober._not_before) <= 11


class Ticking(SystemClock):
    """A clock that the test moves."""

    now = 1000.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.now
