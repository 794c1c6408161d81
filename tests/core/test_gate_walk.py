"""A gate driven at random, held against a ledger (R1, R3, R5)."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.errors import Refused
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import Token
from gateway.core.write import IllegalTransition, Phase, Signal
from tests.core.gates import KEY

tokens = st.integers(0, 4).map(Token)
ENDS = (Signal.APPLIED, Signal.REFUSED, Signal.ABANDON, Signal.NONCE_SEEN)


class GateWalk(RuleBasedStateMachine):
    """A gate driven at random, against a ledger of its own. Sends are known by their index, settled ones as well."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.barrier = -math.inf
        self.gate = Gate(KEY)
        self.sends: list[Send] = []
        self.highest_floor = 0
        self.handed_over = 0
        self.sealed: set[int] = set()

    def overtaken(self, token: int) -> bool:
        return token < self.highest_floor or token in self.sealed

    def unsettled_below(self, token: int) -> list[Send]:
        return [s for s in self.sends if s.unsettled and s.token < token]

    @precondition(lambda self: not self.sends)
    @rule(floor=st.integers(0, 3), data=st.data())
    def start_unclean(self, floor: int, data: st.DataObject) -> None:
        floor = max(floor, self.highest_floor)
        completed = data.draw(st.integers(0, floor))
        self.barrier = self.now + 40
        self.gate = Gate(KEY, floor, completed, max(self.sealed, default=0), self.barrier)
        self.highest_floor, self.handed_over = floor, completed

    @rule(token=tokens)
    def admit(self, token: Token) -> None:
        if self.overtaken(token):
            with pytest.raises(Refused):
                self.gate.admit(token)
        elif token > self.highest_floor:
            assert self.gate.admit(token) is Admission.RAISE
        else:
            expected = Admission.GO if token <= self.handed_over else Admission.HAND_OVER
            assert self.gate.admit(token) is expected

    @rule(floor=st.integers(0, 4), seal=st.booleans())
    def raised(self, floor: int, seal: bool) -> None:
        self.highest_floor = max(self.highest_floor, floor)
        if seal and floor == self.highest_floor > 0:
            self.sealed.add(floor)
        cancelled = self.gate.raised(floor, floor if floor in self.sealed else 0)
        staged = [s for s in self.sends if s.phase is Phase.STAGED]
        assert set(cancelled) == {s for s in staged if self.overtaken(s.token)}

    @rule(token=tokens, settle_timeout_s=st.sampled_from([10.0, 30.0]))
    def stage(self, token: Token, settle_timeout_s: float) -> None:
        if self.overtaken(token):
            with pytest.raises(Refused):
                self.gate.stage(token, settle_timeout_s)
        else:
            self.sends.append(self.gate.stage(token, settle_timeout_s))

    @precondition(lambda self: self.sends)
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        send = data.draw(st.sampled_from(self.sends))
        allowed = (
            send.phase is Phase.STAGED
            and not self.overtaken(send.token)
            and send.token == self.highest_floor == self.handed_over
        )
        before = send.phase
        try:
            self.gate.enter(send)
        except (Refused, IllegalTransition):
            assert not allowed
            assert send.phase is before
        else:
            assert allowed
            assert not self.unsettled_below(send.token)

    @precondition(lambda self: self.sends)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        send = data.draw(st.sampled_from(self.sends))
        if send.phase is Phase.COMMITTING:
            self.gate.lost(send, self.now)
        else:
            with pytest.raises(IllegalTransition):
                self.gate.lost(send, self.now)

    @precondition(lambda self: self.sends)
    @rule(data=st.data(), signal=st.sampled_from(ENDS))
    def settle(self, data: st.DataObject, signal: Signal) -> None:
        send = data.draw(st.sampled_from(self.sends))
        before = send.phase
        try:
            self.gate.settle(send, signal)
        except IllegalTransition:
            assert send.phase is before

    @rule(by_s=st.sampled_from([1.0, 10.0, 31.0]))
    def pass_time(self, by_s: float) -> None:
        self.now += by_s

    @rule()
    def expire(self) -> None:
        for send in self.gate.expire(self.now):
            assert send.phase is Phase.SETTLED
            assert send.settles_at <= self.now

    @rule(token=tokens)
    def hand_over(self, token: Token) -> None:
        if self.overtaken(token):
            with pytest.raises(Refused):
                self.gate.hand_over(token, self.now)
        elif token > self.highest_floor:
            with pytest.raises(AssertionError):
                self.gate.hand_over(token, self.now)
        elif self.gate.hand_over(token, self.now) is None:
            if token > self.handed_over:
                assert self.now >= self.barrier
            self.handed_over = max(self.handed_over, token)

    @invariant()
    def floors(self) -> None:
        """The floor is the highest ever, and the completed floor the highest handed over; it is at most the floor."""
        assert self.gate.floor == self.highest_floor
        assert self.gate.completed_floor == self.handed_over <= self.gate.floor

    @invariant()
    def nothing_lower_after_a_hand_over(self) -> None:
        """No send below a completed hand-over is unsettled, nor may one enter."""
        assert not self.unsettled_below(self.handed_over)
        assert not any(self.gate.may_enter(s) for s in self.sends if s.token < self.handed_over)

    @invariant()
    def ledger(self) -> None:
        """The gate holds exactly the sends that are not settled."""
        assert set(self.gate.unsettled()) == {s for s in self.sends if s.unsettled}
        assert self.gate.idle == all(s.phase is Phase.SETTLED for s in self.sends)


TestGateWalk = GateWalk.TestCase
TestGateWalk.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
