"""`fence rebuild`: a bucket taken over with the floors that its objects tell."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, key_in_metadata, key_of_object, stand_in_of
from gateway.core.names import RECORD_KEY
from gateway.s3.fencing import META_KEY, META_NONCE, META_TOKEN
from gateway.service.rebuild import Phase, Progress, Rebuilds
from gateway.service.record import MAX_LAPSE_S, parse_record, render_record
from gateway.stores.memory import MemoryStore
from gateway.stores.values import RESTORED, Ruling
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from gateway.upstream.probe import FixedCapabilities
from tests.service.rig import BUCKET, DEAF, HONEST, JOB, Payload, Rig, refusal
from tests.service.test_records import LAPSE_S, LONG_KEY, PLAIN, Counting, gateway, put_record, record, superseded
from tests.virtual_time import run

ASSEMBLY_S = 300.0


class Trouble(Counting):
    """Fails at objects on order; tells of each look."""

    def __init__(self, *buckets: str) -> None:
        super().__init__(*buckets)
        self.looked: list[str] = []
        self.on_look: Callable[[str], None] = lambda key: None
        self.status: dict[str, int] = {}
        self.lost = 0

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        if request.method == "HEAD" and request.raw_key:
            self.looked.append(request.raw_key)
            self.on_look(request.raw_key)
            if self.lost:
                self.lost -= 1
                raise UpstreamLost("connection reset")
            if request.raw_key in self.status:
                return MemoryResponse(self.status[request.raw_key], [], b"")
        return await super().read(request, body)


def rebuilds(made: Rig, capabilities: Any = HONEST, *, settled: bool = False) -> Rebuilds:
    writes = made.writes
    return Rebuilds(
        made.fences,
        writes.records,
        writes.upstream,
        FixedCapabilities(capabilities),
        made.rules,
        writes.name,
        writes.clock,
        settled=settled,
    )


async def rebuilt(made: Rig, capabilities: Any = HONEST, *, settled: bool = False) -> Progress:
    """A rebuild to its end."""
    its = rebuilds(made, capabilities, settled=settled)
    progress = its.begin(BUCKET)
    while not progress.over:
        await asyncio.sleep(1)
    return progress


def put_fenced(upstream: Trouble, key: str, fence_key: str, token: int) -> None:
    """An object as a gateway leaves it."""
    headers = ((META_KEY, key_in_metadata(fence_key)), (META_TOKEN, str(token)), (META_NONCE, "n"))
    upstream.apply(UpstreamRequest("PUT", BUCKET, key, "", headers), b"data")


async def close(*made: Rig) -> None:
    for each in made:
        await each.writes.close()


def test_a_new_database_is_made_the_buckets_authority() -> None:
    """The floors come from the objects, the generation is the next, and the one before is refused from then on."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        await one.put(7, b"p", PLAIN, fence_key=FencingKey("named"))
        await superseded(two.put(33, b"stale"))
        progress = await rebuilt(two)
        assert progress.phase is Phase.DONE
        assert (progress.objects, progress.fenced, progress.raised, progress.owners) == (2, 2, 2, 1)
        assert "generation 0" in progress.adopted
        assert progress.generation == two.store.authority.generation == record(upstream)["generation"] == 1
        assert await two.floor() == 34
        assert (await refusal(two.put(33, b"stale"))).reason is Reason.STALE_TOKEN
        assert (await refusal(two.put(0, b"no token", PLAIN))).reason is Reason.TOKEN_REQUIRED
        assert (await two.put(35, b"b")).status == 200
        await superseded(one.put(36, b"zombie gateway"))
        assert two.data() == b"b"
        await close(one, two)

    run(main())


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


def test_ten_thousand_objects_in_bounded_memory_with_progress() -> None:
    """What it counts grows as it goes; what it holds does not grow with the bucket."""

    async def main(count: int) -> tuple[int, list[int]]:
        upstream = Trouble(BUCKET)
        for number in range(count):
            put_fenced(upstream, f"renders/j/{number:05}", "j", number + 1)
        two = await gateway(upstream, "two")
        counts: list[int] = []
        its = rebuilds(two, settled=True)
        tracemalloc.start()
        progress = its.begin(BUCKET)
        upstream.on_look = lambda key: counts.append(progress.objects) if key.endswith("000") else None
        upstream.looked = _Nothing()
        while not progress.over:
            await asyncio.sleep(0.01)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (progress.phase, progress.objects, progress.fenced) == (Phase.DONE, count, count)
        assert await two.floor() == count
        await close(two)
        return peak, counts

    few, _ = run(main(2_000))
    many, counts = run(main(10_000))
    assert counts == sorted(counts)
    assert len(set(counts)) == 10
    assert many < few * 1.5


class _Nothing(list[str]):
    def append(self, item: str) -> None:
        """Keeps nothing: the memory measured is to be the rebuild's."""


def test_keys_are_mapped_back_or_stood_in_for() -> None:
    """A rule's, the object's own and a recorded owner are known by their hash; of others the hash itself holds."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        own = "o" * 400
        long_job = "l" * 300
        put_fenced(upstream, f"renders/{long_job}/out", long_job, 5)
        put_fenced(upstream, own, key_of_object(BUCKET, own), 6)
        put_fenced(upstream, PLAIN, LONG_KEY, 7)
        put_fenced(upstream, "ü/ é", "schlüssel mit leer", 8)
        two = await gateway(upstream, "two")
        assert (await rebuilt(two, settled=True)).raised == 4
        assert await two.floor(long_job) == 5
        assert await two.floor(key_of_object(BUCKET, own)) == 6
        assert await two.floor("schlüssel mit leer") == 8
        assert await two.store.owner(BUCKET, "ü/ é") == "schlüssel mit leer"
        stand_in = stand_in_of(LONG_KEY)
        assert stand_in is not None
        assert await two.floor(stand_in) == 7
        assert (await refusal(two.put(6, b"x", PLAIN, fence_key=LONG_KEY))).reason is Reason.STALE_TOKEN
        assert (await refusal(two.put(9, b"x", PLAIN, fence_key=FencingKey("k")))).reason is Reason.KEY_MISMATCH
        assert (await two.put(7, b"x", PLAIN, fence_key=LONG_KEY)).status == 200
        await close(two)

    run(main())


def test_a_restored_database_takes_its_own_bucket_back() -> None:
    """It is refused until the floors are those of the objects; what was raised is told by key."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one = await gateway(upstream)
        await one.put(34, b"a")
        restored = await gateway(upstream, "restored")
        await restored.store.raise_floor("j", 20)
        await restored.store.begin_rebuild(BUCKET, RESTORED)
        await superseded(restored.put(33, b"stale"))
        progress = await rebuilt(restored, settled=True)
        assert [(r.key, r.before, r.floor) for r in progress.raised_keys] == [("j", 20, 34)]
        assert (await refusal(restored.put(33, b"stale"))).reason is Reason.STALE_TOKEN
        await close(one, restored)

    run(main())


def test_a_bucket_without_a_record_is_rebuilt_too() -> None:
    """One that was fenced before there were records, or whose record somebody deleted."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        put_fenced(upstream, JOB, "j", 34)
        two = await gateway(upstream, "two", fenced_before=True)
        await superseded(two.put(33, b"stale"))
        began = asyncio.get_running_loop().time()
        assert (await rebuilt(two)).phase is Phase.DONE
        assert ASSEMBLY_S <= asyncio.get_running_loop().time() - began < ASSEMBLY_S + 5
        assert (await refusal(two.put(33, b"stale"))).reason is Reason.STALE_TOKEN
        assert record(upstream)["database"] == "two"
        await close(two)

    run(main())


def test_where_the_store_has_no_conditional_writes_the_floors_are_rebuilt_all_the_same() -> None:
    """Without a record, so nobody else is kept out; one that is there cannot be replaced."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        put_fenced(upstream, JOB, "j", 34)
        two = await gateway(upstream, "two", capabilities=DEAF, fenced_before=True)
        assert (await rebuilt(two, DEAF)).phase is Phase.DONE
        assert RECORD_KEY not in upstream.buckets[BUCKET]
        await asyncio.sleep(2)
        assert (await refusal(two.put(33, b"stale"))).reason is Reason.STALE_TOKEN
        put_record(upstream, b"another's")
        await asyncio.sleep(LAPSE_S)
        progress = await rebuilt(two, DEAF)
        assert progress.phase is Phase.FAILED
        assert "cannot replace it" in progress.error
        await close(two)

    run(main())


def test_a_record_that_cannot_be_read_is_adopted() -> None:
    """After the longest lapse that any gateway may have."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        put_record(upstream, b"garbage")
        two = await gateway(upstream, "two")
        began = asyncio.get_running_loop().time()
        assert (await rebuilt(two)).phase is Phase.DONE
        assert asyncio.get_running_loop().time() - began >= MAX_LAPSE_S + ASSEMBLY_S
        assert (await two.put(1, b"a")).status == 200
        await close(two)

    run(main())


def test_the_generation_is_above_that_of_the_record() -> None:
    """Tokens of the leases of all databases before lie below it."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        one, two = await gateway(upstream), await gateway(upstream, "two")
        await one.put(34, b"a")
        told = parse_record(upstream.buckets[BUCKET][RECORD_KEY].data)
        put_record(upstream, render_record(replace(told, database="three", generation=41)))
        assert (await rebuilt(two, settled=True)).generation == 42
        assert record(upstream)["generation"] == 42
        await close(one, two)

    run(main())


def test_what_fails_for_a_while_is_tried_again_and_what_fails_for_good_is_told() -> None:
    """A store that is gone ends it, with the reason; it goes on when it is asked for again."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        put_fenced(upstream, JOB, "j", 34)
        two = await gateway(upstream, "two")
        upstream.lost = 3
        assert (await rebuilt(two, settled=True)).phase is Phase.DONE
        three = await gateway(upstream, "three")
        upstream.lost = 100
        progress = await rebuilt(three, settled=True)
        assert progress.phase is Phase.FAILED
        assert "connection reset" in progress.error
        await superseded(three.put(40, b"x"))
        upstream.lost = 0
        assert (await rebuilt(three, settled=True)).phase is Phase.DONE
        await close(two, three)

    run(main())


def test_what_may_not_be_looked_at_ends_it_and_what_nobody_can_is_told() -> None:
    """Without the permission nothing would be learnt; of an object under its writer's own key nothing can be."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        put_fenced(upstream, JOB, "j", 34)
        put_fenced(upstream, "secret", "s", 5)
        two = await gateway(upstream, "two")
        upstream.status = {"secret": 403}
        progress = await rebuilt(two, settled=True)
        assert progress.phase is Phase.FAILED
        assert "s3:GetObject" in progress.error
        upstream.status = {"secret": 400}
        progress = await rebuilt(two, settled=True)
        assert (progress.phase, progress.unreadable) == (Phase.DONE, 1)
        assert progress.unreadable_objects == ["secret"]
        await close(two)

    run(main())


def test_a_bucket_that_is_not_there_cannot_be_rebuilt() -> None:
    """And says so."""

    async def main() -> None:
        two = await gateway(Trouble(), "two")
        progress = await rebuilt(two, settled=True)
        assert progress.phase is Phase.FAILED
        assert "no bucket" in progress.error
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
