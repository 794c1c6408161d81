"""Each rule of the service, with what switches it off."""

from __future__ import annotations

from dataclasses import replace

from gateway.core import write as core_write
from gateway.core.gate import Admission, Gate, Send
from gateway.core.write import Answer, Phase, Verdict
from gateway.service import batches, conditions, heads, sending, uploads, writes
from gateway.service.batches import Batches
from gateway.service.bindings import Bindings
from gateway.service.copies import CopyMarks
from gateway.service.doubts import Doubts
from gateway.service.earlier_run import EarlierRun
from gateway.service.fences import Fences
from gateway.service.gates import Gates
from gateway.service.objects import ObjectEntry
from gateway.service.ownership import Owners
from gateway.service.passages import Passage
from gateway.service.uploads import Uploads
from gateway.service.writes import Writes
from tests.simulation import gateway as simulated
from tests.simulation.rules_off_beside import OF_LEASES_AND_RECORDS, Off, Switch, nothing
from tests.simulation.wire import TIMING

# --- R1


def raise_not_durable(off: Off) -> None:
    """R1: the floor is raised in memory and never reaches the store."""

    async def in_memory(self, live, token, event):
        live.cancel_overtaken(live.gate.raised(token))

    off.setattr(Fences, "_raise_durably", in_memory)


def raised_in_memory_first(off: Off) -> None:
    """R1: the gate has the new floor before the store has."""
    admit = Gate.admit

    def early(self, token, *limits, **more):
        admission = admit(self, token, *limits, **more)
        if admission is Admission.RAISE:
            self.raised(token)
        return admission

    off.setattr(Gate, "admit", early)


# --- R2


def tail_not_withheld(off: Off) -> None:
    """R2: the commit point is passed when the body has come, before it has been verified."""

    async def eager(upstream, request, body, commit, timeout_s, *, keep_trailer):
        exchange = await upstream.open(request, body.length)
        left = body.length
        async for pieces in body.pieces():
            for piece in pieces:
                left -= len(piece)
                if not left:
                    commit()
                    exchange.commit()
                await exchange.write(piece)
        return await sending.result_of(await exchange.response(timeout_s))

    off.setattr(writes, "stream", eager)


# --- R3


def hand_over_not_awaited(off: Off) -> None:
    """R3: what raises a floor goes on at once."""

    async def at_once(self, live, token, wait_s):
        live.gate.completed_floor = token

    off.setattr(Fences, "_hand_over", at_once)


def gate_not_asked_at_the_commit_point(off: Off) -> None:
    """R3: what was staged once may commit for ever."""

    def commit(self):
        self._send.phase = Phase.COMMITTING
        self._entry.begin(self._live.gate.key)

    off.setattr(Passage, "commit", commit)
    off.setattr(Passage, "cancel", lambda self: None)


def seals_forgotten(off: Off) -> None:
    """R3: a sealed token writes on."""
    raised = Gate.raised
    off.setattr(Gate, "raised", lambda self, floor, sealed_token=0: raised(self, floor))


# --- R4


def one_nonce_for_all_sends(off: Off) -> None:
    """R4: attempts share their nonce, and one's appearance settles another."""
    request, looked = Writes._request, heads.judge
    off.setattr(Writes, "_request", lambda self, admitted, nonce: request(self, admitted, "shared"))
    off.setattr(heads, "judge", lambda state, key, token, nonce: looked(state, key, token, nonce and "shared"))


def heads_not_judged(off: Off) -> None:
    """R4, G4: what an object bears means nothing."""
    judge = core_write.judge

    def blind(state, key, token, nonce):
        verdict = judge(state, key, token, nonce)
        return Verdict.MOVED if verdict is Verdict.HIGHER_TOKEN else verdict

    off.setattr(heads, "judge", blind)
    off.setattr(conditions, "judge", blind)


def sends_bear_no_condition(off: Off) -> None:
    """R4, G3: what is sent lands whatever has become of the object."""
    off.setattr(conditions.Admitted, "on", lambda self, state: self)


def versions_kept_no_longer_are_like_others(off: Off) -> None:
    """R4: what the store refuses of a version that it shows is demanded again and again."""

    async def never(self, write):
        return False

    off.setattr(conditions.Conditions, "in_suspended_bucket", never)


# --- R5


def lost_answers_settle(off: Off) -> None:
    """R5: a lost answer is taken for a refusal."""
    off.setattr(Passage, "lost", Passage.refused)


def server_errors_settle(off: Off) -> None:
    """R5: a 500 is taken for a refusal."""
    classify = sending.classify
    off.setattr(sending, "classify", lambda status, code: Answer.REFUSED if status >= 500 else classify(status, code))


def errors_in_200_are_successes(off: Off) -> None:
    """R5: the status of a copy or a Complete is believed."""
    classify = sending.classify
    off.setattr(sending, "classify", lambda status, code: Answer.APPLIED if status == 200 else classify(status, code))
    off.setattr(uploads, "with_etag", lambda result: (result, '"etag"'))
    off.setattr(writes, "with_etag", lambda result: (result, '"etag"'))


def any_look_settles(off: Off) -> None:
    """R5: a HEAD that does not show the nonce is taken for a proof."""
    off.setattr(heads, "judge", lambda *_: Verdict.OURS)


def settled_too_soon(off: Off) -> None:
    """R5: the settle time-out is shorter than what the kernel and the store may take."""
    off.setattr(simulated, "TIMING", replace(TIMING, settle_timeout_s=5))


def assemblies_settled_too_soon(off: Off) -> None:
    """R5: Complete and Copy are given no more time than others."""
    off.setattr(simulated, "TIMING", replace(TIMING, settle_timeout_assembly_s=30))


def unclean_starts_ignored(off: Off) -> None:
    """R5: what a crashed run has sent is forgotten."""
    off.setattr(EarlierRun, "started_unclean", lambda self, keys: None)


def open_uploads_ignored_at_start(off: Off) -> None:
    """R5: after a crash a Complete is given no more time than others."""
    started = EarlierRun.started_unclean
    off.setattr(EarlierRun, "started_unclean", lambda self, keys: started(self, frozenset()))


def copies_not_marked(off: Off) -> None:
    """R5: after a crash nobody knows that a copy was under way."""
    off.setattr(CopyMarks, "mark", nothing)


def stops_clean_in_doubt(off: Off) -> None:
    """R5: a stop leaves the clean mark whatever is unsettled."""
    off.setattr(Fences, "unsettled", lambda self, key=None: [])


def stops_clean_after_a_crash(off: Off) -> None:
    """R5: a stop leaves the clean mark, although what an earlier run sent may still land."""
    off.setattr(EarlierRun, "unsettled", property(lambda self: False))


def completed_floor_runs_ahead(off: Off) -> None:
    """R5: the completed floor is written with the raise, before the hand-over is complete."""
    load = Gates.fence

    async def ahead(self, key):
        fence = await load(self, key)
        return replace(fence, completed_floor=fence.floor)

    off.setattr(Gates, "fence", ahead)


# --- R6


def overtaken_uploads_stay(off: Off) -> None:
    """R6: what a dead worker has begun is never aborted."""
    off.setattr(Bindings, "overtaken", lambda self, key: None)


def repeated_completes_not_admitted(off: Off) -> None:
    """R6: a Complete that has succeeded answers success for ever."""

    async def again(self, write, upload):
        return uploads._success(upload, upload.etag or "", [])

    off.setattr(Uploads, "_again", again)


# --- R7


def batches_pass_by_the_gate(off: Off) -> None:
    """R7: a batch asks nobody."""

    async def admit(self, asked, write):
        live = await self._fences.gates.of(write.key)
        live.pins += 1
        return batches._Item(asked, write, live, self._objects.pin(write.bucket, write.object_key))

    def stage(gate, token, settle_s):
        send = Send(token, settle_s)
        gate._sends[send] = None
        return send

    def commit(self):
        self._send.phase = Phase.COMMITTING
        self._entry.begin(self._live.gate.key)

    off.setattr(Batches, "_admit", admit)
    off.setattr(Gate, "stage", stage)
    off.setattr(Passage, "commit", commit)


def lost_batches_settle(off: Off) -> None:
    """R7: a batch whose answer is lost leaves nothing in doubt."""
    lost = batches._lost

    def settled(sent):
        for item in sent:
            batches._passage(item).refused()
        return lost([])

    off.setattr(batches, "_lost", settled)


def copies_carry_the_fence(off: Off) -> None:
    """R7: a plain copy brings key and token of its source along."""
    off.setattr(writes, "prepare_copy", nothing)


# --- R9


def owners_forgotten(off: Off) -> None:
    """R9: what no rule maps belongs to nobody."""
    off.setattr(Owners, "own", nothing)
    off.setattr(ObjectEntry, "contested", ObjectEntry.unsettled_of_another)


def sends_of_other_keys_ignored(off: Off) -> None:
    """R9: sends of two keys are under way on one object."""
    off.setattr(ObjectEntry, "contested", lambda self, key: False)
    off.setattr(ObjectEntry, "unsettled_of_another", lambda self, key: False)


def crashes_forgotten_by_other_keys(off: Off) -> None:
    """R9: who takes an object over after a crash waits for nothing."""
    off.setattr(Owners, "_refuse_move_after_crash", lambda self, write: None)


# --- G5


def failures_vouch_for_absence(off: Off) -> None:
    """G5: a lost answer is told as `NotApplied`."""

    async def in_doubt(self, admitted, passage, nonce, result):
        raise sending.unavailable("lost")

    off.setattr(Doubts, "answer", in_doubt)


SWITCHES: list[Switch] = [
    raise_not_durable,
    raised_in_memory_first,
    tail_not_withheld,
    hand_over_not_awaited,
    gate_not_asked_at_the_commit_point,
    seals_forgotten,
    one_nonce_for_all_sends,
    heads_not_judged,
    sends_bear_no_condition,
    versions_kept_no_longer_are_like_others,
    lost_answers_settle,
    server_errors_settle,
    errors_in_200_are_successes,
    any_look_settles,
    settled_too_soon,
    assemblies_settled_too_soon,
    unclean_starts_ignored,
    open_uploads_ignored_at_start,
    copies_not_marked,
    stops_clean_in_doubt,
    stops_clean_after_a_crash,
    completed_floor_runs_ahead,
    overtaken_uploads_stay,
    repeated_completes_not_admitted,
    batches_pass_by_the_gate,
    lost_batches_settle,
    copies_carry_the_fence,
    owners_forgotten,
    sends_of_other_keys_ignored,
    crashes_forgotten_by_other_keys,
    failures_vouch_for_absence,
    *OF_LEASES_AND_RECORDS,
]
