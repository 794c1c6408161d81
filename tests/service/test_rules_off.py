"""Each rule of the service, switched off: the random schedules then find its harm.

With the rules as they are no schedule does any (`test_schedules`). For the gate's own: `tests/core/test_rules_off.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.gate import Admission, Gate, Send
from gateway.core.write import Answer, Phase, Verdict
from gateway.service import sending, writes
from gateway.service.batches import Batches, _Item
from gateway.service.fences import Fences
from gateway.service.passages import Passage
from gateway.stores.base import Fence
from tests.service.rig import DEAF, HONEST
from tests.service.schedules import Schedule, Violation
from tests.virtual_time import run

SEEDS = range(400)
Switch = Callable[[pytest.MonkeyPatch], None]


def hand_over_not_awaited(off: pytest.MonkeyPatch) -> None:
    """R3: what raises a floor goes on at once."""

    async def at_once(self, live, token, wait_s):
        live.gate.completed_floor = token

    off.setattr(Fences, "_hand_over", at_once)


def raise_not_durable(off: pytest.MonkeyPatch) -> None:
    """R1: the floor is raised in memory and never reaches the store."""

    async def in_memory(self, live, token, event):
        live.cancel_overtaken(live.gate.raised(token))

    off.setattr(Fences, "_raise_durably", in_memory)


def raise_not_awaited(off: pytest.MonkeyPatch) -> None:
    """R1: a token above the floor passes while its raise is under way."""
    off.setattr(Gate, "admit", lambda self, token, limits: self.refuse_overtaken(token) or Admission.GO)


def gate_not_asked_at_the_commit_point(off: pytest.MonkeyPatch) -> None:
    """R3: what was staged once may commit for ever."""

    def commit(self):
        self._send.phase = Phase.COMMITTING
        self._entry.begin(self._live.gate.key)

    off.setattr(Passage, "commit", commit)
    off.setattr(Passage, "cancel", lambda self: None)


def lost_answers_settle(off: pytest.MonkeyPatch) -> None:
    """R5: a lost answer is taken for a refusal."""
    off.setattr(Passage, "lost", Passage.refused)


def server_errors_settle(off: pytest.MonkeyPatch) -> None:
    """R5: a 500 is taken for a refusal."""
    classify = sending.classify
    off.setattr(sending, "classify", lambda status, code: Answer.REFUSED if status >= 500 else classify(status, code))


def any_look_settles(off: pytest.MonkeyPatch) -> None:
    """R5: a HEAD that does not show the nonce is taken for a proof."""
    off.setattr(writes, "judge", lambda *_: Verdict.OURS)


def one_nonce_for_all_sends(off: pytest.MonkeyPatch) -> None:
    """R4: attempts share their nonce, and one's appearance settles another."""
    request = writes.Writes._request
    looked = writes.judge
    off.setattr(writes.Writes, "_request", lambda self, admitted, nonce: request(self, admitted, "shared"))
    off.setattr(writes, "judge", lambda state, key, token, nonce: looked(state, key, token, nonce and "shared"))


def unclean_starts_ignored(off: pytest.MonkeyPatch) -> None:
    """R5: what a crashed run has sent is forgotten."""
    off.setattr(Fences, "started_unclean", lambda self, keys: None)


def stops_clean_in_doubt(off: pytest.MonkeyPatch) -> None:
    """R5: a stop leaves the clean mark whatever is unsettled."""
    off.setattr(Fences, "unsettled", lambda self, key=None: [])


def batches_pass_by_the_gate(off: pytest.MonkeyPatch) -> None:
    """R7: a batch asks nobody."""

    async def admit(self, asked, write):
        live = await self._fences._load(write.key)
        live.pins += 1
        return _Item(asked, write, live, self._objects.pin(write.bucket, write.object_key))

    off.setattr(Batches, "_admit", admit)
    off.setattr(Gate, "stage", lambda self, token, settle_s: _stage(self, token, settle_s))
    off.setattr(Passage, "commit", lambda self: setattr(self._send, "phase", Phase.COMMITTING) or _begin(self))


def _stage(gate, token, settle_s):
    send = Send(token, settle_s)
    gate._sends[send] = None
    return send


def _begin(passage: Passage) -> None:
    passage._entry.begin(passage._live.gate.key)


def completed_floor_runs_ahead(off: pytest.MonkeyPatch) -> None:
    """R5: the completed floor is written with the raise, before the hand-over is complete."""
    load = Fences._fence

    async def ahead(self, key):
        fence = await load(self, key)
        return Fence(key, fence.floor, fence.floor, fence.sealed_token)

    off.setattr(Fences, "_fence", ahead)


def failures_vouch_for_absence(off: pytest.MonkeyPatch) -> None:
    """G5: a lost answer is told as `NotApplied`."""

    async def in_doubt(self, admitted, passage, nonce, result):
        raise sending.unavailable("lost")

    off.setattr(writes.Writes, "_in_doubt", in_doubt)


SWITCHES: list[Switch] = [
    hand_over_not_awaited,
    raise_not_durable,
    raise_not_awaited,
    gate_not_asked_at_the_commit_point,
    lost_answers_settle,
    server_errors_settle,
    any_look_settles,
    one_nonce_for_all_sends,
    unclean_starts_ignored,
    stops_clean_in_doubt,
    batches_pass_by_the_gate,
    completed_floor_runs_ahead,
    failures_vouch_for_absence,
]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.__name__)
def test_rule_is_needed(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule some schedule breaks a guarantee."""
    switch(monkeypatch)
    for seed in SEEDS:
        for capabilities in (DEAF, HONEST):
            try:
                run(Schedule(seed, capabilities).run())
            except Violation:
                return
            except Exception:
                continue  # without its rule the program may break in another way, too
    raise AssertionError("no schedule has found its harm")
