"""Two minutes of chaos, each round with a seed of its own, and that nothing of a run outlives it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.__main__ import one
from tests.chaos.crew import ROLES
from tests.gateway_process import ROOT, environment

ROUND_S = 60
ROUNDS = 2
BOUND_S = 60


@pytest.mark.parametrize("_", range(ROUNDS))
async def test_a_round_breaks_no_guarantee(_: int) -> None:
    """Everything is stopped, killed and cut off for a while, and the history shows no harm. A failure tells its seed,
    and where its history is."""
    outcome, told = await one(secrets.token_hex(4), ROUND_S, "")
    assert not told, told
    assert outcome.answers["200"]
    assert outcome.faults


def children(parent: int) -> set[int]:
    """All processes below one."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, last = {parent}, 0
    while len(found) != last:
        last = len(found)
        found |= {pid for pid, above in parents.items() if above in found}
    return found - {parent}


def runs(pid: int) -> bool:
    """Whether there is still more of a process than its status, for which nobody may have asked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """Workers, gateway and store end with the process that has started them, stopped ones too."""
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", "--round-s", str(BOUND_S)],
        env=environment(TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + BOUND_S
        while not list(tmp_path.glob(f"chaos-*/w{len(ROLES)}.jsonl")):  # the last of the crew has begun
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = children(run.pid)
        assert len(started) >= 10
        os.kill(max(started), signal.SIGSTOP)
    finally:
        run.kill()
        run.wait()
    deadline = time.monotonic() + BOUND_S
    while any(runs(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
