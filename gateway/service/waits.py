"""What waits, for what, and until when: the fence's time-outs, and what people are told of sends and hand-overs."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.errors import Reason, TryAgain
from gateway.core.keys import FencingKey, Token

MOST_SENDS_TOLD = 3
"""Of what a hand-over waits for, in a line of the log, and in an answer."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The fence's time-outs, in seconds."""

    settle_timeout_s: float = 30
    settle_timeout_assembly_s: float = 300
    handover_wait_s: float = 20
    commit_timeout_s: float = 60
    commit_timeout_assembly_s: float = 600

    def commit_s(self, *, assembles: bool) -> float:
        """How long the answer to an operation is awaited from its commit point on; then it is in doubt."""
        return self.commit_timeout_assembly_s if assembles else self.commit_timeout_s

    def settle_s(self, *, assembles: bool) -> float:
        """How long after its loss a send of an operation may still land."""
        return self.settle_timeout_assembly_s if assembles else self.settle_timeout_s


@dataclass(frozen=True, slots=True)
class UnsettledSend:
    """A send that may still land, for people who ask what a hand-over waits for."""

    token: int
    phase: str
    bucket: str
    object_key: str
    request_id: str
    settles_in_s: float | None
    """Seconds until it is settled by time-out; None while its answer is still awaited."""
    latest_in_s: float
    """Seconds until it is settled at the latest, should its answer never come."""

    @property
    def place(self) -> str:
        return f"{self.bucket}/{self.object_key}"

    def __str__(self) -> str:
        return f"token {self.token} on {self.place}, {self.phase}"


@dataclass(frozen=True, slots=True)
class PendingHandOver:
    """A hand-over that is not complete, because something lower may still land."""

    token: int
    """The floor: who holds the key, and may not write yet."""
    sends: tuple[UnsettledSend, ...]
    """What it waits for. Empty where that is an earlier run's, which nobody can name."""
    requests: int
    """How many requests wait for it now; those that were told to come again are not among them."""
    waited_s: float
    """Since the floor rose, or the gateway started."""
    latest_in_s: float
    """Seconds until it can be completed at the latest."""


def handover_pending(key: FencingKey, token: Token, sends: list[UnsettledSend], wait_s: float) -> TryAgain:
    """A request has waited for its hand-over as long as it may."""
    told = (
        f"The hand-over of {key!r} to token {token} waits until nothing that a lower token has sent can take effect "
        f"any more ({_named(sends)}). Token {token} holds the floor already: lower ones are refused. Send the request "
        "again."
    )
    return _pending(key, token, told, wait_s)


def completion_pending(key: FencingKey, token: Token, sends: list[UnsettledSend], wait_s: float) -> TryAgain:
    """A completion has waited as long as it may for what has been sent."""
    told = (
        f"The completion of {key!r} by token {token} waits until nothing that has been sent under the key can take "
        f"effect any more ({_named(sends)}). Token {token} still holds the key. Send the request again."
    )
    return _pending(key, token, told, wait_s)


def _named(sends: list[UnsettledSend]) -> str:
    return "; ".join(map(str, sends[:MOST_SENDS_TOLD])) or "sent before the gateway started"


def _pending(key: FencingKey, token: Token, told: str, wait_s: float) -> TryAgain:
    wait_s = max(wait_s, 1.0)
    return TryAgain(Reason.HANDOVER_PENDING, told, key=key, token=token, floor=token, retry_after_s=wait_s)
