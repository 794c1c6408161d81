"""Histories as the processes of a run write them, and as one.

A line is with the kernel before what it tells of begins: a process that is killed leaves no effect without its call.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.checker.history import ANY, Answer, Call, Fault, Floor, Line, Seen, Setting, parse, write

CONDITIONAL = ("PutObject", "CopyObject", "DeleteObject")
"""For which SeaweedFS proves conditional writes (`gateway/upstream/probe.py`)."""


class Recorder:
    """One process's lines. Its name begins the ids of its calls, so it must not come twice in a run."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = os.open(directory / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        self._serial = 0

    def _write(self, line: Line) -> None:
        os.write(self._file, write(line).encode() + b"\n")

    def call(
        self, operation: str, key: str, token: int, name: str = "", value: str | None = ANY, *, fenced: bool = True
    ) -> str:
        """A request begins; its id."""
        self._serial += 1
        now = time.monotonic()
        made = f"{self._name}-{self._serial}"
        self._write(Call((now, now), made, operation, key, token, name, value, fenced=fenced))
        return made

    def answer(self, call: str, status: int, outcome: str = "", floor: int = -1) -> None:
        now = time.monotonic()
        self._write(Answer(call, (now, now), status, outcome, floor))

    def seen(self, since: float, name: str, value: str | None) -> None:
        """A reader saw the object at some moment between `since` and now."""
        self._write(Seen((since, time.monotonic()), name, value))

    def floor(self, since: float, key: str, floor: int) -> None:
        self._write(Floor((since, time.monotonic()), key, floor))

    def fault(self, kind: str, *voids: str, since: float | None = None) -> None:
        """Something breaks now, or has been broken since then."""
        now = time.monotonic()
        self._write(Fault((now if since is None else since, now), kind, voids))


def gather(directory: Path) -> str:
    """All that the processes of a run have told, in one history. A line that its writer did not live to end is none."""
    found: list[tuple[float, str]] = []
    for file in sorted(directory.glob("*.jsonl")):
        for text in file.read_text().split("\n")[:-1]:
            at = json.loads(text)["at"]
            found.append((at[0] if isinstance(at, list) else at, text))
    found.sort(key=lambda entry: entry[0])
    return "\n".join([write(Setting(CONDITIONAL)), *(text for _, text in found)]) + "\n"


def read(text: str) -> list[Line]:
    """Raises `BadHistory`."""
    return parse(text.splitlines())
