"""The line format: what is written is read, and what does not follow it is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checker.history import BadHistory, Line, parse, write
from tests.checker.judge import judge
from tests.checker.lines import history, ok, put, stale
from tests.checker.test_bad import BAD
from tests.checker.test_good import GOOD

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("lines", [*(case[1] for case in BAD.values()), *GOOD.values()])
def test_what_is_written_is_read(lines: list[Line]) -> None:
    """Every kind of line comes back as it was."""
    assert parse(map(write, lines)) == lines


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "line 1"),
        (['{"what": "seen", "at": 1, "object": "o", "value": null}'], "line 1"),
        (['{"what": "history"}', "nonsense"], "line 2"),
        (['{"what": "history"}', '{"what": "gossip"}'], "line 2"),
        (['{"what": "history"}', '{"what": "seen", "at": [2, 1], "object": "o", "value": null}'], "line 2"),
        (['{"what": "history"}', '{"what": "seen", "at": 1, "object": "o"}'], "line 2"),
        (['{"what": "history"}', '{"what": "seen", "at": 1, "object": "o", "value": null, "mood": 1}'], "line 2"),
    ],
)
def test_what_does_not_follow_it_is_named(texts: list[str], message: str) -> None:
    """A misspelt line is an error, never left out in silence."""
    with pytest.raises(BadHistory, match=message):
        parse(texts)


@pytest.mark.parametrize(
    "lines",
    [
        history(put(1, "a", 33), put(1, "a", 33)),
        history(put(1, "a", 33), ok(2, "b")),
        history(put(1, "a", 33), ok(2, "a"), ok(3, "a")),
        history(put(2, "a", 33), ok(1, "a")),
    ],
)
def test_what_makes_no_sense_is_an_error(lines: list[Line]) -> None:
    """Two calls of one name, answers to none, two answers, an answer before its call."""
    with pytest.raises(BadHistory):
        judge(lines)


def test_the_command_names_violation_and_lines(tmp_path: Path) -> None:
    """Its status says whether a guarantee is broken."""
    good = history(put(1, "b", 34), ok(2, "b"), put(3, "a", 33), stale(4, "a", 34))
    for lines, status, shown in ((good, 0, "0 violations"), (BAD["a stale write is seen"][1], 1, '"value": "a"')):
        path = tmp_path / "history.jsonl"
        path.write_text("".join(write(line) + "\n" for line in lines))
        done = subprocess.run(
            [sys.executable, "-m", "tests.checker", path], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (status, "")
        assert shown in done.stdout


def test_the_checker_knows_nothing_of_the_gateway() -> None:
    """It would have to be as wrong as the gateway to overlook its faults."""
    for path in Path(__file__).parent.glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert not [line for line in imports if "gateway" in line]
