"""`python -m tests.chaos --minutes M`: rounds of chaos with seeds of their own; status 1 if a guarantee is broken.

`--seed S` plays one seed (the same faults in the same order; processes are never quite the same), `--mutant NAME` a
gateway with a rule off, until its harm is found.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.mutants import MUTANTS
from tests.chaos.round import Outcome, play

KEPT = Path(".chaos")
"""Where the histories of failing rounds are kept."""


def keep(seed: str, directory: Path, outcome: Outcome) -> Path:
    """Keep history and logs of a round; the history's place."""
    place = KEPT / seed.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    for log in ("gateway.log", "workers.log"):
        if (directory / log).exists():
            (place / log).write_bytes((directory / log).read_bytes())
    history = place / "history.jsonl"
    history.write_text(outcome.history)
    return history


def failure(seed: str, directory: Path, outcome: Outcome) -> str:
    """What to tell of a failing round: its violations, its seed, where it is kept, how to judge it again."""
    history = keep(seed, directory, outcome)
    told = "\n".join(f"  {violation}" for violation in outcome.violations[:5])
    return (
        f"{len(outcome.violations)} violations with seed {seed}, ended by themselves: {outcome.fallen}\n{told}\n"
        f"judge it again: python -m tests.checker {history}\n"
        f"play it again:  python -m tests.chaos --seed {seed}"
    )


async def one(seed: str, for_s: float, mutant: str) -> tuple[Outcome, str]:
    """Play a round in a directory of its own; what it brought, and what to tell if it failed."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        outcome = await play(Path(name), seed, for_s, mutant)
        return outcome, failure(seed, Path(name), outcome) if outcome.violations or outcome.fallen else ""


def shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.chaos")
    options.add_argument("--minutes", type=float, default=1)
    options.add_argument("--round-s", type=float, default=45)
    options.add_argument("--seed")
    options.add_argument("--mutant", choices=sorted(MUTANTS), default="")
    given = options.parse_args()
    began = time.monotonic()
    faults: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    failed = rounds = 0
    while not rounds or (given.seed is None and time.monotonic() - began < given.minutes * 60):
        rounds += 1
        seed = given.seed or secrets.token_hex(4)
        outcome, told = asyncio.run(one(seed, given.round_s, given.mutant))
        faults += outcome.faults
        answers += outcome.answers
        minutes = (time.monotonic() - began) / 60
        print(
            f"round {rounds}, seed {seed}, {minutes:.1f} min: {outcome.calls} calls and looks, "
            f"{outcome.faults.total()} faults, {len(outcome.violations)} violations",
            flush=True,
        )
        if told:
            failed += 1
            print(told, flush=True)
            if given.mutant:
                break
    print(f"{rounds} rounds, {failed} failed\nfaults: {shown(faults)}\nanswers: {shown(answers)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
