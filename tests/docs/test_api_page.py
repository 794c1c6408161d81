"""docs/api.md has every call and every reason, as the code has them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import gateway
from gateway.server.control.problems import REASONS
from tests.docs.api_page import PAGE, render
from tests.server.control.contract import calls

CONTROL = sorted((Path(gateway.__file__).parent / "server" / "control").glob("*.py"))
TEXT = PAGE.read_text()


def test_the_page_is_what_the_calls_give() -> None:
    """`make docs` writes it anew."""
    assert render(TEXT) == TEXT, "docs/api.md is not what gateway/server/control gives: run `make docs`"


def test_every_call_has_its_heading() -> None:
    """The calls of the control listener, each once, and no other."""
    told = re.findall(r"^## ((?:GET|POST|PUT|DELETE) \S+)$", TEXT, re.MULTILINE)
    assert sorted(told) == sorted(f"{call.method} {call.path}" for call in calls())


def test_a_change_of_a_call_changes_the_page() -> None:
    """Who may make it, what it takes, and why it may say no are on the page."""
    line = "Operator · body `reason`, `token?` · answers 200 "
    assert line in TEXT
    assert " · refuses 404 `not-found`, 409 `not-held`, 412 `stale`\n" in TEXT
    assert "| 412 | `stale` | " in TEXT


def test_no_reason_has_another_status() -> None:
    """Where the code gives a reason by name it is one of the table, with its status."""
    given = 0
    for path in CONTROL:
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("Problem", "_answer"):
                match call.args[:2]:
                    case [ast.Constant(value=int(status)), ast.Constant(value=str(reason))]:
                        assert REASONS[reason][0] == status, reason
                        given += 1
    assert given > 20
