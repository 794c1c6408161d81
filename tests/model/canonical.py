"""One form for worlds that differ in names alone: in the numbers of contents and nonces, in the order of what stands
side by side, or (two objects) in which object is which."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.size import Size
from tests.model.world import ABSENT, NONE, UNKNOWN, Encoded

_SAME, _SWAPPED = (0, 1), (1, 0)


def canonical(size: Size, state: Encoded) -> Encoded:
    """The same for all such worlds, and one of them."""
    if size.objects != 2:
        return _named(state, _SAME)
    first, second = _sketch(state, 0), _sketch(state, 1)
    if first != second:
        return _named(state, _SAME if first < second else _SWAPPED)
    return min(_named(state, _SAME), _named(state, _SWAPPED))


def _sketch(state: Encoded, obj: int) -> Encoded:
    """What can be said of an object without names."""
    _, _, objects, memory, owners, requests, adrift, uploads, again, marked, bound, _ = state
    return (
        objects[obj][0] == ABSENT, objects[obj][1:3], memory[obj][0] in (ABSENT, UNKNOWN), memory[obj][1:3],
        owners[obj],
        sorted([_request_order(r) for r in requests if r[1] == obj]),
        sorted([_flight_order(f) for f in adrift if f[1] == obj]),
        sorted([_upload_order(u) for u in uploads if u[0] == obj]),
        sorted([(a[0], a[2], a[3]) for a in again if a[1] == obj]),
        sorted([m[0] for m in marked if m[1] == obj]),
        sorted([b[0] for b in bound if b[1] == obj]),
    )  # fmt: skip


def _named(state: Encoded, swap: tuple[int, int]) -> Encoded:
    budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue = state
    if swap is _SWAPPED:
        objects, memory, owners = objects[::-1], memory[::-1], owners[::-1]
    contents: dict[int, int] = {ABSENT: ABSENT, UNKNOWN: UNKNOWN, NONE: NONE}
    nonces: dict[int, int] = {0: 0}
    held = {f[6] for f in adrift} | {u[4] for u in uploads}
    for r in requests:
        held.add(r[10])
        if r[11]:
            held.add(r[11][6])

    def content(number: int) -> int:
        return contents.setdefault(number, len(contents))

    def nonce(number: int) -> int:
        return nonces.setdefault(number, len(nonces)) if number in held else 0

    def flight(f: Encoded) -> Encoded:
        if not f:
            return f
        return (f[0], swap[f[1]], f[2], f[3], content(f[4]), content(f[5]), nonce(f[6]), *f[7:])

    def head(o: Encoded) -> Encoded:
        return (content(o[0]), o[1], o[2], nonce(o[3]))

    def request(r: Encoded) -> Encoded:
        return (
            r[0], swap[r[1]], r[2], r[3], content(r[4]), r[5], r[6], content(r[7]), r[8], head(r[9]), nonce(r[10]),
            flight(r[11]), *r[12:],
        )  # fmt: skip

    def upload(u: Encoded) -> Encoded:
        return (swap[u[0]], u[1], u[2], content(u[3]), nonce(u[4]), *u[5:])

    def attempt(a: Encoded) -> Encoded:
        return (a[0], swap[a[1]], a[2], a[3], content(a[4]))

    objects = tuple([head(o) for o in objects])
    memory = tuple([(content(m[0]), m[1], m[2], 0) for m in memory])
    uploads = _ordered(uploads, _upload_order, upload)
    adrift = _ordered(adrift, _flight_order, flight)
    requests = _ordered(requests, _request_order, request)
    again = _ordered(again, None, attempt)
    if swap is _SWAPPED:
        marked = tuple(sorted([(m[0], swap[m[1]]) for m in marked]))
        bound = tuple(sorted([(b[0], swap[b[1]]) for b in bound]))
    return budgets, keys, objects, memory, owners, requests, adrift, uploads, again, marked, bound, queue


def _ordered(
    rows: Encoded, order: Callable[[Encoded], Encoded] | None, rename: Callable[[Encoded], Encoded]
) -> Encoded:
    """Renamed in an order that no names decide, as far as there is one; then in order."""
    if len(rows) < 2:
        return (rename(rows[0]),) if rows else rows
    return tuple(sorted([rename(row) for row in sorted(rows, key=order)]))


def _flight_order(f: Encoded) -> Encoded:
    return (f[0], f[2], f[3], f[7:]) if f else f


def _request_order(r: Encoded) -> Encoded:
    return (r[0], r[2], r[3], r[5], r[6], r[8], r[12:], _flight_order(r[11]))


def _upload_order(u: Encoded) -> Encoded:
    return (u[1], u[2], u[5:])
