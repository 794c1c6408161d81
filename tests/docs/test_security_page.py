"""What docs/security.md claims is held by tests: each one that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE.read_text())))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_each_test_that_is_named_is_there(path: str, name: str) -> None:
    """A claim whose test has been renamed or dropped is nobody's."""
    file = TESTS.parent / path if path.startswith("tests/") else TESTS / path
    tree = ast.parse(file.read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not name or name in functions


def test_every_side_of_the_threat_model_is_held_to_something() -> None:
    """No paragraph of an attacker and no row of a bound goes without a test; what is believed says so."""
    model = PAGE.read_text().partition("## What an attacker on each side can reach")[2].partition("## Hostile bytes")[0]
    sides = [part for part in model.split("\n\n") if part.startswith("**")]
    assert len(sides) == 10
    for side in sides:
        assert re.search(r"`[\w/]+\.py(::\w+)?`|\]\(#", side), side
