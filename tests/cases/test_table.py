"""The table of cases is true: every test that it names is there, and it names every test of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cases.table import SECTIONS

HERE = Path(__file__).parent


@cache
def functions_in(file: Path) -> frozenset[str]:
    """The names of the test functions in a file, those of its classes included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, kinds) and node.name.startswith("test_"))


def named() -> Iterator[tuple[str, str, Path, str]]:
    """Section, row, file and name of every test in the table."""
    for section, rows in SECTIONS.items():
        for row, tests in rows.items():
            for test in tests.split():
                file, _, name = test.partition("::")
                folder = HERE.parent if "/" in file else HERE
                yield section, row, folder / f"{file}.py", name


@pytest.mark.parametrize("section", SECTIONS)
def test_every_named_test_is_there(section: str) -> None:
    """No row speaks of a test that has gone or was never written."""
    rows = [(row, file, name) for where, row, file, name in named() if where == section]
    assert {row for row, _, _ in rows} == SECTIONS[section].keys()
    missing = [(row, name) for row, file, name in rows if not file.exists() or name not in functions_in(file)]
    assert missing == []


def test_every_test_here_has_its_row() -> None:
    """What is tried in this folder can be found in the table."""
    in_table = {(file, name) for _, _, file, name in named()}
    files = [file for file in HERE.glob("test_*.py") if file != Path(__file__)]
    assert [(file.name, name) for file in files for name in functions_in(file) if (file, name) not in in_table] == []
