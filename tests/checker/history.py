"""A history of what clients, readers and onlookers have seen of a gateway: the format that the checker reads.

JSON lines: one object for each thing that happened, told apart by `what`. Nothing in it says how the gateway decides.

`at` is when it happened, in seconds on one clock that never goes back (CLOCK_MONOTONIC is one for all processes of a
host): a number where that is known exactly, else `[earliest, latest]`. Of a call it is when the request began to be
sent, of an answer when it had been received, of `seen` a span within which the object was as told at some moment. Where
the latest of one line equals the earliest of another, the order of the lines decides. Else their order does not matter.

`history`  `conditional`, `onlooker`, `initial`, `lapse_s`: the first line. `conditional` lists the operations for which
           the store proved conditional writes; `onlooker` says that every effect on every object has an `effect` line;
           `initial` maps objects that were there before to their values; `lapse_s` is how long a gateway may go on
           without having looked at the bucket's record.
`call`     `at`, `id`, `operation`, `key`, `token`, `object`, `value`, `bytes`, `fenced`: a request begins; each attempt
           of an SDK is a call of its own. `token` 0 stands for none. `value` names what is written, the same for all
           attempts of one write and for no other write; null for a delete; left out where nobody can say (a copy that
           takes all along). `bytes` names the bytes where two values share them. `fenced` is false where no fence
           covers the call (`allow`, `off`).
`answer`   `id`, `at`, `status`, `outcome`, `floor`, `token`, `by`: the call's answer; none comes where the connection
           broke. `outcome` and `floor` are those of the answer, `token` is a grant's, and `by` names the database that
           granted it.
`sent`     `id`, `at`, `by`: something of the call passed its commit point on the way to the store. `by` names the
           database of the gateway that sent it; left out where nobody can say.
`effect`   `id`, `at`, `object`, `value`: an onlooker at the store saw this call's write take effect.
`seen`     `at`, `object`, `value`: a reader saw the object; null: absent.
`floor`    `at`, `key`, `floor`: somebody read the floor of a key.
`ruled`    `at`, `by`: an onlooker saw the bucket's record change: from now on it names database `by`; empty: nobody's,
           because it is being rebuilt; null: there is no record.
`fault`    `at`, `kind`, `voids`, `by`: something broke. `voids` lists the guarantees that do not cover what spans this
           moment: an operator's `settle` voids G2, a lost database (`kind` is `database-lost`, `by` names it) G0, G1,
           G2 and R9. What the bucket's record promises all the same is told by `ruled`.

Operations are S3's names, one call for each object of a DeleteObjects. A delete of one version of an object is a
`DeleteObjectVersion` without `value`; its `effect` tells which value shows then. Beside them: `grant` (a lease or a
delivery; its `value` is the idempotency key), `check`, `raise`, `complete` (a job), `seal` (also a release or fail),
`renew` (a lease), `reopen` (a completed job).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

ANY = "?"
"""A value that nobody can say."""
DELETES_VERSION = "DeleteObjectVersion"
"""It writes nothing: what shows after it was written before."""
Span = tuple[float, float]


@dataclass(slots=True)
class Setting:
    """The first line."""

    conditional: tuple[str, ...] = ()
    onlooker: bool = False
    initial: dict[str, str] = field(default_factory=dict)
    lapse_s: float = 0.0


@dataclass(slots=True)
class Call:
    at: Span
    id: str
    operation: str
    key: str = ""
    token: int = 0
    object: str = ""
    value: str | None = ANY
    bytes: str = ""
    fenced: bool = True


@dataclass(slots=True)
class Answer:
    id: str
    at: Span
    status: int
    outcome: str = ""
    floor: int = -1
    """-1: it does not say."""
    token: int = 0
    by: str = ""


@dataclass(slots=True)
class Sent:
    id: str
    at: Span
    by: str = ""


@dataclass(slots=True)
class Effect:
    id: str
    at: Span
    object: str
    value: str | None


@dataclass(slots=True)
class Seen:
    at: Span
    object: str
    value: str | None


@dataclass(slots=True)
class Floor:
    at: Span
    key: str
    floor: int


@dataclass(slots=True)
class Ruled:
    at: Span
    by: str | None


@dataclass(slots=True)
class Fault:
    at: Span
    kind: str
    voids: tuple[str, ...] = ()
    by: str = ""


Line = Setting | Call | Answer | Sent | Effect | Seen | Floor | Ruled | Fault
_KINDS: dict[str, type[Any]] = {
    "history": Setting,
    "call": Call,
    "answer": Answer,
    "sent": Sent,
    "effect": Effect,
    "seen": Seen,
    "floor": Floor,
    "ruled": Ruled,
    "fault": Fault,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class BadHistory(ValueError):
    """A line that does not follow the format; the message names it."""


def parse(lines: Iterable[str]) -> list[Line]:
    """The history in JSON lines. Raises `BadHistory`."""
    history: list[Line] = []
    for number, text in enumerate(lines, 1):
        try:
            history.append(_line(json.loads(text)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadHistory(f"line {number}: {error}") from error
    if not history or not isinstance(history[0], Setting):
        raise BadHistory("line 1: a history begins with a line whose `what` is `history`")
    return history


def _line(told: dict[str, Any]) -> Line:
    kind = _KINDS[told.pop("what")]
    if "at" in told:
        at = told["at"]
        earliest, latest = at if isinstance(at, list) else (at, at)
        if not float(earliest) <= float(latest):
            raise ValueError(f"`at` ends before it begins: {at}")
        told["at"] = (float(earliest), float(latest))
    for name in ("voids", "conditional"):
        if name in told:
            told[name] = tuple(told[name])
    return kind(**told)  # type: ignore[no-any-return]


def write(line: Line) -> str:
    """One line of JSON, without its end. What is as by default is left out."""
    told: dict[str, Any] = {"what": _NAMES[type(line)]}
    for one in fields(line):
        value = getattr(line, one.name)
        if one.name == "at":
            value = value[0] if value[0] == value[1] else list(value)
        elif value == one.default or (one.name == "initial" and not value):
            continue
        told[one.name] = value
    return json.dumps(told)
