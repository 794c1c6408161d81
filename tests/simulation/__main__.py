"""`python -m tests.simulation --seeds N`: run many; `--seed S`: tell one's story. Status 1 if a guarantee is broken."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.simulation.many import run_seeds
from tests.simulation.run import STEPS, simulate
from tests.simulation.shrink import shrink

SHOWN = 3
"""So many failing seeds are told in full."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each processor)")
    parser.add_argument("--seed", type=int, help="only this one, and its whole story")
    parser.add_argument("--steps", type=int, default=STEPS, help="with --seed: how many come in (default: %(default)s)")
    parser.add_argument("--without", default="", help="with --seed: kinds of faults to leave out, with commas")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        outcome = simulate(asked.seed, steps=asked.steps, without=[kind for kind in asked.without.split(",") if kind])
        print(outcome.told())
        return 1 if outcome.violations else 0
    tally = run_seeds(asked.first, asked.seeds, jobs=asked.jobs, progress=lambda line: print(line, flush=True))
    print(tally.told())
    for kind, count in sorted(tally.faults.items(), key=lambda entry: (-entry[1], entry[0])):
        print(f"  {count:9,}  {kind}")
    for seed in sorted(tally.failed)[:SHOWN]:
        smallest = shrink(seed)
        print(f"\nseed {seed}, the fewest steps and faults:\n{smallest.outcome.told()}\nreplay: {smallest.command}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
