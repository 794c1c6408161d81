"""A history sorted by calls: each with its answer, and what that says of its outcome."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.checker.evidence import Moment, begins, rank, succeeded
from tests.checker.history import ANY, DELETES_VERSION, Answer, BadHistory, Call, Effect, Line, Seen, Sent, Setting

CHANGES_OBJECTS = frozenset(
    {"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjects", DELETES_VERSION}
)
"""The operations after which a reader sees something else."""


@dataclass(slots=True)
class Attempt:
    """One call, and what is known of its outcome. `number` and the like are those of lines."""

    number: int
    call: Call
    answer: Answer | None = None
    answer_number: int = 0
    sent: list[tuple[Moment, int, str]] = field(default_factory=list)
    """When, the line's number, and whose database the sender has."""

    @property
    def applied(self) -> bool:
        return self.answer is not None and succeeded(self.answer)

    @property
    def denied(self) -> bool:
        """Nothing of it was or can be applied: so says the refusal, or an error of S3's own before any effect."""
        if self.answer is None or self.applied or self.answer.outcome == "Unknown":
            return False
        return self.answer.outcome == "NotApplied" or (300 <= self.answer.status < 500 and self.answer.status != 408)

    @property
    def fenced(self) -> bool:
        return self.call.fenced and bool(self.call.key)

    @property
    def rank(self) -> int:
        return rank(self.call.token)

    @property
    def named(self) -> str:
        call = self.call
        token = f"token {call.token}" if call.token else "no token"
        return f"{call.operation} {call.id} of {call.key or 'no key'} with {token} on {call.object or 'nothing'}"


class Index:
    """The history by calls and by objects. Raises `BadHistory` for what names a call that is not there."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        if not lines or not isinstance(lines[0], Setting):
            raise BadHistory("line 1: a history begins with its setting")
        self.setting = lines[0]
        self.attempts: dict[str, Attempt] = {}
        self.writers: dict[tuple[str, str | None], list[Attempt]] = defaultdict(list)
        self.any_value: dict[str, list[Attempt]] = defaultdict(list)
        """The calls of which nobody can say what they leave, by object."""
        self.asked: dict[tuple[str, str | None], list[Moment]] = defaultdict(list)
        """When a grant was asked for, by its key and the idempotency key of the call."""
        self._completing: dict[tuple[str, int], Moment] = {}
        """When the completion of a job was first asked for, by its key and token."""
        self._bytes: dict[str, str] = {}
        self.effects: dict[str, list[tuple[int, Effect]]] = defaultdict(list)
        self.seen: dict[str, list[tuple[int, Seen]]] = defaultdict(list)
        for number, line in enumerate(lines, 1):
            if isinstance(line, Call):
                self._call(number, line)
        for number, line in enumerate(lines, 1):
            if isinstance(line, Seen):
                self.seen[line.object].append((number, line))
            elif isinstance(line, Answer | Sent | Effect):
                self._of_call(number, line)

    def begun(self, attempt: Attempt) -> Moment:
        """When it was asked for; a completion when that was first, since what its token has completed then is answered
        the same, whatever has happened since."""
        call = attempt.call
        begun = begins(call.at, attempt.number)
        return self._completing[call.key, call.token] if call.operation == "complete" else begun

    def _call(self, number: int, call: Call) -> None:
        if call.id in self.attempts:
            raise BadHistory(f"line {number}: a second call {call.id!r}")
        attempt = self.attempts[call.id] = Attempt(number, call)
        if call.bytes and call.value is not None:
            self._bytes[call.value] = call.bytes
        if call.operation == "grant":
            self.asked[call.key, call.value].append(begins(call.at, number))
        if call.operation == "complete":
            asked, begun = (call.key, call.token), begins(call.at, number)
            self._completing[asked] = min(begun, self._completing.get(asked, begun))
        if call.operation in CHANGES_OBJECTS:
            (self.any_value[call.object] if call.value == ANY else self.writers[call.object, call.value]).append(
                attempt
            )

    def _of_call(self, number: int, line: Answer | Sent | Effect) -> None:
        attempt = self.attempts.get(line.id)
        if attempt is None:
            raise BadHistory(f"line {number}: there is no call {line.id!r}")
        if line.at[1] < attempt.call.at[0]:
            raise BadHistory(f"line {number}: before its call")
        if isinstance(line, Answer):
            if attempt.answer is not None:
                raise BadHistory(f"line {number}: a second answer to {line.id!r}")
            attempt.answer, attempt.answer_number = line, number
        elif isinstance(line, Sent):
            attempt.sent.append((begins(line.at, number), number, line.by))
        else:
            self.effects[line.object].append((number, line))

    def who_wrote(self, name: str, value: str | None) -> list[Attempt]:
        """Everybody who may have left `value` on the object, whatever the outcome."""
        return [*self.writers.get((name, value), ()), *self.any_value.get(name, ())]

    def bytes_of(self, value: str | None) -> str:
        """What tells the bytes of a value from others', wherever a copy has brought it; empty for absence."""
        return "" if value is None else self._bytes.get(value, value)
