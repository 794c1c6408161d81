"""Gates and sends to begin a test with."""

from __future__ import annotations

import math

import pytest

from gateway.core.errors import FenceError, Refused
from gateway.core.gate import Gate, Send
from gateway.core.keys import NO_TOKEN, FencingKey, Token

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
