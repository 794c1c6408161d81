"""The counterexamples that shaped the rules (the end of docs/protocol.md), each played on the service.

A story answers whether it did harm. As the gateway is it does none; with the rule that it shaped switched off, it does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.core.errors import FenceError
from gateway.core.gate import Gate
from gateway.core.keys import FencingKey, Token
from gateway.core.write import ABSENT
from gateway.service import writes
from gateway.service.completions import Completions
from gateway.service.conditions import Conditions
from gateway.service.fences import Fences
from gateway.service.jobs import Jobs
from gateway.service.leases import Leases
from gateway.service.objects import ObjectEntry
from gateway.service.passages import Passage
from gateway.service.queues import QueueRules
from gateway.service.uploads import Uploads
from gateway.service.values import Result
from gateway.service.waits import Timing
from gateway.stores.memory import MemoryStore
from gateway.stores.values import Event, Fence
from tests.service.rig import DEAF, JOB, Fault, Rig, refusal, rig
from tests.service.sent import elsewhere
from tests.simulation.rules_off import (
    completed_floor_runs_ahead,
    hand_over_not_awaited,
    one_nonce_for_all_sends,
    raise_not_durable,
    server_errors_settle,
)
from tests.virtual_time import VirtualClock, run

ROOT = Path(__file__).parents[2]
PATIENT = Timing(handover_wait_s=400)
"""Whoever waits does so until what he waits for is settled."""
LANDS_AFTER_S = 10
"""What is under way lands so long after its answer was lost: well within every settle time-out."""

Story = Callable[[], Awaitable[bool]]
Switch = Callable[[pytest.MonkeyPatch], None]


async def lost(r: Rig, call: Awaitable[Result], *faults: Fault) -> None:
    """A write whose answer is lost, and that lands later."""
    r.upstream.faults = list(faults) or [Fault.LOST_LATE]
    await refusal(call)
    asyncio.get_running_loop().call_later(LANDS_AFTER_S, r.upstream.land)


async def acknowledged(r: Rig, token: int, key: str = "j") -> None:
    """`token` is told that nothing lower can take effect any more."""
    r.fences.unpin(await r.fences.admit(FencingKey(key), Token(token), cause="check"))


def lands_late(r: Rig) -> bool:
    """Whether something that was sent before is still under way."""
    return bool(r.upstream.late)


# --- R5: what settles


async def a_newer_write_settles_nothing() -> bool:
    """33's answer is lost, 33 writes again and deletes; 34 is granted; the first write lands over nothing."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await lost(r, r.put(33, b"A"))
    await r.put(33, b"A again")
    await r.delete(33)
    await acknowledged(r, 34)
    return lands_late(r)


def newer_writes_settle(off: pytest.MonkeyPatch) -> None:
    settle = Passage.applied

    def applied(self: Passage) -> None:
        settle(self)
        for other in list(self._live.passages.values()):
            other.nonce_seen()

    off.setattr(Passage, "applied", applied)


async def a_500_is_no_refusal() -> bool:
    """33 is answered 500; 34 is granted; 33's write lands."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    r.upstream.faults = [Fault.ERROR_500_DROPPED]
    await asyncio.gather(r.put(33, b"A"), return_exceptions=True)
    r.upstream.late.append((r.upstream.sent[-1], b"A"))
    asyncio.get_running_loop().call_later(LANDS_AFTER_S, r.upstream.land)
    await acknowledged(r, 34)
    return lands_late(r)


async def a_retry_has_a_nonce_of_its_own() -> bool:
    """33's answer is lost, its retry is seen on the object; 34 is granted; the first attempt lands."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await lost(r, r.put(33, b"A"))
    await r.put(33, b"A")
    await acknowledged(r, 34)
    return lands_late(r)


async def one_complete_settles_no_other() -> bool:
    """One Complete's answer is lost, another of the same upload puts their nonce on the object; 34 is granted; the
    first lands, which some stores let win as well."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    upload_id = await r.create(33)
    etag = (await r.part(upload_id, b"part")).header("etag") or ""
    await lost(r, r.complete(upload_id, etag=etag))
    assert (await r.complete(upload_id, etag=etag)).status == 200
    await acknowledged(r, 34)
    return lands_late(r)


def completes_settle_each_other(off: pytest.MonkeyPatch) -> None:
    completed = Uploads._completed

    async def settling(self: Uploads, upload, result, etag):
        for passage in list((await self._fences.gates.of(FencingKey(upload.fence_key))).passages.values()):
            passage.nonce_seen()
        return await completed(self, upload, result, etag)

    off.setattr(Uploads, "_completed", settling)


# --- R1, R3, R5: floors, and when a hand-over is complete


class StoppedDisk(MemoryStore):
    """Raises to 34 never come back."""

    async def raise_floor(self, key: str, token: int, event: Event | None = None) -> Fence:
        if token == 34:
            await asyncio.Event().wait()
        return await super().raise_floor(key, token, event)


async def a_floor_is_raised_on_disk_first() -> bool:
    """34's raise hangs in the disk; it is told that it has written, or not; after a crash 33 goes on."""
    store = StoppedDisk(clock=VirtualClock().wall)
    r = await rig(capabilities=DEAF, timing=PATIENT, store=store)
    await r.put(33, b"A")
    writing = asyncio.create_task(r.put(34, b"B"))
    await asyncio.sleep(1)
    told = writing.done() and writing.exception() is None
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await store.stop(clean=False)
    r = await rig(capabilities=DEAF, timing=PATIENT, store=store, upstream=r.upstream)
    await r.put(33, b"A again")
    return told and r.data() == b"A again"


async def a_crash_completes_no_hand_over() -> bool:
    """33's answer is lost, the floor is raised to 34, which waits; the gateway crashes; 34 asks the next run."""
    r = await rig(capabilities=DEAF, timing=Timing(handover_wait_s=0))
    await lost(r, r.put(33, b"A"))
    await refusal(r.put(34, b"B"))
    await r.store.stop(clean=False)
    r = await rig(capabilities=DEAF, timing=PATIENT, store=r.store, upstream=r.upstream)
    await acknowledged(r, 34)
    return lands_late(r)


async def check_waits_for_lower_sends() -> bool:
    """33's answer is lost; `check` of 34 is answered; 33's write lands."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await lost(r, r.put(33, b"A"))
    await acknowledged(r, 34)
    return lands_late(r)


async def a_lease_waits_for_lower_sends() -> bool:
    """33's answer is lost; a lease is granted; 33's write lands."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await lost(r, r.put(33, b"A"))
    await Leases(r.fences).acquire(FencingKey("j"), "B", 60)
    return lands_late(r)


async def a_completion_waits_for_its_own_writes() -> bool:
    """The holder's answer is lost, and it completes the job; what it had sent lands on what was said to be done."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    leases = Leases(r.fences)
    lease = await leases.acquire(FencingKey("j"), "A", 600)
    await lost(r, r.put(lease.token, b"A"))
    jobs = Jobs(leases, r.store, r.writes.clock, QueueRules())
    completions = Completions(r.fences, leases, jobs, r.upstream, r.rules)
    await completions.complete(lease.key, lease.token)
    return lands_late(r)


def own_sends_not_awaited(off: pytest.MonkeyPatch) -> None:
    off.setattr(Gate, "quiet", lambda self, now: None)


# --- R4: what is sent again, and what is not sent


async def an_overtaken_writer_sends_nothing_again() -> bool:
    """33's condition has failed and it looks at the object; 34 takes over meanwhile; what 33 sends then holds up the
    very hand-over, and lands."""
    r = await rig(timing=PATIENT)
    await r.put(33, b"A")
    await r.put(33, b"A2")
    looking, go_on, read = asyncio.Event(), asyncio.Event(), r.upstream.read

    async def slow_read(request, body=b""):
        looking.set()
        await go_on.wait()
        return await read(request, body)

    r.upstream.read = slow_read  # type: ignore[method-assign]
    await elsewhere(r, 33, b"other")
    old = asyncio.create_task(r.put(33, b"A3"))
    await looking.wait()
    await acknowledged(r, 34)
    sent = len(r.upstream.sent)
    go_on.set()
    await asyncio.gather(old, return_exceptions=True)
    return len(r.upstream.sent) > sent


def resends_are_not_admitted(off: pytest.MonkeyPatch) -> None:
    admit = Fences.admit

    async def again(self: Fences, key, token, **options):
        try:
            return await admit(self, key, token, **options)
        except FenceError:
            live = await self.gates.of(key)
            live.pins += 1
            return live

    off.setattr(Fences, "admit", again)
    off.setattr("gateway.core.gate.Gate.refuse_overtaken", lambda self, token: None)
    off.setattr("gateway.core.gate.Gate.may_enter", lambda self, send: True)


async def a_delete_is_not_answered_from_memory() -> bool:
    """33's write is lost, 33's DELETE finds nothing; the write lands; 33 deletes again, and is told that it is gone."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await lost(r, r.put(33, b"A"))
    assert (await r.delete(33)).status == 204
    r.upstream.land()
    assert (await r.delete(33)).status == 204
    return r.data() is not None


def memory_answers_deletes(off: pytest.MonkeyPatch) -> None:
    look = Conditions._before_delete

    async def remembered(self: Conditions, write, live, entry):
        return Result(204, [], b"") if entry.state is ABSENT else await look(self, write, live, entry)

    off.setattr(Conditions, "_before_delete", remembered)


# --- R7, R9: other keys' sends and fences


async def a_complete_without_a_token_is_waited_for() -> bool:
    """Nobody owns the object; M's Complete, without a token, is lost; K writes the object; the Complete lands."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    upload_id = await r.create(0, "loose", fence_key=FencingKey("m"))
    etag = (await r.part(upload_id, b"part", key="loose")).header("etag") or ""
    await lost(r, r.complete(upload_id, etag=etag, key="loose"))
    await r.put(1, b"B", "loose", fence_key=FencingKey("k"))
    return lands_late(r)


def other_keys_do_not_matter(off: pytest.MonkeyPatch) -> None:
    off.setattr(ObjectEntry, "unsettled_of_another", lambda self, fence_key: False)


async def a_copy_leaves_the_sources_fence_behind() -> bool:
    """The copy of an object that another job's 40 wrote bears 40, and no longer belongs to the job that it is in."""
    r = await rig(capabilities=DEAF, timing=PATIENT)
    await r.put(40, b"A", "renders/other/out")
    await r.copy(33, JOB, "bkt/renders/other/out")
    stored = r.object()
    assert stored is not None
    return [value for name, value in stored.metadata if name == "x-amz-meta-fencing-token"] != ["33"]


def copies_go_as_they_came(off: pytest.MonkeyPatch) -> None:
    async def nothing(upstream, write) -> None:
        pass

    off.setattr(writes, "prepare_copy", nothing)
    off.setattr(writes, "object_metadata", lambda *_: ())


# --- the table


@dataclass(frozen=True)
class Counterexample:
    """One of the page's, in its words; the story that plays it here, and the switch that takes its rule away."""

    told: str
    story: Story | None = None
    off: Switch | None = None
    elsewhere: str = ""
    """The test that plays it where the service alone cannot: `path::name`."""


COUNTEREXAMPLES = (
    Counterexample(
        'a lost answer, then "a newer write settles it", delete, grant, late landing over nothing (R5)',
        a_newer_write_settles_nothing,
        newer_writes_settle,
    ),
    Counterexample("500 taken for a refusal (R5)", a_500_is_no_refusal, server_errors_settle),
    Counterexample(
        "an attempt's nonce shared by retries, or by the Completes of one upload (R4, R5)",
        a_retry_has_a_nonce_of_its_own,
        one_nonce_for_all_sends,
    ),
    Counterexample(
        "an attempt's nonce shared by retries, or by the Completes of one upload (R4, R5)",
        one_complete_settles_no_other,
        completes_settle_each_other,
    ),
    Counterexample(
        "a floor raised in memory before it was durable (R1)", a_floor_is_raised_on_disk_first, raise_not_durable
    ),
    Counterexample(
        "a crash between raise and drain (completed floor)", a_crash_completes_no_hand_over, completed_floor_runs_ahead
    ),
    Counterexample(
        "a clean stop with a send in doubt (R5)",
        elsewhere="tests/server/test_clean_stop.py::test_a_stop_with_a_send_in_doubt_is_not_clean",
    ),
    Counterexample(
        "the kernel delivering for a dead gateway (R5)",
        elsewhere="tests/end_to_end/test_kernel.py::test_the_kernel_gives_up_what_a_killed_gateway_has_released",
    ),
    Counterexample(
        "`check` or a lease answered before lower sends settle (R3)",
        check_waits_for_lower_sends,
        hand_over_not_awaited,
    ),
    Counterexample(
        "`check` or a lease answered before lower sends settle (R3)",
        a_lease_waits_for_lower_sends,
        hand_over_not_awaited,
    ),
    Counterexample(
        "a resend by a writer that has been overtaken meanwhile, which then blocks its own hand-over (R4)",
        an_overtaken_writer_sends_nothing_again,
        resends_are_not_admitted,
    ),
    Counterexample("DELETE answered from memory (R4)", a_delete_is_not_answered_from_memory, memory_answers_deletes),
    Counterexample(
        "a completion recorded while its own writes are in flight (R3)",
        a_completion_waits_for_its_own_writes,
        own_sends_not_awaited,
    ),
    Counterexample(
        "a tokenless Complete under another key over an unowned object (R9)",
        a_complete_without_a_token_is_waited_for,
        other_keys_do_not_matter,
    ),
    Counterexample(
        "a refresh of credentials that fetches a new lease for a zombie (interface)",
        elsewhere="tests/cli/test_credentials.py::test_an_sdk_is_fenced_and_its_refresh_makes_no_holder_of_a_zombie",
    ),
    Counterexample(
        "a copy that carries the source's fence (R7)", a_copy_leaves_the_sources_fence_behind, copies_go_as_they_came
    ),
)
PLAYED = [(one.story, one.off) for one in COUNTEREXAMPLES if one.story is not None]


@pytest.mark.parametrize(("story", "off"), PLAYED, ids=[str(story.__name__) for story, _ in PLAYED])  # type: ignore[attr-defined]
def test_counterexample(story: Story, off: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the gateway is, the story does no harm; without the rule that it shaped, it does."""
    assert not run(story())  # type: ignore[arg-type]
    off(monkeypatch)
    assert run(story()), "the story proves nothing: without its rule, too, it does no harm"  # type: ignore[arg-type]


def test_each_counterexample_of_the_page_is_here() -> None:
    """The page's list is this table, word for word; what is played elsewhere is there."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    found = re.search(r"Counterexamples that shaped the rules, each a test: (.*?)\.\n\n", page, re.DOTALL)
    assert found is not None
    assert [" ".join(one.split()) for one in found[1].split(";")] == list(
        dict.fromkeys(one.told for one in COUNTEREXAMPLES)
    )
    for one in COUNTEREXAMPLES:
        assert one.story or one.elsewhere
        if one.elsewhere:
            path, _, name = one.elsewhere.partition("::")
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), one.elsewhere
