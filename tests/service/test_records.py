"""The bucket's record: who may write fenced objects, and how one finds out that one may no longer."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import FenceError, Outcome, Reason, TryAgain
from gateway.core.keys import FencingKey, Token, stand_in_of
from gateway.core.names import RECORD_KEY
from gateway.service.record import Seen
from gateway.service.values import Result
from gateway.service.waits import Timing
from gateway.stores.memory import MemoryStore
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.service.record_desk import LAPSE_S, LONG_KEY, PLAIN, Counting, gateway, record, superseded, take_over
from tests.service.rig import BUCKET, JOB, Fault, Payload, Rig, elapsed, refusal, rig
from tests.virtual_time import run


def test_the_first_fenced_write_leaves_a_record() -> None:
    """It names database, generation and run."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        assert (await one.put(34, b"a")).status == 200
        told = record(upstream)
        authority = one.store.authority
        assert (told["database"], told["generation"], told["run"]) == (authority.database, 0, authority.run)
        assert (told["rebuilding"], told["lapse_s"]) == (False, LAPSE_S)
        await one.writes.close()

    run(main())


def test_ordinary_writes_send_no_request_for_it() -> None:
    """Of 200 writes over an hour the first reads and writes it; then it is read twice in each lapse, beside them."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        assert (upstream.reads, upstream.record_writes) == (1, 1)
        for _ in range(100):
            await one.put(34, b"a")
        assert (upstream.reads, upstream.record_writes) == (1, 1)
        assert len(upstream.sent) == 102
        before = asyncio.get_running_loop().time()
        for _ in range(100):
            await asyncio.sleep(20)
            await one.put(34, b"a")
        passed_s = asyncio.get_running_loop().time() - before
        assert upstream.reads <= 2 + passed_s / (LAPSE_S / 2)
        assert upstream.record_writes == 1
        await one.writes.close()

    run(main())


def test_nobody_looks_where_nobody_writes() -> None:
    """The looking ends soon after the last write."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        await asyncio.sleep(10 * LAPSE_S)
        reads = upstream.reads
        assert reads <= 3
        await asyncio.sleep(10 * LAPSE_S)
        assert upstream.reads == reads
        await one.writes.close()

    run(main())


def test_a_look_that_lapses_where_nobody_writes_asks_no_gate() -> None:
    """There are as many gates as keys, and a look lapses in every bucket that is out of use."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        lapsed: list[str] = []
        one.writes.records.on_lapse = lambda bucket, error: lapsed.append(bucket)
        await one.put(34, b"a")
        await asyncio.sleep(10 * LAPSE_S)
        take_over(upstream)
        await superseded(one.put(34, b"b"))
        assert lapsed == [BUCKET]  # by the look of the write that was refused
        await one.writes.close()

    run(main())


def test_another_database_is_refused_and_sends_nothing() -> None:
    """The message names the bucket and what to do; no floor is raised by what is refused."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        sent = len(upstream.sent)
        for key in (JOB, PLAIN):
            error = await superseded(two.put(35, b"b", key))
            assert f"fencing-gateway fence rebuild --bucket {BUCKET}" in error.message
            assert error.outcome.value == "NotApplied"
        await superseded(two.delete(35))
        await superseded(two.create(35))
        assert len(upstream.sent) == sent
        assert (await two.store.fence("j")).floor == 0
        assert one.data() == b"a"
        for each in (one, two):
            await each.writes.close()

    run(main())


def test_a_write_without_a_token_is_refused_where_another_rules() -> None:
    """`until-fenced` says nothing where the floors are not known; a bucket without a record takes it, and stays so."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        assert (await two.put(0, b"free", PLAIN)).status == 200
        assert RECORD_KEY not in upstream.buckets[BUCKET]
        await one.put(34, b"a")
        await asyncio.sleep(LAPSE_S)
        await superseded(two.put(0, b"b"))
        assert (await two.writes.unfenced(two.write("PUT", PLAIN, 0, Payload(b"c")))).status == 200
        for each in (one, two):
            await each.writes.close()

    run(main())


def test_of_two_that_begin_at_once_one_rules() -> None:
    """The record is made on the condition that there is none."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        both = [await gateway(upstream, name) for name in ("one", "two")]
        results = await asyncio.gather(*(g.put(34, b"x") for g in both), return_exceptions=True)
        refused = [r for r in results if isinstance(r, FenceError)]
        assert len(refused) == 1
        assert refused[0].reason is Reason.SUPERSEDED
        winner = both[[isinstance(r, FenceError) for r in results].index(False)]
        assert record(upstream)["database"] == winner.store.authority.database
        for each in both:
            await each.writes.close()

    run(main())


def test_who_is_superseded_notices_within_the_lapse() -> None:
    """From its next look on, at the latest a lapse later, it lets nothing through; before, its writes still go."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        take_over(upstream)
        loop = asyncio.get_running_loop()
        replaced = loop.time()

        async def write_on() -> None:
            while True:
                await asyncio.sleep(1)
                await one.put(34, b"a")

        error = await superseded(write_on())
        assert "belongs to database two" in error.message
        assert loop.time() - replaced < LAPSE_S
        await one.writes.close()

    run(main())


async def begun(one: Rig) -> tuple[Payload, asyncio.Task[Result]]:
    """An upload of which 60 bytes of 100 have come."""
    body = Payload(length=100)
    upload = asyncio.create_task(one.put(34, body))
    await body.wanted.wait()
    body.give(b"x" * 60)
    return body, upload


def test_an_upload_that_was_staged_before_is_stopped_at_its_commit_point() -> None:
    """However long its body took: its last bytes are withheld until the record has been seen."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        body, upload = await begun(one)
        take_over(upstream)
        await asyncio.sleep(LAPSE_S)
        body.give(b"y" * 40)
        body.end()
        await superseded(upload)
        assert one.data() == b"a"
        await one.writes.close()

    run(main())


def test_a_slow_upload_goes_through_where_nobody_has_taken_over() -> None:
    """The record is looked at while the body streams, though no other write comes."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        body, upload = await begun(one)
        await asyncio.sleep(100 * LAPSE_S)
        body.give(b"y" * 40)
        body.end()
        assert (await upload).status == 200
        await one.writes.close()

    run(main())


def test_who_cannot_see_the_record_commits_nothing() -> None:
    """After a lapse without a look it is as if somebody else had it: a gateway that slept, or a store that hides it."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        body, upload = await begun(one)
        upstream.lost_reads = True
        await asyncio.sleep(2 * LAPSE_S)
        body.give(b"y" * 40)
        body.end()
        error = await superseded(upload)
        assert "has not been seen" in error.message
        assert (await refusal(one.put(34, b"b"))).reason is Reason.UPSTREAM_UNAVAILABLE
        upstream.lost_reads = False
        assert (await one.put(34, b"c")).status == 200
        await one.writes.close()

    run(main())


@pytest.mark.parametrize("lost", [True, False], ids=["replaced", "not-to-be-seen"])
def test_what_has_been_sent_is_cut_off_within_the_lapse(lost: bool) -> None:
    """Who takes a bucket over waits for a lapse and a settle time-out: by then nothing of who had it may land, and so a
    send whose answer is still awaited must have lost its connection within the lapse."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream, timing=Timing(commit_timeout_s=10 * LAPSE_S))
        await one.put(34, b"a")
        upstream.faults = [Fault.SILENT]
        upstream.reached.clear()
        sent = asyncio.create_task(one.put(34, b"b"))
        await upstream.reached.wait()
        if lost:
            take_over(upstream)
        else:
            upstream.lost_reads = True
        error, took_s = await elapsed(superseded(sent))
        assert took_s <= LAPSE_S
        assert isinstance(error, TryAgain)
        assert error.outcome is Outcome.UNKNOWN
        assert "had been sent" in error.message
        assert [send.phase for send in one.fences.unsettled(FencingKey("j"))] == ["in-doubt"]
        await one.writes.close()

    run(main())


def test_a_slow_answer_is_awaited_as_long_as_the_record_is_seen() -> None:
    """Many lapses, where nobody has taken over."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream, timing=Timing(commit_timeout_s=100 * LAPSE_S))
        await one.put(34, b"a")
        upstream.faults = [Fault.SILENT]
        sent = asyncio.create_task(one.put(34, b"b"))
        await asyncio.sleep(50 * LAPSE_S)
        assert not sent.done()
        upstream.silent.set()
        assert (await sent).status == 200
        await one.writes.close()

    run(main())


def test_what_is_forgotten_as_soon_as_it_is_seen_admits_nobody() -> None:
    """Found by simulation (seed 11021891): a look found the bucket to be another's, and before that was told, a rebuild
    that began there had it forgotten: an upload was created."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        records = two.writes.records
        read = records.objects.read

        async def forgotten(name: str) -> Seen | None:
            records.objects.read = read  # type: ignore[method-assign]
            seen = await read(name)
            asyncio.get_running_loop().call_soon(records.forget, name)
            return seen

        records.objects.read = forgotten  # type: ignore[method-assign]
        await superseded(two.create(35))
        assert upstream.uploads == {}
        await one.writes.close()
        await two.writes.close()

    run(main())


def test_a_first_write_that_waits_for_the_look_of_one_without_a_token_leaves_a_record() -> None:
    """Three come at once, and the first look fails: the next, begun for a write without a token, makes no record; the
    write with a token has it made."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        read = upstream.read

        async def lost_once(request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
            upstream.read = read  # type: ignore[method-assign]
            await asyncio.sleep(1)
            raise UpstreamLost("connection reset")

        upstream.read = lost_once  # type: ignore[method-assign]
        writes = [one.put(0, b"x", f"{PLAIN}1"), one.put(0, b"x", f"{PLAIN}2"), one.put(34, b"a")]
        first, *others = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(first, TryAgain)
        assert [other.status for other in others if isinstance(other, Result)] == [200, 200]
        assert record(upstream)["database"] == one.store.authority.database
        await one.writes.close()

    run(main())


def test_after_a_restart_the_same_database_goes_on() -> None:
    """The new run writes its own record over that of a run that it knows."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        first = record(upstream)["run"]
        await one.writes.close()
        again = await gateway(upstream, store=one.store)
        assert (await again.put(34, b"b")).status == 200
        assert record(upstream)["run"] == again.store.authority.run != first
        await again.writes.close()

    run(main())


def test_an_older_copy_of_the_database_is_refused() -> None:
    """One that was put back by hand does not know the run that wrote the record."""

    async def main() -> None:
        upstream = Counting(BUCKET)
        copy = MemoryStore(name="one")
        one = await gateway(upstream)
        await one.put(34, b"a")
        await one.store.stop(clean=True)
        later = await gateway(upstream, store=one.store)
        await later.put(35, b"b")
        old = await gateway(upstream, store=copy)
        error = await superseded(old.put(35, b"c"))
        assert "older copy" in error.message
        for each in (one, later, old):
            await each.writes.close()

    run(main())


def test_refusals_are_told_with_their_reason() -> None:
    """Those that have been seen, and those that the database knows of."""

    async def main() -> None:
        upstream = Counting(BUCKET, "other")
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        assert await one.writes.records.look_at(BUCKET) == ""
        assert "belongs to" in await two.writes.records.look_at(BUCKET)
        await two.store.begin_rebuild("other", "claim")
        told = await two.writes.records.refusals()
        assert list(told) == [BUCKET, "other"]
        assert "has not come to its end" in told["other"]
        for each in (one, two):
            await each.writes.close()

    run(main())


def test_a_floor_that_is_known_by_its_hash_alone_holds() -> None:
    """A rebuild may find no more than the hash of a long key: whoever names the key meets the floor."""

    async def main() -> None:
        one = await rig()
        stand_in = stand_in_of(LONG_KEY)
        assert stand_in is not None
        await one.fences.found(stand_in, Token(34), "test")
        await one.store.claim(BUCKET, PLAIN, stand_in, instead_of=None)
        error = await refusal(one.put(33, b"a", PLAIN, fence_key=LONG_KEY))
        assert error.reason is Reason.STALE_TOKEN
        error = await refusal(one.put(40, b"a", PLAIN, fence_key=FencingKey("q" * 300)))
        assert error.reason is Reason.KEY_MISMATCH
        assert (await refusal(one.put(0, b"a", PLAIN))).reason is Reason.TOKEN_REQUIRED
        assert (await one.put(34, b"a", PLAIN, fence_key=LONG_KEY)).status == 200
        assert await one.store.owner(BUCKET, PLAIN) == LONG_KEY
        await one.writes.close()

    run(main())
