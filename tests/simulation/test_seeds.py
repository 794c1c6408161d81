"""G0 to G5 on the real service: 2,000 seeds, no violation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.service.passages import Passage
from tests.checker.history import Effect, Line, Seen, parse, write
from tests.checker.judge import judge
from tests.simulation.__main__ import main
from tests.simulation.many import run_seeds
from tests.simulation.run import simulate
from tests.simulation.shrink import shrink

SEEDS = range(2000)
ROOT = Path(__file__).parents[2]
FAULTS = {
    "applied-then-412", "bad-body", "client-gone", "completed-floor-lost", "crash", "crash-in-doubt",
    "cut-while-staged", "database-lost", "database-restored", "early-answer", "empty-200", "error-500",
    "error-in-200", "late-landing", "long-pause", "lost", "not-reached", "partial", "read-500", "read-lost",
    "record-lost", "refused-403", "silent", "stop", "store-error", "store-error-after", "store-error-before",
    "taken-over", "too-late", "versioning-switched",
}  # fmt: skip


def test_no_seed_breaks_a_guarantee() -> None:
    """Nothing that the checker or the quiet afterwards finds wrong, and every kind of fault was there."""
    tally = run_seeds(SEEDS.start, len(SEEDS))
    assert tally.seeds == len(SEEDS)
    assert not tally.failed, shrink(min(tally.failed)).outcome.told()
    assert tally.faults.keys() == FAULTS
    assert all(tally.faults.values())


def test_a_seed_replays_to_the_letter() -> None:
    """In this process and in others, whatever their hashes are salted with and wherever their memory lies."""
    here = [simulate(seed).story.digest for seed in range(12)]
    program = "from tests.simulation.run import simulate\nprint(*(simulate(s).story.digest for s in range(12)))"
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", f"ballast = [bytearray(n) for n in range(0, 4000, {salt})]\n{program}"],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == here
    assert len(set(here)) == len(here)


def test_what_readers_alone_could_have_seen_raises_no_alarm() -> None:
    """The same stories without the onlooker: each effect only as what an object was before and after it."""
    for seed in range(60):
        lines = simulate(seed).story.lines
        told: list[Line] = []
        before: dict[str, str | None] = {}
        for line in parse(map(write, lines)):
            if isinstance(line, Effect):
                told.append(Seen(line.at, line.object, before.get(line.object)))
                told.append(Seen(line.at, line.object, line.value))
                before[line.object] = line.value
            else:
                told.append(line)
        told[0].onlooker = False  # type: ignore[union-attr]
        assert [str(violation) for violation in judge(told)] == [], seed


def test_a_violation_is_told_with_what_replays_it(monkeypatch, capsys) -> None:
    """A rule switched off: the command ends with 1, tells a story and how to replay it, and so it does."""
    monkeypatch.setattr(Passage, "lost", Passage.refused)
    failing = next(seed for seed in SEEDS if simulate(seed).violations)
    smallest = shrink(failing)
    assert smallest.outcome.story.requests <= simulate(failing).story.requests
    assert main(["--first", str(failing), "--seeds", "1", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert "1 seeds with violations" in out
    assert smallest.command in out
    assert main(smallest.command.split()[3:]) == 1
    assert str(smallest.outcome.violations[0]) in capsys.readouterr().out


def test_a_good_seed_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its story, and status 0."""
    assert main(["--seed", "1"]) == 0
    assert ">> w1.1" in capsys.readouterr().out
