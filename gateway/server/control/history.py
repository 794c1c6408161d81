"""One line of a key's history, as it is shown."""

from __future__ import annotations

from typing import Self

from gateway.server.control.documents import MomentShown, Shown, TokenShown
from gateway.stores.values import Event


class EventShown(Shown):
    """What happened to a key."""

    at: MomentShown
    kind: str
    token: TokenShown
    floor: TokenShown
    detail: str
    request_id: str
    count: int

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            at=event.at,
            kind=event.kind.value,
            token=event.token,
            floor=event.floor,
            detail=event.detail,
            request_id=event.request_id,
            count=event.times,
        )
