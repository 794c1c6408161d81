"""What travels where the control API deals with fences."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from gateway.server.control.documents import (
    Fits,
    Given,
    MomentShown,
    Page,
    ReasonGiven,
    SecondsShown,
    Shown,
    TokenGiven,
    TokenShown,
)
from gateway.server.control.history import EventShown
from gateway.service.leases import Lease
from gateway.service.waits import UnsettledSend
from gateway.stores.values import Fence

# --- what is asked


Serial = Annotated[
    str, Fits("[0-9]{1,18}", "the `next` of the page before"), Field(description="The `next` of the page before.")
]


class FencesAsked(Page):
    """Which keys."""

    prefix: str = Field("", description="Keys that begin so.")
    after: str = Field("", description="The `next` of the page before.")


class EventsAsked(Page):
    """Which part of a history."""

    before: Serial | None = None


class Check(Given):
    """The token to hold against the fence."""

    token: TokenGiven


class Raise(Given):
    """The new floor, and why."""

    token: TokenGiven
    reason: ReasonGiven


class Settle(Given):
    """Why what is in doubt can land no more; of that token alone, where one is named."""

    reason: ReasonGiven
    token: TokenGiven | None = None


class Seal(Given):
    """Why; where a token is named, only if it holds the floor."""

    reason: ReasonGiven
    token: TokenGiven | None = None


# --- what is told


class SendShown(Shown):
    """A send that may still take effect upstream."""

    token: TokenShown
    phase: str
    bucket: str
    object: str
    request_id: str
    settles_in_s: SecondsShown | None
    latest_in_s: SecondsShown

    @classmethod
    def of(cls, send: UnsettledSend) -> Self:
        return cls(
            token=send.token,
            phase=send.phase,
            bucket=send.bucket,
            object=send.object_key,
            request_id=send.request_id,
            settles_in_s=send.settles_in_s,
            latest_in_s=send.latest_in_s,
        )


class HandoverShown(Shown):
    """A hand-over that is not complete yet."""

    token: TokenShown
    since: MomentShown
    latest: MomentShown
    latest_in_s: SecondsShown
    requests: int
    sends: list[SendShown]


class FenceShown(Shown):
    """The floors of one key."""

    key: str
    floor: TokenShown
    completed_floor: TokenShown
    sealed: bool
    shadow_floor: TokenShown
    raised_at: MomentShown
    holder: str | None

    @classmethod
    def of(cls, fence: Fence) -> Self:
        return cls(
            key=fence.key,
            floor=fence.floor,
            completed_floor=fence.completed_floor,
            sealed=fence.floor > 0 and fence.sealed_token == fence.floor,
            shadow_floor=fence.shadow_floor,
            raised_at=fence.raised_at,
            holder=None if fence.held is None else fence.held.holder,
        )


class FencePage(Shown):
    """Keys in order."""

    fences: list[FenceShown]
    next: str | None


class LeaseHeldShown(Shown):
    """The lease on a key: the floor is its token. `pending`: its hand-over is not complete, its time has not begun."""

    token: TokenShown
    holder: str
    ttl_s: float
    expires_in_s: SecondsShown
    pending: bool

    @classmethod
    def of(cls, lease: Lease) -> Self:
        return cls(
            token=lease.token,
            holder=lease.holder,
            ttl_s=lease.ttl_s,
            expires_in_s=lease.expires_in_s,
            pending=lease.pending,
        )


class KeyShown(FenceShown):
    """All that is known of one key."""

    lease: LeaseHeldShown | None
    open_uploads: int
    unsettled: list[SendShown]
    handover: HandoverShown | None
    earlier_run_settles_in_s: SecondsShown | None


class SettledShown(KeyShown):
    """The key, and the sends that were settled."""

    settled: list[SendShown]


class EventPage(Shown):
    """A part of a history, newest first."""

    events: list[EventShown]
    next: str | None


class Checked(Shown):
    """The token holds the floor, or did so when this was said."""

    key: str
    token: TokenShown
    floor: TokenShown
