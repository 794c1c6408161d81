"""`python -m tests.differential --requests 20000`: send generated requests to both sides until something differs."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.differential.allowed import ALLOWED
from tests.differential.search import search
from tests.differential.sides import sides
from tests.differential.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="how many to send at least")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each serves about a hundred sequences")
    parser.add_argument("--differences", type=int, default=1, help="how many to find before giving up")
    arguments = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as directory, sides(Path(directory) / "sides") as running:
        world = World(running)
        seed, began = arguments.seed, time.monotonic()
        while world.requests < arguments.requests and len(found) < arguments.differences:
            difference = search(world, seed)
            print(f"seed {seed}: {world.requests} requests, {time.monotonic() - began:.0f} s", flush=True)
            if difference is not None:
                found.append(difference)
                print(difference, flush=True)
            seed += 1
        _report(world)
        world.close()
    print(*world.seen_once, f"{len(found)} unexplained differences", sep="\n")
    return 1 if found else 0


def _report(world: World) -> None:
    for name, rule in ALLOWED.items():
        print(f"allowed {world.used[name]:7} times: {name} ({rule.reason})")
    print("sent / succeeded directly:")
    for name, count in sorted(world.operations.items()):
        print(f"  {name} {count} / {world.succeeded[name]}")


if __name__ == "__main__":
    sys.exit(main())
