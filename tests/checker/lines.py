"""Lines of histories, written as short as tests read well."""

from __future__ import annotations

from typing import Any

from tests.checker.history import (
    DELETES_VERSION,
    Answer,
    Call,
    Effect,
    Fault,
    Floor,
    Line,
    Ruled,
    Seen,
    Sent,
    Setting,
    Span,
)

OUT = "bkt/renders/j/out"
OTHER = "bkt/renders/j/other"
At = float | Span
CONDITIONAL = ("PutObject", "CopyObject", "DeleteObject")


def span(at: At) -> Span:
    return at if isinstance(at, tuple) else (at, at)


def history(*lines: Line, **setting: Any) -> list[Line]:
    return [Setting(**setting), *lines]


def put(at: At, name: str, token: int, value: str | None = None, **more: Any) -> Call:
    """A PUT of the value that is called as the call is."""
    more = {"operation": "PutObject", "key": "j", "object": OUT, **more}
    return Call(span(at), name, token=token, value=value or name, **more)


def delete(at: At, name: str, token: int, **more: Any) -> Call:
    return Call(
        span(at), name, **{"operation": "DeleteObject", "key": "j", "object": OUT, **more}, token=token, value=None
    )


def delete_version(at: At, name: str, token: int) -> Call:
    return Call(span(at), name, DELETES_VERSION, "j", token, OUT)


def control(at: At, name: str, operation: str, token: int = 0, **more: Any) -> Call:
    return Call(span(at), name, operation, "j", token, **more)


def ok(at: At, name: str, **more: Any) -> Answer:
    return Answer(name, span(at), 200, **more)


def stale(at: At, name: str, floor: int) -> Answer:
    return Answer(name, span(at), 412, "NotApplied", floor)


def unknown(at: At, name: str, **more: Any) -> Answer:
    return Answer(name, span(at), 503, "Unknown", **more)


def not_applied(at: At, name: str, **more: Any) -> Answer:
    return Answer(name, span(at), 503, "NotApplied", **more)


def seen(at: At, value: str | None, name: str = OUT) -> Seen:
    return Seen(span(at), name, value)


def effect(at: At, name: str, value: str | None = "", where: str = OUT) -> Effect:
    """The call's write takes effect; of the value that is called as the call is, unless another is named."""
    return Effect(name, span(at), where, name if value == "" else value)


def sent(at: At, name: str, by: str = "") -> Sent:
    return Sent(name, span(at), by)


def floor(at: At, value: int) -> Floor:
    return Floor(span(at), "j", value)


def fault(at: At, kind: str, *voids: str, by: str = "") -> Fault:
    return Fault(span(at), kind, voids, by)


def ruled(at: At, by: str | None) -> Ruled:
    """The bucket's record names that database; empty: it is being rebuilt."""
    return Ruled(span(at), by)
