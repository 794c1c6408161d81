"""The life of a send, and how answers and heads are judged (R4, R5)."""

from __future__ import annotations

import itertools

import pytest

from gateway.core.gate import Gate, Send
from gateway.core.keys import FencingKey, Token, key_in_metadata
from gateway.core.write import (
    ABSENT,
    CONDITION_FAILED_STATUS,
    Answer,
    Condition,
    IllegalTransition,
    ObjectState,
    Phase,
    Signal,
    Verdict,
    advance,
    classify,
    condition_on,
    judge,
)

KEY = FencingKey("job 7")
OURS = key_in_metadata(KEY)

# Written a second time here, so that a changed table is seen.
LEGAL = {
    (Phase.STAGED, Signal.ENTER): Phase.COMMITTING,
    (Phase.STAGED, Signal.ABANDON): Phase.SETTLED,
    (Phase.COMMITTING, Signal.APPLIED): Phase.SETTLED,
    (Phase.COMMITTING, Signal.REFUSED): Phase.SETTLED,
    (Phase.COMMITTING, Signal.LOST): Phase.IN_DOUBT,
    (Phase.IN_DOUBT, Signal.NONCE_SEEN): Phase.SETTLED,
    (Phase.IN_DOUBT, Signal.TIMED_OUT): Phase.SETTLED,
    (Phase.IN_DOUBT, Signal.OVERRULED): Phase.SETTLED,
}
PAIRS = list(itertools.product(Phase, Signal))


@pytest.mark.parametrize(("phase", "signal"), PAIRS)
def test_advance(phase: Phase, signal: Signal) -> None:
    """Each pair of phase and signal leads where the page says, or is an error."""
    if (phase, signal) in LEGAL:
        assert advance(phase, signal) is LEGAL[phase, signal]
    else:
        with pytest.raises(IllegalTransition, match=rf"{signal.name} in phase {phase.name}"):
            advance(phase, signal)


def send_in(gate: Gate, phase: Phase) -> Send:
    """A send of the gate, brought into `phase`."""
    send = gate.stage(Token(0), 30)
    if phase is not Phase.STAGED:
        gate.enter(send)
    if phase is Phase.IN_DOUBT:
        gate.lost(send, 0)
    elif phase is Phase.SETTLED:
        gate.settle(send, Signal.APPLIED)
    return send


def give(gate: Gate, send: Send, signal: Signal) -> None:
    if signal is Signal.ENTER:
        gate.enter(send)
    elif signal is Signal.LOST:
        gate.lost(send, 5)
    else:
        gate.settle(send, signal)


@pytest.mark.parametrize(("phase", "signal"), [pair for pair in PAIRS if pair not in LEGAL])
def test_illegal_changes_nothing(phase: Phase, signal: Signal) -> None:
    """An illegal signal leaves the send and the gate's ledger as they were."""
    gate = Gate(KEY)
    send = send_in(gate, phase)
    before = send.phase, send.settles_at, gate.idle, list(gate.unsettled())
    with pytest.raises(IllegalTransition):
        give(gate, send, signal)
    assert (send.phase, send.settles_at, gate.idle, list(gate.unsettled())) == before


def test_success_is_applied() -> None:
    """Any 2xx without an error in it says that the send was applied."""
    assert {classify(status, None) for status in range(200, 300)} == {Answer.APPLIED}


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied", ""])
def test_error_in_a_200(code: str) -> None:
    """An `<Error>` in a 200 leaves the send in doubt, whatever its code."""
    assert classify(200, code) is Answer.LOST


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, None) for status in (301, 302, 303, 304, 307, 308, 403, 404, 405, 409, 411, 412, 413, 416)),
        (412, "PreconditionFailed"),
        (409, "ConditionalRequestConflict"),
        (404, "NoSuchKey"),
        (404, "NoSuchUpload"),
        (400, "BadDigest"),
        (400, "IncompleteBody"),
        (400, "InvalidPart"),
        (400, "MalformedDate"),
        (404, "NoSuchObjectLockConfiguration"),
        (409, "ExistingObjectIsDirectory"),
        (403, "AccessDenied"),
        (403, "SignatureDoesNotMatch"),
        (307, "TemporaryRedirect"),
        (501, "NotImplemented"),
    ],
)
def test_final_errors(status: int, code: str | None) -> None:
    """A final error says that nothing happened and nothing will."""
    assert classify(status, code) is Answer.REFUSED


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, None) for status in (100, 199, 300, 400, 401, 408, 429, 499, 500, 501, 502, 503, 504, 599)),
        (400, "RequestTimeout"),
        (408, "AccessDenied"),
        (409, "OperationAborted"),
        (429, "TooManyRequests"),
        (400, ""),
        (400, "NobodyHasThoughtOfThis"),
        (500, "InternalError"),
        (500, "PreconditionFailed"),
        (503, "SlowDown"),
        (503, "AccessDenied"),
    ],
)
def test_everything_else_is_doubt(status: int, code: str | None) -> None:
    """5xx, 408, time-outs and what no table lists leave the send in doubt: a lost race may come as a 500."""
    assert classify(status, code) is Answer.LOST


def test_lost_conditions_are_final() -> None:
    """How a server answers a lost condition is never a doubt."""
    assert {classify(status, None) for status in CONDITION_FAILED_STATUS} == {Answer.REFUSED}


@pytest.mark.parametrize(
    ("state", "bare_etag", "header"),
    [
        (None, False, ("if-none-match", "*")),
        (None, True, ("if-none-match", "*")),
        (ABSENT, False, ("if-none-match", "*")),
        (ObjectState('"e"'), False, ("if-match", '"e"')),
        (ObjectState('"e"'), True, ("if-match", "e")),
    ],
)
def test_condition(state: ObjectState | None, bare_etag: bool, header: tuple[str, str]) -> None:
    """A send demands the state last seen; what is unknown is taken for absent; some servers want the bare ETag."""
    assert condition_on(state, bare_etag=bare_etag).header() == header
    assert condition_on(ABSENT) == Condition(None)


@pytest.mark.parametrize(
    ("state", "nonce", "verdict"),
    [
        # Another key is seen before all else, even where token and nonce would speak.
        (ObjectState("e", "other", 40, "n"), "n", Verdict.OTHER_KEY),
        (ObjectState("e", "other", 1, ""), None, Verdict.OTHER_KEY),
        # A higher token is seen before the nonce.
        (ObjectState("e", OURS, 34, "n"), "n", Verdict.HIGHER_TOKEN),
        (ObjectState("e", OURS, 33, "n"), "n", Verdict.OURS),
        (ObjectState("e", OURS, 32, "n"), "n", Verdict.OURS),
        (ObjectState("e", OURS, 33, "m"), "n", Verdict.MOVED),
        (ObjectState("e", OURS, 33, "n"), None, Verdict.MOVED),
        # No nonce is nobody's: neither ours that is missing, nor the object's.
        (ObjectState("e", OURS, 33, ""), "", Verdict.MOVED),
        (ObjectState("e", OURS, 33, ""), None, Verdict.MOVED),
        # Without a fence of its own the object says nothing.
        (ObjectState("e", None, 99, "n"), "n", Verdict.MOVED),
        (ABSENT, "n", Verdict.MOVED),
    ],
)
def test_judge(state: ObjectState, nonce: str | None, verdict: Verdict) -> None:
    """A head is judged by key, then token, then nonce, for a send of token 33."""
    assert judge(state, KEY, Token(33), nonce) is verdict


def test_judge_a_long_key() -> None:
    """A long key is known again by its hash."""
    long = FencingKey("é" * 200)
    state = ObjectState("e", key_in_metadata(long), 3, "n")
    assert judge(state, long, Token(3), "n") is Verdict.OURS
    assert judge(state, FencingKey("é" * 199), Token(3), "n") is Verdict.OTHER_KEY
