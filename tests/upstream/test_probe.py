"""R4: the probe believes only what it has seen; each store here lies in one way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.clock import SystemClock
from gateway.core.names import filed_name
from gateway.s3.checksums import ALGORITHMS
from gateway.s3.errors import S3Error
from gateway.upstream.base import Capabilities, UpstreamLost, UpstreamNotReached, UpstreamRequest
from gateway.upstream.memory import MemoryExchange, MemoryResponse, MemoryUpstream
from gateway.upstream.probe import RACERS, RETRY_AFTER_S, Prober
from gateway.upstream.scratch import SCRATCH_PREFIX
from tests.cases.stores import Keeping
from tests.virtual_time import VirtualClock, run

BUCKET = "bucket"
PROBE = SCRATCH_PREFIX + "nonce1"
NONE = Capabilities(files_paths=False, overlooks=False)
ALL = replace(NONE, conditional_put=True, conditional_copy=True, conditional_delete=True)


def is_copy(request: UpstreamRequest) -> bool:
    return any(name == "x-amz-copy-source" for name, _ in request.headers)


def is_put(request: UpstreamRequest) -> bool:
    return request.method == "PUT" and not is_copy(request)


def is_delete(request: UpstreamRequest) -> bool:
    return request.method == "DELETE"


class Store(MemoryUpstream):
    """A store in memory that answers a little later, so that racers meet. Counts what it is sent."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.sent: list[UpstreamRequest] = []

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        self.sent.append(request)
        await asyncio.sleep(0.01)
        return await super().send(request, body, timeout_s)


class Ignoring(Store):
    """Ignores in silence the condition `name` on the requests that `where` picks."""

    def __init__(self, where, name: str) -> None:
        super().__init__()
        self.where, self.name = where, name

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request):
            request = replace(request, headers=tuple(f for f in request.headers if f[0] != self.name))
        return super().apply(request, body)


class IgnoringStale(Store):
    """Takes an `If-Match` on the requests that `where` picks for right if it has ever named a state of the object."""

    def __init__(self, where) -> None:
        super().__init__()
        self.where = where
        self.past: set[str] = set()

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request):
            request = replace(request, headers=tuple(f for f in request.headers if f[1] not in self.past))
        answer = super().apply(request, body)
        self.past |= {value for name, value in answer.headers if name == "etag"}
        return answer


class RefusingMatch(Store):
    """Answers 412 to every `If-Match` on the requests that `where` picks, right or wrong."""

    def __init__(self, where) -> None:
        super().__init__()
        self.where = where

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.where(request) and any(name == "if-match" for name, _ in request.headers):
            return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().apply(request, body)


class Bare(Store):
    """Understands an ETag only without its quotes; with them it never matches."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        quoted = any(name == "if-match" and value.startswith('"') for name, value in request.headers)
        if quoted:
            return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().apply(request, body)


class Winners(Store):
    """Lets so many racers win, whatever their conditions say."""

    def __init__(self, winners: int) -> None:
        super().__init__()
        self.winners = winners

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if body.startswith(b"racer"):
            if int(body.removeprefix(b"racer")) >= self.winners:
                return MemoryResponse(412, [], b"<Error><Code>PreconditionFailed</Code></Error>")
            request = replace(request, headers=())
        return super().apply(request, body)


class Forgetting(Store):
    """Answers the winner of a race, and keeps what a loser sent."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(request, b"racer 999" if body.startswith(b"racer") else body)


class JudgingHeads(Store):
    """Judges the condition of an upload when its head arrives."""

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        named = dict(request.headers)
        now = self.buckets[BUCKET].get(request.raw_key)
        if "if-match" in named and (now is None or now.etag != named["if-match"]):
            return await super().open(request, content_length)
        return await super().open(replace(request, headers=()), content_length)


class AnsweringLate(Store):
    """Answers a failed condition with a server error, as if nobody knew."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        answer = super().apply(request, body)
        return MemoryResponse(500, [], b"<Error><Code>InternalError</Code></Error>") if answer.status == 412 else answer


class Forbidding(Store):
    """Refuses whatever bears a condition, whether it holds or not, but not the first write."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if self.buckets[BUCKET] and any(name in ("if-match", "if-none-match") for name, _ in request.headers):
            return MemoryResponse(403, [], b"<Error><Code>AccessDenied</Code></Error>")
        return super().apply(request, body)


class Filing(Store):
    """Files objects as paths."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(replace(request, raw_key=filed_name(request.raw_key)), body)


class Overlooking(Store):
    """Takes a request with a subresource that it does not know for the plain one."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        return super().apply(replace(request, raw_query=""), body)


class Versioned(Store):
    """Keeps every version until it is deleted by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: set[str] = set()

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if request.raw_query.startswith("versionId="):
            self.versions.discard(request.raw_query.removeprefix("versionId="))
            return MemoryResponse(204, [], b"")
        answer = super().apply(request, body)
        if answer.status < 300 and request.method in ("PUT", "DELETE"):
            version = f"v{len(self.sent)}"
            self.versions.add(version)
            answer.headers.append(("x-amz-version-id", version))
        return answer


def scratch_of(request: UpstreamRequest) -> str:
    """The probe to which the object of a request belongs."""
    return request.raw_key.rpartition("-")[0].replace("//", "/")


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


class NoAbsence(Store):
    """Does not take `If-None-Match` at all."""

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        if any(name == "if-none-match" for name, _ in request.headers):
            return MemoryResponse(501, [], b"<Error><Code>NotImplemented</Code></Error>")
        return super().apply(request, body)


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


class Gone(Store):
    """Fails in some way until it is well again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how: str | None = how

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if self.how == "lost":
            raise UpstreamLost("reset")
        if self.how == "not reached":
            raise UpstreamNotReached("refused")
        if self.how is not None:
            error = S3Error(self.how, "")
            self.sent.append(request)
            return MemoryResponse(error.status, [], f"<Error><Code>{self.how}</Code></Error>".encode())
        return await super().send(request, body, timeout_s)


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


class SlowLosers(Store):
    """Lets the losers of a race wait for a while before they hear."""

    LOSERS_WAIT_S = 3.0

    def __init__(self, winners: int = 1) -> None:
        super().__init__()
        self.winners = winners
        self.losers_heard = False

    async def open(self, request: UpstreamRequest, content_length: int) -> MemoryExchange:
        return Racing(self, request, content_length)


class Racing(MemoryExchange):
    async def response(self, timeout_s: float) -> MemoryResponse:
        answer = await super().response(timeout_s)
        store = self._store
        if isinstance(store, SlowLosers) and self._body.startswith(b"racer") and answer.status == 412:
            await asyncio.sleep(store.LOSERS_WAIT_S)
            store.losers_heard = True
            if store.winners > 1:
                return store.apply(replace(self._request, headers=()), bytes(self._body))
        return answer


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


class NoDelete(Store):
    """Breaks off at every DELETE."""

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        if is_delete(request):
            raise UpstreamLost("reset")
        return await super().send(request, body, timeout_s)


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
