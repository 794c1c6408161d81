"""The gate of one fence key, rule by rule, and by random walks (R1, R3, R5)."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.errors import FenceError, Malformed, Outcome, Reason, Refused, TryAgain
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import NO_TOKEN, FencingKey, Token, TokenLimits
from gateway.core.write import IllegalTransition, Phase, Signal

KEY = FencingKey("job")
T0, T1, T2, T3 = NO_TOKEN, Token(1), Token(2), Token(3)
SETTLE_S = 30.0


def gate_at(floor: int, *, sealed: int = 0, until: float = -math.inf) -> Gate:
    """A gate whose hand-over to `floor` is complete."""
    return Gate(KEY, floor, floor, sealed, until)


def committed(gate: Gate, token: Token) -> Send:
    """A send of `token` that has passed its commit point."""
    send = gate.stage(token, SETTLE_S)
    gate.enter(send)
    return send


def refusal(gate: Gate, token: Token) -> FenceError:
    """How the gate refuses the token, the same by every call that looks at it."""
    errors = []
    for ask in (
        lambda: gate.admit(token),
        lambda: gate.refuse_overtaken(token),
        lambda: gate.stage(token, SETTLE_S),
        lambda: gate.hand_over(token, 0),
        lambda: gate.enter(Send(token, SETTLE_S)),
    ):
        with pytest.raises(Refused) as caught:
            ask()
        errors.append(caught.value)
    assert len({(e.reason, e.message, e.token, e.floor) for e in errors}) == 1
    return errors[0]


# --- rule 1: stale and sealed


def test_stale() -> None:
    """A token below the floor is refused, and the refusal tells who holds it and what to do."""
    error = refusal(gate_at(34), Token(33))
    assert (error.reason, error.key, error.token, error.floor) == (Reason.STALE_TOKEN, "job", 33, 34)
    assert error.outcome is Outcome.NOT_APPLIED
    assert "34" in error.message
    assert "stop" in error.message


def test_sealed() -> None:
    """A sealed token is refused like a lower one; the next is not."""
    gate = gate_at(34, sealed=34)
    error = refusal(gate, Token(34))
    assert (error.reason, error.token, error.floor) == (Reason.SEALED, 34, 34)
    assert gate.admit(Token(35)) is Admission.RAISE


def test_no_token() -> None:
    """A write without a token passes while the key has no floor, then is told that it needs one."""
    assert gate_at(0).admit(T0) is Admission.GO
    error = refusal(gate_at(1), T0)
    assert (error.reason, error.token, error.floor) == (Reason.TOKEN_REQUIRED, None, 1)


def test_no_token_is_never_sealed() -> None:
    """The sealed token 0 of a key that has none sealed does not refuse writes without a token."""
    gate = gate_at(0, sealed=0)
    gate.stage(T0, SETTLE_S)
    assert gate.raised(0, 0) == []
    assert gate.admit(T0) is Admission.GO


# --- rule 2: admission and raising


def test_admit() -> None:
    """Above the floor: raise; at the floor: wait for its hand-over, or go on once that is complete."""
    gate = Gate(KEY, 5, 3)
    assert gate.admit(Token(6)) is Admission.RAISE
    assert gate.admit(Token(5)) is Admission.HAND_OVER
    assert gate.hand_over(Token(5), 0) is None
    assert gate.admit(Token(5)) is Admission.GO


@pytest.mark.parametrize(
    ("floor", "limits", "highest"),
    [
        (0, TokenLimits(), 2**63 - 1),
        (0, TokenLimits(first_token=10), 10),
        (0, TokenLimits(jump=3), 2**63 - 1),
        (5, TokenLimits(first_token=10), 2**63 - 1),
        (5, TokenLimits(jump=3), 8),
        (50, TokenLimits(first_token=10, jump=3), 53),
        (2**63 - 2, TokenLimits(jump=3), 2**63 - 1),
    ],
)
def test_tokens_beyond_the_limit(floor: int, limits: TokenLimits, highest: int) -> None:
    """R10: the first token and the jump from the floor are bounded, each where its limit is set; the highest allowed
    token passes, the next is TokenJump and raises nothing."""
    gate = gate_at(floor)
    assert gate.admit(Token(floor), limits) is Admission.GO
    assert gate.admit(Token(highest), limits) is Admission.RAISE
    if highest < 2**63 - 1:
        with pytest.raises(Malformed) as caught:
            gate.admit(Token(highest + 1), limits)
        error = caught.value
        assert (error.reason, error.key, error.token, error.floor) == (Reason.TOKEN_JUMP, "job", highest + 1, floor)
        assert error.argument == ("X-Fencing-Token", str(highest + 1))
        assert "fence raise" in error.message
    assert gate.floor == floor


def test_where_leases_issue_the_tokens_no_other_raises_the_floor() -> None:
    """R10: a token above the floor that no lease has issued is TokenNotIssued, however small; the floor's own passes,
    and one that an operator vouches for raises, within no limits but those named."""
    gate = gate_at(0)
    assert gate.admit(Token(7)) is Admission.RAISE
    gate.granted(5)
    gate.raised(5)
    assert gate.admit(Token(5)) is Admission.HAND_OVER
    for token in (6, 2**63 - 1):
        with pytest.raises(Malformed) as caught:
            gate.admit(Token(token), TokenLimits(1, 1))
        error = caught.value
        assert (error.reason, error.key, error.token, error.floor) == (Reason.TOKEN_NOT_ISSUED, "job", token, 5)
        assert error.argument == ("X-Fencing-Token", str(token))
        assert "Acquire a lease" in error.message
    assert gate.admit(Token(6), issued=True) is Admission.RAISE
    gate.raised(9)
    gate.granted(3)
    assert (gate.floor, gate.granted_token) == (9, 5)
    assert gate.admit(Token(9)) is Admission.HAND_OVER


def test_a_stored_grant_is_known_from_the_start() -> None:
    """R10 holds for a gate that has been loaded, too."""
    with pytest.raises(Malformed):
        Gate(FencingKey("job"), 5, 5, granted_token=3).admit(Token(6))


def test_no_limit_is_told_to_who_is_stale() -> None:
    """R1: below the floor, or sealed, comes first."""
    for gate, token in ((gate_at(5), 4), (gate_at(5, sealed=5), 5)):
        with pytest.raises(Refused):
            gate.admit(Token(token), TokenLimits(1, 1))


def test_admission_raises_nothing() -> None:
    """Only what the store has made durable raises the floor."""
    gate = gate_at(1)
    gate.admit(T3)
    assert (gate.floor, gate.completed_floor) == (1, 1)
    committed(gate, T1)


def test_a_floor_never_falls() -> None:
    """An older answer of the store lowers neither floor nor seal."""
    gate = gate_at(5, sealed=5)
    gate.raised(3, 2)
    assert (gate.floor, gate.sealed_token) == (5, 5)


def test_raised_overtakes_the_staged() -> None:
    """A raise names the staged sends with lower tokens, to be cancelled: no others, and none past its commit point."""
    gate = gate_at(1)
    staged, entered = gate.stage(T1, SETTLE_S), committed(gate, T1)
    doubtful = committed(gate, T1)
    gate.lost(doubtful, 0)
    higher = gate.stage(T2, SETTLE_S)
    assert gate.raised(2) == [staged]
    assert {entered, doubtful} == set(gate.unsettled())
    assert higher.phase is Phase.STAGED


def test_sealing_overtakes_the_staged() -> None:
    """A seal cancels the staged sends of its own token."""
    gate = gate_at(2)
    staged = gate.stage(T2, SETTLE_S)
    assert gate.raised(2) == []
    assert gate.raised(2, 2) == [staged]
    with pytest.raises(Refused, match="sealed"):
        gate.enter(staged)
    assert not gate.may_enter(staged)
    assert staged.phase is Phase.STAGED


# --- rule 3: the commit point


def test_same_token_side_by_side() -> None:
    """Sends of the same token pass beside each other, also beside one in doubt."""
    gate = gate_at(1)
    gate.lost(committed(gate, T1), 0)
    send = committed(gate, T1)
    committed(gate, T1)
    assert not gate.may_enter(send), "a commit point is passed once"


def test_overtaken_at_the_commit_point() -> None:
    """A staged send that was overtaken is refused at its commit point and changes nothing."""
    gate = gate_at(1)
    send = gate.stage(T1, SETTLE_S)
    gate.raised(2)
    assert not gate.may_enter(send)
    with pytest.raises(Refused):
        gate.enter(send)
    assert send.phase is Phase.STAGED


def test_no_commit_before_the_hand_over() -> None:
    """A send whose hand-over is not complete cannot pass, nor one above the floor."""
    gate = gate_at(1)
    send = gate.stage(T2, SETTLE_S)
    with pytest.raises(IllegalTransition):
        gate.enter(send)
    gate.raised(2)
    with pytest.raises(IllegalTransition):
        gate.enter(send)
    assert gate.hand_over(T2, 0) is None
    gate.enter(send)


def test_no_commit_over_an_unsettled_lower_one() -> None:
    """Even a floor that claims a complete hand-over lets nothing pass while a lower send is unsettled."""
    gate = gate_at(1)
    lower = committed(gate, T1)
    send = gate.stage(T2, SETTLE_S)
    gate.raised(2)
    gate.completed_floor = 2
    assert not gate.may_enter(send)
    gate.settle(lower, Signal.APPLIED)
    assert gate.may_enter(send)


# --- rule 4: the hand-over


def test_the_hand_over_to_a_sealed_floor_completes() -> None:
    """Nobody writes under it any more, and yet what is lower settles and is to be cleared away."""
    gate = gate_at(1)
    lower = committed(gate, T1)
    gate.raised(2, sealed_token=2)
    assert gate.hand_over_floor(0) == math.inf
    gate.settle(lower, Signal.APPLIED)
    assert gate.hand_over_floor(0) is None
    assert gate.completed_floor == 2
    with pytest.raises(Refused):
        gate.hand_over(T2, 0)


def test_hand_over_waits_for_every_lower_send() -> None:
    """A hand-over waits without bound for an answer, for a doubt until it is settled, and for no staged send."""
    gate = gate_at(1)
    first, second = committed(gate, T1), committed(gate, T1)
    gate.stage(T1, SETTLE_S)
    gate.raised(2)
    assert gate.hand_over(T2, 0) == math.inf
    gate.lost(first, 10)
    gate.lost(second, 12)
    assert gate.hand_over(T2, 12) == 42
    gate.settle(second, Signal.NONCE_SEEN)
    assert gate.hand_over(T2, 39.9) == 40
    assert gate.completed_floor == 1
    assert gate.expire(40) == [first]
    assert gate.hand_over(T2, 40) is None
    assert gate.completed_floor == 2


def test_hand_over_waits_for_sends_without_token() -> None:
    """A write without a token is token 0: the first raise awaits it."""
    gate = gate_at(0)
    send = committed(gate, T0)
    gate.raised(1)
    assert gate.hand_over(T1, 0) == math.inf
    gate.settle(send, Signal.REFUSED)
    assert gate.hand_over(T1, 0) is None


def test_hand_over_does_not_pass_what_is_due() -> None:
    """A doubt whose time-out has passed is settled by `expire` before the hand-over is complete, never by neglect."""
    gate = gate_at(1)
    gate.lost(committed(gate, T1), 0)
    gate.raised(2)
    assert gate.hand_over(T2, 31) == 30
    gate.expire(31)
    assert gate.hand_over(T2, 31) is None
    committed(gate, T2)


def test_hand_over_of_a_complete_one() -> None:
    """A hand-over that is complete stays so, also while sends of its own token are unsettled."""
    gate = gate_at(2)
    committed(gate, T2)
    assert gate.hand_over(T2, 0) is None


def test_overtaken_while_waiting() -> None:
    """A waiter that is overtaken is refused; the one that overtook it waits for the same send."""
    gate = gate_at(1)
    lower = committed(gate, T1)
    gate.raised(2)
    gate.raised(3)
    with pytest.raises(Refused, match="stale"):
        gate.hand_over(T2, 0)
    assert gate.hand_over(T3, 0) == math.inf
    gate.settle(lower, Signal.APPLIED)
    assert gate.hand_over(T3, 0) is None
    assert gate.completed_floor == 3


def test_expire() -> None:
    """The time-out settles what is in doubt and due: not what still awaits its answer, and not a moment earlier."""
    gate = gate_at(1)
    waiting, doubtful = committed(gate, T1), committed(gate, T1)
    gate.lost(doubtful, 5)
    assert gate.expire(34.9) == []
    assert gate.expire(35) == [doubtful]
    assert doubtful.phase is Phase.SETTLED
    assert gate.expire(1e9) == []
    assert list(gate.unsettled()) == [waiting]


# --- rule 5: an unclean start


def test_an_operator_settles_what_is_in_doubt_alone() -> None:
    """What still awaits its answer is left alone, and so is what is not named; what has settled meanwhile stays so."""
    gate = gate_at(1)
    doubtful, other, gone, awaited = (committed(gate, T1) for _ in range(4))
    for send in (doubtful, other, gone):
        gate.lost(send, now=0)
    gate.settle(gone, Signal.NONCE_SEEN)
    assert gate.overrule([doubtful, gone, awaited]) == [doubtful]
    assert set(gate.unsettled()) == {other, awaited}
    gate.raised(2)
    assert gate.hand_over(T2, now=1) == math.inf
    gate.settle(awaited, Signal.APPLIED)
    assert gate.hand_over(T2, now=1) == SETTLE_S
    assert gate.overrule(gate.unsettled()) == [other]
    assert gate.hand_over(T2, now=1) is None


def test_barrier() -> None:
    """After an unclean start a token above the completed floor waits out the settle time-out; one up to it does not."""
    gate = Gate(KEY, 5, 4, unsettled_until=30)
    assert gate.hand_over(Token(5), 29.9) == 30
    assert gate.hand_over(Token(5), 30) is None
    assert gate_at(5, until=30).admit(Token(5)) is Admission.GO
    committed(gate_at(5, until=30), Token(5))


def test_barrier_and_doubt() -> None:
    """The later of barrier and doubt counts."""
    gate = gate_at(1, until=30)
    send = committed(gate, T1)
    gate.lost(send, 10)
    gate.raised(2)
    assert gate.hand_over(T2, 10) == 40
    gate.settle(send, Signal.NONCE_SEEN)
    assert gate.hand_over(T2, 10) == 30


# --- rule 7: a gate that is closed


def test_closed_to_the_token_that_completes() -> None:
    """While its work is completed a token passes no commit point; what is staged waits for a retry, and may pass again
    should the completion fail."""
    gate = gate_at(1)
    send = gate.stage(T1, SETTLE_S)
    gate.close(T1)
    assert not gate.may_enter(send)
    with pytest.raises(TryAgain) as caught:
        gate.enter(send)
    assert (caught.value.reason, caught.value.token) == (Reason.HANDOVER_PENDING, 1)
    assert send.phase is Phase.STAGED
    gate.open()
    gate.enter(send)


def test_closed_to_no_higher_token() -> None:
    """Who takes over meanwhile is not held up by the completion that it ends."""
    gate = gate_at(1)
    gate.close(T1)
    gate.raised(2)
    assert gate.hand_over(T2, 0) is None
    gate.enter(gate.stage(T2, SETTLE_S))


@pytest.mark.parametrize(("floor", "sealed"), [(2, 0), (1, 1)])
def test_who_is_overtaken_closes_nothing(floor: int, sealed: int) -> None:
    """A stale or sealed token completes nothing."""
    gate = gate_at(floor, sealed=sealed)
    with pytest.raises(Refused):
        gate.close(T1)
    gate.open()


def test_quiet() -> None:
    """Nothing sent so far can land: neither of the token itself, nor of a lower one, nor of an earlier run."""
    gate = gate_at(1)
    assert gate.quiet(0) is None
    send = committed(gate, T1)
    assert gate.quiet(0) == math.inf
    gate.lost(send, 10)
    assert gate.quiet(20) == 10 + SETTLE_S
    gate.settle(send, Signal.NONCE_SEEN)
    gate.stage(T1, SETTLE_S)
    assert gate.quiet(20) is None
    assert gate_at(1, until=30).quiet(20) == 30
    assert gate_at(1, until=30).quiet(30) is None


# --- the ledger


def test_idle() -> None:
    """A gate may be forgotten when no send is staged or unsettled, and then only."""
    gate = gate_at(1)
    send = gate.stage(T1, SETTLE_S)
    assert not gate.idle
    gate.enter(send)
    gate.lost(send, 0)
    assert not gate.idle
    assert gate.expire(30) == [send]
    gate.settle(gate.stage(T1, SETTLE_S), Signal.ABANDON)
    assert gate.raised(2) == []
    assert gate.idle


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
