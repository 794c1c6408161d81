"""What has come of the demonstration, and whether it is what the story tells."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker was answered: by S3, or by the control API, which has reasons alone."""

    status: int
    code: str = ""
    reason: str = ""
    token: int | str | None = None
    floor: int | str | None = None

    def __str__(self) -> str:
        if self.status == 200:
            return "200 OK"
        told = f"{self.status} " + ", ".join(part for part in (self.code, self.reason) if part)
        if self.floor is not None:
            return f"{told}: token {self.token}, floor {self.floor}"
        return told if self.token is None else f"{told} by token {self.token}"


@dataclass(frozen=True, slots=True)
class WithGateway:
    """The incident with a gateway."""

    tokens: tuple[int, int, int]
    """Of workers X, A and B."""
    attempts_a: int
    left_by_x: str | None
    upload_b: Answer
    completion_b: Answer
    late_upload: Answer
    late_completion: Answer
    status_a: int
    winner: str | None
    completed_by: int
    announced: tuple[str, ...]

    def faults(self) -> list[str]:
        """What has not gone as told."""
        late = self.late_upload
        token_b = self.tokens[2]
        completion = (self.late_completion.status, self.late_completion.reason, int(self.late_completion.token or 0))
        return _broken(
            {
                "each worker's token should have been higher than the one before": _rising(self.tokens),
                "the killed worker's job should have been delivered again, as its second attempt": self.attempts_a == 2,
                "half an upload should have left no object": self.left_by_x is None,
                "worker B's upload should have been accepted": self.upload_b.status == 200,
                "worker B's completion should have been recorded": self.completion_b.status == 200,
                "worker A's write should have been refused: 412 PreconditionFailed, StaleToken": (
                    (late.status, late.code, late.reason) == (412, "PreconditionFailed", "StaleToken")
                ),
                "worker A's completion should have been refused: 409 completed, by worker B's token": (
                    completion == (409, "completed", token_b)
                ),
                "worker A should have stopped itself": self.status_a == 1,
                "the object should be worker B's": self.winner == "B",
                "the completion should name worker B's token": self.completed_by == token_b,
                "one completion should have been announced, worker B's": (
                    len(self.announced) == 1 and self.announced[0].endswith(f":{token_b}")
                ),
            }
        )


@dataclass(frozen=True, slots=True)
class WithoutGateway:
    """The incident without one."""

    upload_b: Answer
    late_upload: Answer
    winner: str | None

    def faults(self) -> list[str]:
        """What has not gone as told."""
        return _broken(
            {
                "worker B's upload should have been accepted": self.upload_b.status == 200,
                "worker A's late write should have won": (self.late_upload.status, self.winner) == (200, "A"),
            }
        )


def _rising(tokens: tuple[int, ...]) -> bool:
    return all(lower < higher for lower, higher in pairwise(tokens))


def _broken(rules: dict[str, bool]) -> list[str]:
    return [rule for rule, holds in rules.items() if not holds]
