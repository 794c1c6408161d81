"""Who is admitted to a fence key, and what a raised floor or a seal does (R1, R10)."""

from __future__ import annotations

import pytest

from gateway.core.errors import Malformed, Outcome, Reason, Refused
from gateway.core.gate import Admission, Gate
from gateway.core.keys import FencingKey, Token, TokenLimits
from gateway.core.write import Phase
from tests.core.gates import KEY, SETTLE_S, T0, T1, T2, T3, committed, gate_at, refusal

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
