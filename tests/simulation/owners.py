"""R9: to whom the objects belong that no rule maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.checker.history import DELETES_VERSION, Call, Effect, Fault, Line, Ruled
from tests.checker.rules import DATABASE_LOST, Violation
from tests.simulation.chance import BUCKET


def judge_owners(lines: Sequence[Line]) -> Iterator[Violation]:
    """They belong to the key that wrote them first, for good. A new database knows what the objects say once it has
    rebuilt."""
    owner: dict[str, str] | None = {}
    borne: dict[str, str] = {}
    wrote: dict[tuple[str, str | None], str] = {}
    ruler: str | None = None
    lost: set[str] = set()
    calls = {line.id: line for line in lines if isinstance(line, Call)}
    for number, line in enumerate(lines, 1):
        if isinstance(line, Fault) and line.kind in (DATABASE_LOST, "taken-over"):
            owner = None
            lost.add(line.by)
        if isinstance(line, Ruled):
            if line.by and line.by not in lost and owner is None and ruler not in (None, line.by):
                owner = {name: key for name, key in borne.items() if key}
            ruler = line.by or (None if line.by is None else ruler or "")
        if not isinstance(line, Effect) or not line.object.startswith(f"{BUCKET}/free/"):
            continue
        call = calls[line.id]
        bears = call.key if call.token and line.value is not None else ""
        if call.operation == DELETES_VERSION:
            bears = wrote.get((line.object, line.value), "")
        wrote[line.object, line.value] = borne[line.object] = bears
        if owner is None:
            continue
        if owner.get(line.object, call.key) != call.key:
            text = f"{call.id} of {call.key} changes {line.object}, which belongs to {owner[line.object]}"
            yield Violation("R9", text, (number,))
        if call.operation == DELETES_VERSION and bears:
            owner[line.object] = bears  # what shows now says so itself
        elif call.token:
            owner.setdefault(line.object, call.key)
