"""The commit point, and what a hand-over waits for (R3, R5)."""

from __future__ import annotations

import math

import pytest

from gateway.core.errors import Reason, Refused, TryAgain
from gateway.core.gate import Admission, Gate
from gateway.core.keys import Token
from gateway.core.write import IllegalTransition, Phase, Signal
from tests.core.gates import KEY, SETTLE_S, T0, T1, T2, T3, committed, gate_at

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


# --- forgotten


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
