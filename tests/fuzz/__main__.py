"""`python -m tests.fuzz [--seconds N] [test …]`: each fuzzer for so long, one after another, guided by coverage.

The fuzzers are the hypothesis tests of this folder; atheris makes up the choices that hypothesis turns into examples.
What it finds is shown as an ordinary failure of the test, with the example; a file under `.fuzz/` keeps the choices."""

from __future__ import annotations

import argparse
import importlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".fuzz"
SEEDS = 64


def fuzzers() -> Iterator[str]:
    """`module:function` of each."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.fuzz.{path.stem}")
        for name, found in vars(module).items():
            if name.startswith("test_") and hasattr(found, "hypothesis"):
                yield f"{path.stem}:{name}"


def run_one(name: str, seconds: int) -> None:
    """Fuzz in this process, until the time is over or something is found; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["gateway"]):
        importlib.import_module("gateway.server.app")
    module, _, function = name.partition(":")
    test: Any = getattr(importlib.import_module(f"tests.fuzz.{module}"), function)
    one: Callable[[bytes], object] = test.hypothesis.fuzz_one_input
    corpus = KEPT / name.replace(":", ".")
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(SEEDS):  # else it takes the fuzzer long to find out that one needs many bytes
        (corpus / f"seed-{number}").write_bytes(random.Random(number).randbytes(1 << (5 + number % 9)))
    limits = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", "-max_len=16384", "-len_control=0"]
    atheris.Setup([name, str(corpus), f"-artifact_prefix={KEPT}/", "-print_final_stats=1", *limits], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer")
    parser.add_argument("--here", action="store_true", help="fuzz in this process; one name alone")
    parser.add_argument("names", nargs="*", help="as test_wire:test_any_bytes_in_any_pieces")
    arguments = parser.parse_args()
    if arguments.here:
        run_one(arguments.names[0], arguments.seconds)
    failed = []
    for name in arguments.names or fuzzers():
        print(f"=== {name}, {arguments.seconds} s", flush=True)
        # A process of its own for each, since the fuzzer ends the one that it runs in.
        command = [sys.executable, "-m", "tests.fuzz", "--here", "--seconds", str(arguments.seconds), name]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    print("found something:" if failed else "nothing found", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
