"""What commands print, on a terminal and elsewhere."""

from __future__ import annotations

import json
import re

import pytest

from gateway.cli.show import json_line, print_facts, print_json, printable
from gateway.cli.table import print_table

LONG = "renders/" + "very-long-name-" * 20


def test_elsewhere_a_table_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe each row is one line, aligned, whole and without colour, however long."""
    print_table(("KEY", "WHY"), [("a", LONG), ("longer", "[bold]x[/bold]")], ["red", "green"])
    assert capsys.readouterr().out == f"KEY     WHY\na       {LONG}\nlonger  [bold]x[/bold]\n"


def test_on_a_terminal_a_table_has_colour_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow terminal folds what is long; nothing is cut off, and no text is taken for markup."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_table(("KEY", "WHY"), [("a", LONG), ("b", "[bold]x[/bold]")], ["red", ""])
    out = capsys.readouterr().out
    assert "\x1b[31m" in out
    assert "[bold]x[/bold]" in out
    folded = re.sub(r"\x1b\[[0-9;]*m|\s", "", out)
    assert LONG in folded


def test_one_long_cell_does_not_push_the_others_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe only the line of a very long key is long; the others stay aligned, and nothing is cut off."""
    print_table(("KEY", "FLOOR"), [("a", "1"), (LONG, "2"), ("longer", "3")])
    assert capsys.readouterr().out == f"KEY     FLOOR\na       1\n{LONG}  2\nlonger  3\n"


def test_an_empty_table_is_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to tell is told as a table without rows."""
    print_table(("KEY", "FLOOR"), [])
    assert capsys.readouterr().out == "KEY  FLOOR\n"


@pytest.mark.parametrize(
    ("text", "shown"), [("job ü", "job ü"), ("\x1b[2J", r"\x1b[2J"), ("a\nb", r"a\x0ab"), ("\u202e", r"\x202e")]
)
def test_what_could_steer_a_terminal_is_shown(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and invisible ones come out as their numbers, in tables and facts alike."""
    assert printable(text) == shown
    print_table(("KEY",), [(text,)])
    print_facts([("Key", text)])
    assert capsys.readouterr().out == f"KEY\n{shown}\nKey  {shown}\n"


def test_json_holds_numbers_of_any_length_and_text_that_is_no_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read again just what was there."""
    value = {"id": 10**30, "names": ["ä", "\udcff"]}
    assert json_line(value) == '{"id":1000000000000000000000000000000,"names":["ä","\\udcff"]}'
    print_json(value)
    assert json.loads(capsys.readouterr().out) == json.loads(json_line(value)) == value
