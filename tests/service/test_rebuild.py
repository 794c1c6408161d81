"""`fence rebuild`: a bucket taken over with the floors that its objects tell."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
import structlog

from gateway.core.errors import Reason
from gateway.core.keys import FencingKey, key_of_object, stand_in_of
from gateway.core.names import RECORD_KEY
from gateway.service import rebuild
from gateway.service.rebuild import Phase
from gateway.service.record import MAX_LAPSE_S
from gateway.stores.values import RESTORED
from tests.service.rebuild_desk import ASSEMBLY_S, Trouble, close, put_fenced, rebuilds, rebuilt
from tests.service.record_desk import LAPSE_S, LONG_KEY, PLAIN, gateway, put_record, record, superseded, take_over
from tests.service.rig import BUCKET, DEAF, JOB, refusal
from tests.virtual_time import run


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
        take_over(upstream, "three", generation=41)
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


def test_a_store_that_lists_the_same_page_for_ever_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes no notice of where a page is to begin."""

    async def page(*_: object) -> tuple[list[str], bool]:
        return [JOB], True

    async def main() -> None:
        monkeypatch.setattr(rebuild, "keys_after", page)
        made = await gateway(Trouble(BUCKET))
        progress = await rebuilt(made)
        assert progress.phase is Phase.FAILED
        assert "in order" in progress.error
        await close(made)

    run(main())


def test_a_fault_of_the_program_ends_it_and_is_logged() -> None:
    """Who asks for its state is told that it is over."""

    async def main() -> None:
        upstream = Trouble(BUCKET)
        made = await gateway(upstream)
        put_fenced(upstream, "renders/j/out", "j", 7)

        def fault(_: str) -> None:
            raise RuntimeError("a fault")

        upstream.on_look = fault
        with structlog.testing.capture_logs() as log:
            progress = await rebuilt(made)
        assert progress.phase is Phase.FAILED
        assert "its log" in progress.error
        assert "the rebuild failed" in {line["event"] for line in log}
        await close(made)

    run(main())
