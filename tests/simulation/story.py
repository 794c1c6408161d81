"""What happened in one run: the history that the checker judges, and notes for people who read it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby

from tests.checker.history import Answer, Call, Effect, Fault, Floor, Line, Ruled, Sent, Setting, Span, write

Row = tuple[float, str, str]
START_S = 1000.0
"""The virtual loop's first moment."""


class Story:
    """Lines and notes in their order, and how often each kind of fault was injected."""

    def __init__(self, setting: Setting) -> None:
        self.lines: list[Line] = [setting]
        self.faults: Counter[str] = Counter()
        self.requests = 0
        self._told: list[tuple[float, Line | str]] = []

    @property
    def now(self) -> Span:
        at = asyncio.get_running_loop().time() - START_S
        return at, at

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self._told.append((self.now[0], line))
        if isinstance(line, Call):
            self.requests += 1

    def note(self, text: str) -> None:
        self._told.append((self.now[0], text))

    def fault(self, kind: str, detail: str = "") -> None:
        """A fault is injected."""
        self.faults[kind] += 1
        self._told.append((self.now[0], f"! {kind} {detail}".rstrip()))

    @property
    def digest(self) -> str:
        """The same for the same story."""
        digest = sha256()
        for at, what in self._told:
            digest.update(f"{at:.6f} {what if isinstance(what, str) else write(what)}\n".encode())
        return digest.hexdigest()

    def transcript(self, numbers: frozenset[int] = frozenset()) -> str:
        """The story for people; the lines with those numbers are marked."""
        marked = {id(line) for number, line in enumerate(self.lines, 1) if number in numbers}
        rows = [(at, what, ">" if id(what) in marked else " ") for at, what in self._told]
        return "\n".join(
            f"{at:9.2f} {mark} {text}" + (f"  ({count} times)" if count > 1 else "")
            for (at, text, mark), count in _folded((at, _shown(what), mark) for at, what, mark in rows)
        )


def _folded(rows: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    for row, alike in groupby(rows):
        yield row, len(list(alike))


def _shown(what: Line | str) -> str:
    match what:
        case str():
            return what
        case Call():
            token = f"token {what.token}" if what.token else "no token"
            key = what.key if what.fenced else "no fence"
            return f">> {what.id} {what.operation} {what.object} of {key}, {token}"
        case Answer():
            more = "".join([f" {what.outcome}", f" floor {what.floor}" if what.floor >= 0 else ""])
            return f"<< {what.id} {what.status}{more.rstrip()}"
        case Sent():
            return f"   {what.id} passes its commit point"
        case Effect():
            return f"** {what.object} is {what.value or 'absent'} by {what.id}"
        case Floor():
            return f"   the floor of {what.key} on disk is {what.floor}"
        case Ruled():
            names = {"": "nobody, it is being rebuilt", None: "nobody, it has no record"}
            return f"   the bucket is ruled by {names.get(what.by, what.by)}"
        case Fault():
            return f"! {what.kind}"
        case _:
            return write(what)
