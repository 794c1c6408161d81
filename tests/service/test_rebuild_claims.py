"""`fence rebuild`: who may take a bucket over, what is waited for, and how one that was broken off goes on."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Reason
from gateway.service.rebuild import Phase
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Ruling
from gateway.upstream.base import Capabilities
from tests.service.rebuild_desk import ASSEMBLY_S, Trouble, close, put_fenced, rebuilds, rebuilt
from tests.service.record_desk import LAPSE_S, PLAIN, gateway, record, superseded
from tests.service.rig import BUCKET, DEAF, HONEST, JOB, Payload, refusal
from tests.virtual_time import run


def test_it_waits_for_the_gateway_before_and_for_what_that_has_sent() -> None:
    """Its lapse and the settle time-out pass between claim and first look; nothing fenced is served meanwhile.
    The longer time-out, though no upload is there and copies have conditions: an object may be absent again, as a copy
    that is under way demands, and a Complete that was sent twice may land twice."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        loop = asyncio.get_running_loop()
        upstream.looked.clear()
        looked_at: list[float] = []
        upstream.on_look = lambda key: looked_at.append(loop.time())
        its, began = rebuilds(two), loop.time()
        progress = its.begin(BUCKET)
        await asyncio.sleep(1)
        assert progress.phase is Phase.WAITING
        error = await superseded(two.put(40, b"b"))
        assert "has not come to its end" in error.message
        while not progress.over:
            await asyncio.sleep(1)
        assert min(looked_at) - began >= LAPSE_S + ASSEMBLY_S
        assert loop.time() - began < LAPSE_S + ASSEMBLY_S + 5
        await close(one, two)

    run(main())


def test_what_the_gateway_before_raises_until_it_notices_is_found() -> None:
    """It goes on for up to its lapse: the look at the objects comes after that."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        progress = rebuilds(two).begin(BUCKET)
        await asyncio.sleep(5)
        assert (await one.put(35, b"still served")).status == 200
        while not progress.over:
            await asyncio.sleep(1)
        assert await two.floor() == 35
        assert (await refusal(two.put(34, b"stale"))).reason is Reason.STALE_TOKEN
        await close(one, two)

    run(main())


@pytest.mark.parametrize("capabilities", [HONEST, DEAF], ids=["with-a-record", "without-one"])
def test_from_the_claim_on_a_write_without_a_token_is_refused_too(capabilities: Capabilities) -> None:
    """The bucket had been seen to be nobody's a moment before, so that such writes went on without a look."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one = await gateway(upstream, capabilities=capabilities)
        assert (await one.put(0, b"free", PLAIN)).status == 200
        put_fenced(upstream, JOB, "j", 34)
        progress = rebuilds(one, capabilities).begin(BUCKET)
        await asyncio.sleep(1)
        assert progress.phase is Phase.WAITING
        await superseded(one.put(0, b"b", PLAIN))
        while not progress.over:
            await asyncio.sleep(1)
        assert (await one.put(0, b"c", PLAIN)).status == 200
        await close(one)

    run(main())


def test_over_an_embedded_store_nothing_is_waited_for() -> None:
    """All processes that could have sent anything have ended."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        two = await gateway(upstream, "two")
        began = asyncio.get_running_loop().time()
        assert (await rebuilt(two, settled=True)).phase is Phase.DONE
        assert asyncio.get_running_loop().time() - began < 2
        await close(one, two)

    run(main())


def test_two_that_fight_over_a_bucket_do_not_both_win() -> None:
    """The claims are conditional: one fails at once, or at its end, and says so; its floors stay where they are."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        old, one, two = [await gateway(upstream, name) for name in ("old", "one", "two")]
        await old.put(34, b"a")
        its = [rebuilds(made) for made in (one, two)]
        both = [each.begin(BUCKET) for each in its]
        while not all(progress.over for progress in both):
            await asyncio.sleep(1)
        assert sorted(progress.phase for progress in both) == [Phase.DONE, Phase.FAILED]
        loser = next(progress for progress in both if progress.phase is Phase.FAILED)
        assert "another gateway has claimed" in loser.error
        winner = (one, two)[both[1].phase is Phase.DONE]
        assert (await winner.put(35, b"b")).status == 200
        await superseded((two if winner is one else one).put(36, b"c"))
        await close(old, one, two)

    run(main())


def test_who_is_claimed_away_in_mid_rebuild_fails() -> None:
    """The last comer wins; the first finds at its end that it has lost."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        old, one, two = [await gateway(upstream, name) for name in ("old", "one", "two")]
        await old.put(34, b"a")
        first = rebuilds(one).begin(BUCKET)
        await asyncio.sleep(10)
        second = rebuilds(two).begin(BUCKET)
        while not (first.over and second.over):
            await asyncio.sleep(1)
        assert (first.phase, second.phase) == (Phase.FAILED, Phase.DONE)
        await superseded(one.put(40, b"b"))
        assert (await two.put(35, b"c")).status == 200
        await close(old, one, two)

    run(main())


def test_a_rebuild_that_was_broken_off_goes_on() -> None:
    """After a crash in mid-look the next run begins behind the last page, without another wait, and ends the same."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        for number in range(2500):
            put_fenced(upstream, f"renders/job-{number:04}/out", f"job-{number:04}", number + 1)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        its = rebuilds(two)
        third_page = asyncio.Event()
        upstream.on_look = lambda key: third_page.set() if key.startswith("renders/job-22") else None
        its.begin(BUCKET)
        await third_page.wait()
        await its.close()
        await two.store.stop(clean=False)
        known = await _ruling(two.store)
        assert known.after is not None
        assert 1999 <= known.objects < 2500
        again = await gateway(upstream, store=two.store)
        assert "has not come to its end" in (await superseded(again.put(35, b"b"))).message
        upstream.looked.clear()
        began = asyncio.get_running_loop().time()
        progress = await rebuilt(again)
        assert progress.phase is Phase.DONE
        assert asyncio.get_running_loop().time() - began < 5
        assert len(upstream.looked) <= 502
        assert progress.objects == 2501
        for number in (0, 999, 1000, 2499):
            assert (await again.store.fence(f"job-{number:04}")).floor == number + 1
        await close(one, again)

    run(main())


async def _ruling(store: MemoryStore) -> Ruling:
    await store.start("rules")
    found = await store.ruling(BUCKET)
    await store.stop(clean=True)
    assert found is not None
    return found


def test_a_rebuild_broken_off_while_it_waits_waits_anew() -> None:
    """Nothing tells how long the gateway was away."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        its = rebuilds(two)
        its.begin(BUCKET)
        await asyncio.sleep(LAPSE_S)
        await its.close()
        claim = record(upstream)["nonce"]
        began = asyncio.get_running_loop().time()
        progress = await rebuilt(two)
        assert progress.phase is Phase.DONE
        assert asyncio.get_running_loop().time() - began >= LAPSE_S + ASSEMBLY_S
        assert progress.generation == 1
        assert record(upstream)["nonce"] != claim
        await close(one, two)

    run(main())


def test_asked_again_it_looks_through_what_is_its_own() -> None:
    """Nothing is claimed, nobody refused, no generation used up; a floor that an object knows better is raised."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        put_fenced(upstream, "renders/other/out", "other", 9)
        before = record(upstream)
        progress = await rebuilt(one)
        assert (progress.phase, progress.raised, progress.generation) == (Phase.DONE, 1, 0)
        assert record(upstream) == before
        assert await one.floor("other") == 9
        assert (await one.put(34, b"b")).status == 200
        await close(one)

    run(main())


def test_a_second_call_while_one_runs_is_the_same() -> None:
    """One rebuild of a bucket at a time."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        two = await gateway(upstream, "two")
        its = rebuilds(two)
        assert its.begin(BUCKET) is its.begin(BUCKET) is its.progress(BUCKET)
        assert its.progress("other") is None
        await its.close()
        await close(two)

    run(main())


def test_a_write_staged_before_the_claim_does_not_outlive_it() -> None:
    """The gateway's own uploads too: what it let begin without a record is stopped at the commit point."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        two = await gateway(upstream, "two")
        body = Payload(length=100)
        upload = asyncio.create_task(two.put(0, body, PLAIN))
        await body.wanted.wait()
        progress = rebuilds(two).begin(BUCKET)
        await asyncio.sleep(1)
        for piece in (b"x" * 60, b"y" * 40):
            body.give(piece)
        body.end()
        await superseded(upload)
        while not progress.over:
            await asyncio.sleep(1)
        assert two.data(PLAIN) is None
        await close(two)

    run(main())


def test_a_claim_that_another_was_quicker_with_ends_it() -> None:
    """The record has changed between the look at it and the claim: the bucket does not become this database's."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")

        async def late(*_: object) -> None:
            return None

        two.writes.records.objects.write = late  # type: ignore[method-assign]
        progress = await rebuilt(two)
        assert progress.phase is Phase.FAILED
        assert "at the same moment" in progress.error
        assert (await one.put(34, b"b")).status == 200
        await close(one, two)

    run(main())


def test_what_has_been_rebuilt_is_served_at_once() -> None:
    """Also to who has just been refused."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        await close(one)
        progress = rebuilds(two).begin(BUCKET)
        await asyncio.sleep(1)
        while not progress.over:
            await superseded(two.put(40, b"b"))
            await asyncio.sleep(0.25)
        assert (await two.put(40, b"b")).status == 200
        await close(two)

    run(main())
