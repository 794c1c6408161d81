"""What each decision does to the durable state of one fence key: pure, and the same in every store.

Nothing here lowers a number. A decision that changes nothing answers the very same object, so that a store
knows from identity whether there is anything to write.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.keys import MAX_TOKEN
from gateway.core.lease import next_token
from gateway.stores.base import StoreUnavailable
from gateway.stores.values import MAX_GENERATION, Event, Fence, Grant, GrantWanted

HISTORY_KEPT = 200
"""So many events of a key are always kept; older ones are forgotten sooner or later."""
FLOORLESS_KEPT = 20_000
"""But for what is told of a write on a key without a floor, as each object may be one: that is kept as long as it is
among so many events of all keys together."""


def require_token(token: int) -> int:
    """Answer `token`; ValueError unless it is 0 (a write without a token) to 2^63-1."""
    if not 0 <= token <= MAX_TOKEN:
        raise ValueError(f"token {token} is not between 0 and 2^63-1")
    return token


def require_text(text: str) -> str:
    """Answer `text`; ValueError if it has no UTF-8 form, and so no place in a database."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} cannot be written as UTF-8") from error
    return text


def storable(event: Event) -> Event:
    """`event` as a database can hold it: its free texts lose what has no UTF-8 form. ValueError for bad key or
    numbers."""
    require_text(event.key)
    require_token(event.token)
    require_token(event.floor)
    detail, request_id = _readable(event.detail), _readable(event.request_id)
    if (detail, request_id) == (event.detail, event.request_id):
        return event
    return event._replace(detail=detail, request_id=request_id)


def _readable(text: str) -> str:
    return text.encode(errors="replace").decode()


def next_generation(generation: int, above: int) -> int:
    """The generation after `generation` and after `above`. Raises `StoreUnavailable` where there is none."""
    following = max(generation, above) + 1
    if following > MAX_GENERATION:
        raise StoreUnavailable(f"there is no generation after {MAX_GENERATION}")
    return following


def raised(fence: Fence, token: int, at: float) -> Fence:
    """The state after a raise to `token` at wall-clock time `at`, in seconds since the epoch."""
    if token <= fence.floor:
        return fence
    # Written out, like the next: each write of a new token makes both, and `replace` takes more than twice as long.
    return Fence(
        fence.key,
        token,
        fence.completed_floor,
        fence.sealed_token,
        fence.shadow_floor,
        at,
        fence.grant,
        fence.completed_token,
    )


def handed_over(fence: Fence, token: int) -> Fence:
    """The state after the hand-over to `token` is complete; it never completes more than the floor."""
    completed = min(token, fence.floor)
    if completed <= fence.completed_floor:
        return fence
    return Fence(
        fence.key,
        fence.floor,
        completed,
        fence.sealed_token,
        fence.shadow_floor,
        fence.raised_at,
        fence.grant,
        fence.completed_token,
    )


def sealed(fence: Fence, token: int) -> Fence:
    """The state after `token` is sealed; a token above the floor cannot be."""
    if token > fence.floor or token <= fence.sealed_token:
        return fence
    return replace(fence, sealed_token=token)


def shadowed(fence: Fence, token: int) -> Fence:
    """The state after the shadow floor has been raised to `token`."""
    if token <= fence.shadow_floor:
        return fence
    return replace(fence, shadow_floor=token)


def granted(fence: Fence, wanted: GrantWanted, generation: int, at: float) -> Fence:
    """The state after a lease has been granted; unchanged where something stands in its way (`Store.grant`)."""
    held, token = fence.held, next_token(fence.floor, generation)
    if fence.completed_token or (held is not None and held.token != wanted.instead_of) or token is None:
        return fence
    grant = Grant(token, wanted.holder, wanted.ttl_s, at, wanted.id)
    return replace(fence, floor=token, raised_at=at, grant=grant)


def completed(fence: Fence, token: int) -> Fence:
    """The state after `token` has completed the job, and is sealed with that (R3). Only the token that holds the floor
    can, and a job is completed once."""
    if not token or token != fence.floor or token == fence.sealed_token or fence.completed_token:
        return fence
    return replace(fence, sealed_token=token, completed_token=token)


def reopened(fence: Fence) -> Fence:
    """The state after an operator has allowed that a completed job be done again."""
    return replace(fence, completed_token=0) if fence.completed_token else fence
