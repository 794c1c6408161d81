"""How a fence's history is told to people."""

from __future__ import annotations

from gateway.cli.show_fence import tokens_of


def test_a_refusal_without_a_floor_names_none() -> None:
    """What no floor was in the way of is told without one."""
    shown = [event(0, 0), event(5, 0), event(5, 6)]
    assert [tokens_of(e) for e in shown] == ["none", "5", "5, floor 6"]


def event(token: int, floor: int) -> dict[str, object]:
    return {"kind": "refused", "token": token, "floor": floor}
