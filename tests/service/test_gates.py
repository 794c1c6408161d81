"""What the service makes of a gate: one for each key, kept while anybody depends on it, never behind the store."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import Outcome, Reason
from gateway.core.keys import FencingKey
from gateway.core.write import IllegalTransition
from gateway.service import gates
from gateway.service.passages import Passage
from gateway.service.waits import Timing
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, EventKind
from tests.service.between import held
from tests.service.rig import DEAF, JOB, Fault, Payload, elapsed, refusal, rig
from tests.service.test_batches import delete
from tests.virtual_time import VirtualClock, run


class SlowStore(MemoryStore):
    """A disk that takes a second for a raise, before or after it has taken effect."""

    def __init__(self) -> None:
        super().__init__(clock=VirtualClock().wall)
        self.before_s = self.after_s = 0.0

    async def raise_floor(self, key, token, event=None):
        await asyncio.sleep(self.before_s)
        fence = await super().raise_floor(key, token, event)
        await asyncio.sleep(self.after_s)
        return fence


@pytest.mark.parametrize(("before_s", "after_s"), [(1, 0), (0, 1)], ids=["before", "after"])
def test_a_caller_that_goes_away_leaves_no_gate_behind_the_store(before_s, after_s) -> None:
    """R1: 34's client vanishes while its raise is on its way; 33 is shut out all the same."""

    async def main() -> None:
        r = await rig(store=SlowStore())
        await r.put(33, b"A")
        r.store.before_s, r.store.after_s = before_s, after_s
        raising = asyncio.create_task(r.put(34, b"B"))
        await asyncio.sleep(0.5)
        raising.cancel()
        await asyncio.sleep(1)
        assert await r.floor() == 34
        assert (await refusal(r.put(33, b"A2"))).reason is Reason.STALE_TOKEN

    run(main())


def test_seal_interrupts_what_is_staged_and_outlives_a_restart() -> None:
    """R3: a sealed token's stream ends at once; after a restart the token is sealed still."""

    async def main() -> None:
        r = await rig()
        stuck = Payload(length=100)
        writing = asyncio.create_task(r.put(33, stuck))
        await stuck.wanted.wait()
        await r.fences.seal("j", 33, Event("j", EventKind.SEALED, 33, 33, "done"))
        assert (await refusal(asyncio.wait_for(writing, 1))).reason is Reason.SEALED
        await r.store.stop(clean=True)
        r = await rig(store=r.store, upstream=r.upstream)
        assert (await refusal(r.put(33, b"A"))).reason is Reason.SEALED

    run(main())


def test_a_request_that_is_cut_after_its_commit_point_is_in_doubt() -> None:
    """R5: the client goes away while the answer is awaited; the hand-over waits for the settle time-out."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.SILENT]
        writing = asyncio.create_task(r.put(33, b"A"))
        await r.upstream.reached.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [send.phase for send in r.fences.unsettled("j")] == ["in-doubt"]
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_overtaken_and_ended_at_once_a_task_ends() -> None:
    """A handler that is being ended stays cancelled, though its send has been overtaken in the same moment."""

    async def main() -> None:
        r = await rig()
        stuck = Payload(length=100)
        writing = asyncio.create_task(r.put(33, stuck))
        await stuck.wanted.wait()
        live = await r.fences.gates.of(FencingKey("j"))
        live.cancel_overtaken(live.gate.raised(34))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    run(main())


async def _staged(r, token: int) -> Passage:
    live = await r.fences.gates.of(FencingKey("j"))
    return Passage(r.fences, live, r.writes.objects.pin("bkt", JOB), token, assembles=False, request_id="request")


def test_the_commit_point_asks_the_gate() -> None:
    """R3: a send that nobody has cancelled is refused at its commit point if it has been overtaken."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        passage = await _staged(r, 33)
        r.fences.unpin(await r.fences.admit("j", 34, cause="check"))
        error = await refusal(_commit(passage))
        assert (error.reason, error.outcome) == (Reason.STALE_TOKEN, Outcome.NOT_APPLIED)

    run(main())


def test_at_the_commit_point_overtaken_comes_before_contested() -> None:
    """R3: who has been overtaken is told to stop, not to come again, though another key's send is unsettled there."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        passage = await _staged(r, 33)
        r.writes.objects.pin("bkt", JOB).begin(FencingKey("other"))
        r.fences.unpin(await r.fences.admit("j", 34, cause="check"))
        assert (await refusal(_commit(passage))).reason is Reason.STALE_TOKEN

    run(main())


async def _commit(passage: Passage) -> None:
    passage.commit()


def test_no_send_passes_before_its_hand_over_is_complete() -> None:
    """R3: staged under a raised floor, with a lower send unsettled, it is a fault of the program to commit."""

    async def main() -> None:
        r = await rig(timing=Timing(handover_wait_s=0))
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        await refusal(r.fences.admit("j", 34, cause="check"))
        passage = await _staged(r, 34)
        with pytest.raises(IllegalTransition):
            passage.commit()

    run(main())


def test_writers_that_meet_at_an_unknown_key_meet_at_one_gate() -> None:
    """Two gates for one key would each let its own through."""

    async def main() -> None:
        r = await rig()
        r.upstream.faults = [Fault.SILENT]
        old = asyncio.create_task(r.put(33, b"A"))
        new = asyncio.create_task(r.put(34, b"B"))
        await asyncio.sleep(1)
        r.upstream.silent.set()
        results = await asyncio.gather(old, new, return_exceptions=True)
        assert results[0].reason is Reason.STALE_TOKEN or len(r.upstream.sent) == 2
        assert r.data() == b"B"
        assert len({id(live) for live in r.fences.gates}) == 1
        assert (await refusal(r.put(33, b"A"))).reason is Reason.STALE_TOKEN

    run(main())


async def _crowd(r) -> None:
    """Writes of many other keys."""
    for n in range(20):
        await r.put(1, b"x", key=f"renders/crowd{n}/o")


def test_a_gate_with_a_send_in_doubt_is_not_forgotten(monkeypatch) -> None:
    """R5: many keys come and go, and 34 still waits for 33's doubt."""

    async def main() -> None:
        monkeypatch.setattr(gates, "MAX_IDLE_GATES", 2)
        r = await rig(timing=Timing(handover_wait_s=60))
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.put(33, b"A"))
        await _crowd(r)
        _, seconds = await elapsed(r.put(34, b"B"))
        assert seconds == pytest.approx(30, abs=0.1)

    run(main())


def test_a_gate_that_a_writer_stands_at_is_not_forgotten(monkeypatch) -> None:
    """R3: 33 has been admitted and looks at the object while many keys come and go, and 34 takes over. What it has seen
    says nothing of that, and no condition protects the object."""

    async def main() -> None:
        monkeypatch.setattr(gates, "MAX_IDLE_GATES", 2)
        r = await rig(capabilities=DEAF)
        await r.put(33, b"A")
        await r.writes.unfenced(r.write("PUT", JOB, 0, Payload(b"plain")))
        look = held(r.upstream, "read", done=True)
        old = asyncio.create_task(r.put(33, Payload(b"x" * 100)))
        await look.reached.wait()
        await _crowd(r)
        await r.put(34, b"B")
        look.go_on.set()
        assert (await refusal(old)).reason is Reason.STALE_TOKEN
        assert r.data() == b"B"

    run(main())


def test_keys_that_are_only_asked_for_do_not_fill_the_memory(monkeypatch) -> None:
    """Whoever looks at ever new keys, and writes under none."""

    async def main() -> None:
        monkeypatch.setattr(gates, "MAX_IDLE_GATES", 2)
        r = await rig()
        for number in range(100):
            assert await r.fences.pending_of(FencingKey(f"key-{number}")) is None
        assert len(list(r.fences.gates)) <= 3

    run(main())


def test_a_refusal_leaves_nothing_pinned() -> None:
    """Gates and objects that nobody works on can be forgotten, however the work on them ended."""

    async def main() -> None:
        r = await rig()
        await r.put(34, b"B")
        await refusal(r.put(33, b"A"))
        await delete(r, (JOB, 33))
        r.upstream.faults = [Fault.NOT_REACHED]
        await refusal(r.put(34, b"B2"))
        upload_id = await r.create(34)
        await r.part(upload_id, b"part")
        assert [live.pins for live in r.fences.gates] == [0]
        assert [entry.pins for entry in r.writes.objects._entries.values()] == [0]

    run(main())


def test_a_batch_of_another_keys_object_leaves_nothing_pinned() -> None:
    """The refusal comes after admission, from the object's owner."""

    async def main() -> None:
        r = await rig()
        await r.put(5, b"K", key="o", fence_key="K")
        _, refusals = await delete(r, ("o", 6))
        assert [error.reason for error in refusals] == [Reason.KEY_MISMATCH]
        assert {live.pins for live in r.fences.gates} == {0}
        assert {entry.pins for entry in r.writes.objects._entries.values()} == {0}

    run(main())


def test_after_a_crash_open_uploads_keep_the_run_unsettled_for_longer() -> None:
    """R5: a Complete of the earlier run may land for the longer time-out; a stop before is not clean."""

    async def main() -> None:
        r = await rig()
        await r.create(33)
        await r.store.stop(clean=False)
        r = await rig(store=r.store, upstream=r.upstream)
        await asyncio.sleep(31)
        assert r.fences.earlier_run.unsettled
        await asyncio.sleep(270)
        assert not r.fences.earlier_run.unsettled

    run(main())


def test_waiting_for_a_doubt_does_not_multiply_its_timer() -> None:
    """R5: one timer settles a send by time-out, however many have asked for the hand-over meanwhile."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        r.upstream.faults = [Fault.LOST_DROPPED]
        await refusal(r.delete(33))
        await asyncio.sleep(1)
        before = len(asyncio.get_running_loop()._scheduled)
        for _ in range(100):
            await refusal(r.fences.admit("j", 34, cause="check", wait_s=0))
        assert len(asyncio.get_running_loop()._scheduled) <= before + 1

    run(main())


def test_a_timer_that_fires_a_hair_early_does_not_make_a_hand_over_spin() -> None:
    """R3: several wait for a moment that lies one rounding ahead of the clock; none keeps the others from it."""

    async def main() -> None:
        r = await rig()
        await r.put(33, b"A")
        gate, looks = (await r.fences.gates.of(FencingKey("j"))).gate, 0
        hand_over, until = gate.hand_over, asyncio.get_running_loop().time() + 1e-12

        def early(token, now):
            nonlocal looks
            looks += 1
            assert looks < 1000
            return until if now < until else hand_over(token, now)

        gate.hand_over = early
        waiters = []
        for _ in range(7):  # one after another, so that there is always one that has just begun to wait
            waiters.append(asyncio.create_task(r.fences.admit("j", 34, cause="check")))
            await asyncio.sleep(0)
        await asyncio.gather(*waiters)

    run(main())
