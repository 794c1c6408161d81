"""How a call to the gateway fails, each kind defined by what its caller must do.

GatewayError
  Refused          the gateway says no: change the call, or stop
    LeaseHeld      another holds the lease: wait, or do something else
    LeaseLost      the lease is not yours any more: stop, and throw away what is unfinished
    StaleToken     a higher token holds the key: stop, as after LeaseLost
    JobCompleted   the job is done already: there is nothing left to do
  Unreachable      no gateway answers, or it cannot do its work now: send it again; nobody knows whether it was done
    Distrusted     somebody answers whose certificate does not verify; nothing has been said to him
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class GatewayError(Exception):
    """`problem` is the gateway's RFC 9457 document, empty where there is none."""

    def __init__(self, message: str, problem: Json | None = None) -> None:
        super().__init__(message)
        self.problem: Json = problem or {}

    @property
    def reason(self) -> str:
        """The problem's stable `reason`; empty where there is none."""
        return str(self.problem.get("reason", ""))


class Refused(GatewayError):
    """The gateway says no. Sent again as it stands, the call is refused again."""


class LeaseHeld(Refused):
    """Another holds the lease. Wait in line (`wait_s`), or do something else."""

    @property
    def holder(self) -> str:
        """Empty where others stand in line, and nobody holds it now."""
        return str(self.problem.get("holder") or "")

    @property
    def expires_in_s(self) -> float | None:
        """How long it still lasts, unless it is renewed."""
        left = self.problem.get("expires_in_s")
        return float(left) if isinstance(left, int | float) else None


class LeaseLost(Refused):
    """The lease is not yours any more, or could not be renewed in time. Stop: another may work on the job. What you
    write from now on is refused; what is unfinished is nobody's."""


class StaleToken(Refused):
    """A higher token holds the key, or yours is sealed. Stop, as after `LeaseLost`."""


class JobCompleted(Refused):
    """The job is done: its completion is recorded, under another token. There is nothing left to do."""

    @property
    def token(self) -> int:
        """The token that completed it."""
        return int(self.problem.get("token", 0))


class Unreachable(GatewayError):
    """No gateway answers, or it cannot do its work now. Whether the call was carried out is not known: send it again.
    `retry_after_s` is when, if the gateway says so."""

    def __init__(self, message: str, problem: Json | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, problem)
        self.retry_after_s = retry_after_s


class Distrusted(Unreachable):
    """Somebody answers there whose certificate does not verify. Nothing has been said to him."""


_OF_REASON: dict[str, type[Refused]] = {
    "held": LeaseHeld,
    "lost": LeaseLost,
    "stale": StaleToken,
    "completed": JobCompleted,
}


def refusal(problem: Json) -> Refused:
    """The error that a problem with a status from 400 to 499 stands for."""
    kind = _OF_REASON.get(str(problem.get("reason")), Refused)
    return kind(str(problem.get("detail") or problem.get("title") or problem.get("reason")), problem)
