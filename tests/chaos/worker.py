"""`python -m tests.chaos.worker ROLE DIRECTORY NAME SEED`: one process of a run, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.chaos.onlookers import Fencer, Reader
from tests.chaos.writer import Writer


def role(name: str) -> Any:
    """What a process is; botocore takes its time to load, for those alone who need it."""
    if name == "assembler":
        from tests.chaos.assembler import Assembler

        return Assembler
    return {"writer": Writer, "reader": Reader, "fencer": Fencer}[name]


def main(kind: str, directory: str, name: str, seed: str) -> None:
    asyncio.run(role(kind)(Path(directory), name, seed).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
