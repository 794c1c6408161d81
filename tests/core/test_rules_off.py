"""Each rule of the gate, switched off: the schedule that it prevents then does its harm.

A schedule answers whether a lower token took effect after a higher one had been acknowledged. With the gate as it is,
none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from gateway.core.errors import Refused
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import FencingKey, Token
from gateway.core.write import IllegalTransition, Phase, Signal

KEY = FencingKey("job")
ZOMBIE, HEIR = Token(33), Token(34)
SETTLE_S = 30.0

Schedule = Callable[[type[Gate]], bool]


def passes(gate: Gate, send: Send) -> bool:
    """Whether the send gets past its commit point."""
    try:
        gate.enter(send)
    except (Refused, IllegalTransition):
        return False
    return True


def acknowledged(gate: Gate, token: Token, now: float) -> bool:
    """Whether `token` is told that it holds the key."""
    gate.raised(token)
    gate.expire(now)
    return gate.hand_over(token, now) is None


# --- the rules, each taken away


class AdmitsStale(Gate):
    """Rules 1 and 3 without the floor: any token may stage and enter."""

    def refuse_overtaken(self, token: Token) -> None:
        pass

    def may_enter(self, send: Send) -> bool:
        return send.phase is Phase.STAGED


class ChecksOnlyAtTheStart(Gate):
    """Rule 3 without the look at the commit point: what was admitted once may enter for ever."""

    def enter(self, send: Send) -> None:
        send.phase = Phase.COMMITTING


class ForgetsSeals(Gate):
    """Rule 1 without seals."""

    def raised(self, floor: int, sealed_token: int = 0) -> list[Send]:
        return super().raised(floor)


class RaisesBeforeTheStore(Gate):
    """Rule 2 without durability: admission itself raises the floor."""

    def admit(self, token: Token) -> Admission:
        super().admit(token)
        self.floor = self.completed_floor = max(self.floor, token)
        return Admission.GO


class LowersFloors(Gate):
    """A floor that follows the store's last answer, whichever it was."""

    def raised(self, floor: int, sealed_token: int = 0) -> list[Send]:
        self.floor = self.completed_floor = floor
        return []


class WaitsForNobody(Gate):
    """Rule 4 without the wait."""

    def _lower_unsettled(self, token: int) -> list[Send]:
        return []


class WaitsForAnswersOnly(Gate):
    """Rule 4 without doubt: a lost answer is taken for a refusal."""

    def lost(self, send: Send, now: float) -> None:
        super().lost(send, now)
        self.settle(send, Signal.TIMED_OUT)


class TakesNewerForSettled(Gate):
    """Rule 4 with a false settling: another attempt's success is taken to settle what is in doubt."""

    def settle(self, send: Send, signal: Signal) -> None:
        super().settle(send, signal)
        for other in list(self.unsettled()):
            if other.phase is Phase.IN_DOUBT:
                super().settle(other, Signal.NONCE_SEEN)


class OverrulesWhatAwaitsItsAnswer(Gate):
    """Rule 6 without its bound: the operator's word settles all that is past its commit point."""

    def overrule(self, sends: Iterable[Send]) -> list[Send]:
        sends = list(sends)
        for send in sends:
            if send.phase is Phase.COMMITTING:
                self.lost(send, 0)
        return super().overrule(sends)


class TakesEveryStartForClean(Gate):
    """Rule 5 taken away."""

    def __init__(self, key: FencingKey, *durable: int, unsettled_until: float = -math.inf) -> None:
        super().__init__(key, *durable)


class TrustsTheFloor(Gate):
    """Rule 5 with the floor in place of the completed floor: what was raised counts as handed over."""

    def __init__(self, key: FencingKey, floor: int, completed: int, unsettled_until: float = -math.inf) -> None:
        super().__init__(key, floor, floor, unsettled_until=unsettled_until)


# --- what they prevent


def late_starter(gate_type: type[Gate]) -> bool:
    """The zombie wakes up and begins to write after the heir was acknowledged."""
    gate = gate_type(KEY, 33, 33)
    assert acknowledged(gate, HEIR, 0)
    try:
        send = gate.stage(ZOMBIE, SETTLE_S)
    except Refused:
        return False
    return passes(gate, send)


def slow_upload(gate_type: type[Gate]) -> bool:
    """The zombie's upload began before the heir's and ends after it."""
    gate = gate_type(KEY, 33, 33)
    send = gate.stage(ZOMBIE, SETTLE_S)
    assert acknowledged(gate, HEIR, 0)
    return passes(gate, send)


def write_after_completion(gate_type: type[Gate]) -> bool:
    """A worker whose job is completed writes once more with the token that completed it."""
    gate = gate_type(KEY, 33, 33)
    send = gate.stage(ZOMBIE, SETTLE_S)
    gate.raised(33, sealed_token=33)
    return passes(gate, send)


def crash_before_durable(gate_type: type[Gate]) -> bool:
    """The gateway crashes before the store has the heir's floor, but after the heir was told to go on."""
    if gate_type(KEY, 33, 33).admit(HEIR) is not Admission.GO:
        return False
    restarted = gate_type(KEY, 33, 33)
    return passes(restarted, restarted.stage(ZOMBIE, SETTLE_S))


def answers_out_of_order(gate_type: type[Gate]) -> bool:
    """Two raises are answered in the other order."""
    gate = gate_type(KEY, 33, 33)
    assert acknowledged(gate, HEIR, 0)
    gate.raised(33)
    try:
        return passes(gate, gate.stage(ZOMBIE, SETTLE_S))
    except Refused:
        return False


def still_in_flight(gate_type: type[Gate]) -> bool:
    """The heir arrives while the zombie's last bytes are on their way."""
    gate = gate_type(KEY, 33, 33)
    send = gate.stage(ZOMBIE, SETTLE_S)
    gate.enter(send)
    return acknowledged(gate, HEIR, 0)


def late_landing(gate_type: type[Gate]) -> bool:
    """The zombie's answer is lost, the heir arrives, the zombie's write lands within its settle time-out."""
    gate = gate_type(KEY, 33, 33)
    send = gate.stage(ZOMBIE, SETTLE_S)
    gate.enter(send)
    gate.lost(send, 0)
    return acknowledged(gate, HEIR, SETTLE_S - 1)


def late_landing_over_nothing(gate_type: type[Gate]) -> bool:
    """A lost answer, then a newer write of the same token succeeds and is deleted; the lost one lands over nothing."""
    gate = gate_type(KEY, 33, 33)
    lost, newer = gate.stage(ZOMBIE, SETTLE_S), gate.stage(ZOMBIE, SETTLE_S)
    gate.enter(lost)
    gate.lost(lost, 0)
    gate.enter(newer)
    gate.settle(newer, Signal.APPLIED)
    return acknowledged(gate, HEIR, 1)


def overruled_in_flight(gate_type: type[Gate]) -> bool:
    """An operator settles the key while the zombie's last bytes are on their way."""
    gate = gate_type(KEY, 33, 33)
    send = gate.stage(ZOMBIE, SETTLE_S)
    gate.enter(send)
    gate.overrule(gate.unsettled())
    return acknowledged(gate, HEIR, 1)


def landing_after_a_crash(gate_type: type[Gate]) -> bool:
    """The gateway is killed with the zombie's write under way; the heir comes to its successor."""
    gate = gate_type(KEY, 33, 33, unsettled_until=SETTLE_S)
    return acknowledged(gate, HEIR, 1)


def crash_between_raise_and_drain(gate_type: type[Gate]) -> bool:
    """The gateway is killed with the heir's floor durable, the zombie's write not yet drained."""
    gate = gate_type(KEY, 34, 33, unsettled_until=SETTLE_S)
    return acknowledged(gate, HEIR, 1)


RULES: list[tuple[type[Gate], Schedule]] = [
    (AdmitsStale, late_starter),
    (ChecksOnlyAtTheStart, slow_upload),
    (ForgetsSeals, write_after_completion),
    (RaisesBeforeTheStore, crash_before_durable),
    (LowersFloors, answers_out_of_order),
    (WaitsForNobody, still_in_flight),
    (WaitsForAnswersOnly, late_landing),
    (TakesNewerForSettled, late_landing_over_nothing),
    (OverrulesWhatAwaitsItsAnswer, overruled_in_flight),
    (TakesEveryStartForClean, landing_after_a_crash),
    (TrustsTheFloor, crash_between_raise_and_drain),
]


@pytest.mark.parametrize(("without", "schedule"), RULES)
def test_rule_is_needed(without: type[Gate], schedule: Schedule) -> None:
    """With the rule the schedule does no harm; without it, it does."""
    assert not schedule(Gate)
    assert schedule(without)
