"""Directed scenarios on real processes: the gateway bears them; without the rule the checker finds their harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.chaos import scenarios
from tests.chaos.mutants import MUTANTS, UNCONDITIONAL
from tests.chaos.stage import Stage
from tests.conftest import StoreServer

BOUND_S = 90
Scenario = Callable[[Stage], Awaitable[None]]
HARMS: list[tuple[str, Scenario, str]] = [
    ("check-then-forward", scenarios.overtaken, "G2"),
    ("hand-over-not-awaited", scenarios.cut_off, "G2"),
    ("lost-answers-settle", scenarios.cut_off, "G2"),
    ("server-errors-settle", scenarios.answered_500, "G2"),
    ("unclean-starts-ignored", scenarios.killed, "G2"),
    ("floors-in-memory", scenarios.forgotten, "G1"),
    ("doubt-told-as-not-applied", scenarios.unanswered, "G5"),
    ("wall-clock", scenarios.clock_stepped, "G2"),
    ("unconditional", scenarios.superseded, "G3"),
    ("unconditional", scenarios.database_lost, "G4"),
]


def _marks(play: Scenario) -> list[pytest.MarkDecorator]:
    """A clock that steps is a program from outside Python."""
    return [pytest.mark.services] if play is scenarios.clock_stepped else []


MUTATED = [pytest.param(*harm, marks=_marks(harm[1]), id=f"{harm[0]}-{harm[2]}") for harm in HARMS]
PLAYED = [pytest.param(play, marks=_marks(play), id=play.__name__) for play in dict.fromkeys(harm[1] for harm in HARMS)]
WITHOUT_RECORD = "store.fenced_before=false"


def test_each_mutant_has_its_harm() -> None:
    """No rule is taken away here of which it is not shown what for it is there."""
    assert {mutant for mutant, _, _ in HARMS} == MUTANTS.keys()


@pytest.mark.long
@pytest.mark.parametrize(("mutant", "play", "broken"), MUTATED)
async def test_without_its_rule_the_harm_is_found(
    mutant: str, play: Scenario, broken: str, tmp_path: Path, store_server: StoreServer, bucket: str
) -> None:
    """A gateway without the rule breaks the guarantee before the checker's eyes."""
    async with Stage(tmp_path, store_server, bucket, mutant) as stage, asyncio.timeout(BOUND_S):
        await play(stage)
    assert broken in {violation.guarantee for violation in stage.violations()}


@pytest.mark.parametrize("play", PLAYED)
async def test_the_gateway_bears_it(play: Scenario, tmp_path: Path, store_server: StoreServer, bucket: str) -> None:
    """With all its rules the same course of events breaks nothing."""
    async with Stage(tmp_path, store_server, bucket, "") as stage, asyncio.timeout(BOUND_S):
        await play(stage)
    assert stage.violations() == []


@pytest.mark.parametrize("play", [scenarios.superseded, scenarios.database_lost], ids=lambda play: play.__name__)
async def test_the_object_alone_remembers(
    play: Scenario, tmp_path: Path, store_server: StoreServer, bucket: str
) -> None:
    """Without the bucket's record, too, the token on the object and the store's condition hold (G3, G4)."""
    async with Stage(tmp_path, store_server, bucket, "", WITHOUT_RECORD) as stage, asyncio.timeout(BOUND_S):
        await play(stage)
    assert stage.violations() == []


async def test_the_gate_alone_orders_what_overtakes(tmp_path: Path, store_server: StoreServer, bucket: str) -> None:
    """Before a store without conditional writes, too, the overtaken write is never seen."""
    async with Stage(tmp_path, store_server, bucket, "", *UNCONDITIONAL) as stage, asyncio.timeout(BOUND_S):
        await scenarios.overtaken(stage)
    assert stage.violations() == []
