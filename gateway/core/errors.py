"""The few kinds of failure of the fence, each defined by what the caller must do.

`Malformed`  change the request: as it stands it can never pass.
`Refused`    stop: somebody else holds the job, or this write is not allowed.
`TryAgain`   send the very same request again, after `retry_after_s`.

How each is answered on the wire is decided once, in `gateway.s3.errors`.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why the fence refused. The values are the wire's `FencingReason`."""

    STALE_TOKEN = "StaleToken"  # noqa: S105 - a reason, not a password
    SEALED = "Sealed"
    TOKEN_REQUIRED = "TokenRequired"  # noqa: S105
    TOKEN_INVALID = "TokenInvalid"  # noqa: S105
    TOKEN_NOT_ISSUED = "TokenNotIssued"  # noqa: S105
    TOKEN_JUMP = "TokenJump"  # noqa: S105
    KEY_INVALID = "KeyInvalid"
    NOT_SIGNED = "NotSigned"
    KEY_MISMATCH = "KeyMismatch"
    KEY_DENIED = "KeyDenied"
    OPERATION_NOT_FENCED = "OperationNotFenced"
    HANDOVER_PENDING = "HandoverPending"
    IN_DOUBT = "InDoubt"
    STATE_MOVED = "StateMoved"
    OVERLOADED = "Overloaded"
    DRAINING = "Draining"
    STORE_UNAVAILABLE = "StoreUnavailable"
    UPSTREAM_UNAVAILABLE = "UpstreamUnavailable"
    SUPERSEDED = "Superseded"


class Outcome(StrEnum):
    """What a refusal says about *this request's* effect (guarantee G5)."""

    NOT_APPLIED = "NotApplied"
    UNKNOWN = "Unknown"


class FenceError(Exception):
    """A write that the fence did not let through, with all that a refusal tells."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        key: str | None = None,
        token: int | None = None,
        floor: int | None = None,
        outcome: Outcome = Outcome.NOT_APPLIED,
        argument: tuple[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.key = key
        self.token = token
        self.floor = floor
        self.outcome = outcome
        self.argument = argument
        self.retry_after_s = retry_after_s


class Malformed(FenceError):
    """Change the request: as it stands it can never pass."""


class Refused(FenceError):
    """Stop: somebody else holds the job, or this write is not allowed here."""


class TryAgain(FenceError):
    """Send the very same request again, after `retry_after_s`."""
