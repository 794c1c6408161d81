"""Two answers to one step, side by side: what is left of their differences once the explained ones are taken away."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gateway.core.names import climbs, filed_name, names_folder, names_own_file
from tests.differential.memory import Memory
from tests.differential.steps import Fence, Step
from tests.differential.wire import Answer

_DATE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_HTTP_DATE = re.compile(rb"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_ERROR_CODE = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?<Error>.*?<Code>([A-Za-z0-9]+)</Code>", re.DOTALL)
OWN_FIELDS = frozenset({b"content-type", b"content-length", b"connection", b"retry-after", b"x-amz-retry-after"})
"""Of an error that the gateway has written itself."""


@dataclass(frozen=True)
class Shown:
    """An answer as it is compared: names in lower case, and sorted by them; a side's own ids by their common names."""

    status: int
    reason: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    interim: tuple[int, ...] = ()

    @classmethod
    def of(cls, answer: Answer, memory: Memory) -> Shown:
        """Field names are case-insensitive, and the order of fields of different names says nothing (RFC 9110, 5.1
        and 5.3); of one name they stay in theirs."""
        fields = sorted(((n.lower(), memory.named(v)) for n, v in answer.fields), key=lambda pair: pair[0])
        return cls(answer.status, answer.reason, tuple(fields), memory.named(answer.body), answer.interim)

    def get(self, name: bytes) -> bytes | None:
        return next((value for n, value in self.fields if n == name), None)

    def without(self, *names: bytes) -> Shown:
        """Less the fields whose names begin so."""
        return replace(self, fields=tuple(pair for pair in self.fields if not pair[0].startswith(names)))

    def dated(self, name: bytes) -> Shown:
        """The field's value is a date, whichever."""
        fields = tuple((n, b"<date>" if n == name and _HTTP_DATE.fullmatch(v) else v) for n, v in self.fields)
        return replace(self, fields=fields)

    def with_body(self, pattern: bytes, by: bytes) -> Shown:
        return replace(self, body=re.sub(pattern, by, self.body, flags=re.DOTALL))

    def rewritten(self) -> Shown:
        """However an XML writer may have spelt the body."""
        body = self.body.replace(b"&#34;", b'"').replace(b"&#39;", b"'")
        body = re.sub(rb"&#x([0-9A-F]+);", lambda m: b"&#%d;" % int(m[1], 16), body)
        return replace(self, body=re.sub(rb"<Error>(.*?)</Error>", _in_one_order, body, flags=re.DOTALL))

    def sorted(self, pattern: bytes) -> Shown:
        """The elements in one order."""
        found = sorted(re.findall(pattern, self.body, re.DOTALL))
        return replace(self, body=re.sub(pattern, b"", self.body, flags=re.DOTALL) + b"".join(found))

    @property
    def code(self) -> bytes | None:
        """Of an S3 error document."""
        found = _ERROR_CODE.match(self.body)
        return found[1] if found else None


def _in_one_order(element: re.Match[bytes]) -> bytes:
    return b"<Error>" + b"".join(sorted(re.findall(rb"<\w+>[^<]*</\w+>", element[1]))) + b"</Error>"


@dataclass
class Exchange:
    """One step's answers. Allowed differences are taken out of both."""

    step: Step
    fence: Fence
    direct: Shown
    through: Shown
    keys: tuple[str, ...] = ()
    """The object keys of the request: its own, a copy source's."""
    upload: frozenset[str] = frozenset()
    """What had become of the upload that the request names before it was sent (`Memory.of_upload`)."""
    again: bool = False
    """The gateway was asked twice, since it had said that the object's state had moved."""
    behind: bool = False
    """`through` was read from the store behind the gateway, past it."""
    used: list[str] = field(default_factory=list)
    parted: bool = False
    """One side has done what the other, for an allowed reason, has not: what follows cannot be compared."""

    def both(self, change: str, *arguments: object) -> bool:
        """Apply a method of `Shown` to both; whether it changed any."""
        before = self.direct, self.through
        self.direct = getattr(self.direct, change)(*arguments)
        self.through = getattr(self.through, change)(*arguments)
        return before != (self.direct, self.through)

    @property
    def names_no_object(self) -> bool:
        """The key, or a copy source's, is none of an object's where objects are filed as paths."""
        named = [key for key in self.keys if key]
        return any(not filed_name(key) or names_folder(key) or names_own_file(key) or climbs(key) for key in named)

    @property
    def own_error(self) -> bool:
        """The answer through the gateway is an error that it has written itself: the store's bear more fields."""
        own = (b"x-fencing-", b"access-control-")
        names = {name for name, _ in self.through.fields if not name.startswith(own)} - {b"vary"}
        return self.through.status >= 400 and names <= OWN_FIELDS

    def agree(self) -> bool:
        """Take all of both answers out. Where only one side has done something, or may have, they have parted."""
        self.parted = (self.direct.status < 300) != (self.through.status < 300) or self.direct.status >= 500
        self.direct = self.through = Shown(0, b"", (), b"")
        return True

    def part(self) -> bool:
        """Take all of both answers out, and compare nothing that follows."""
        self.agree()
        self.parted = True
        return True

    def differences(self) -> list[str]:
        """One line for each thing that differs."""
        found = []
        for name in ("status", "reason", "interim"):
            one, other = getattr(self.direct, name), getattr(self.through, name)
            if one != other:
                found.append(f"{name}: {one!r} directly, {other!r} through")
        only_direct = [pair for pair in self.direct.fields if pair not in self.through.fields]
        only_through = [pair for pair in self.through.fields if pair not in self.direct.fields]
        found += [f"directly only: {name.decode()}: {value!r}" for name, value in only_direct]
        found += [f"through only: {name.decode()}: {value!r}" for name, value in only_through]
        if self.direct.fields != self.through.fields and not only_direct and not only_through:
            found.append(f"fields: {self.direct.fields} directly, {self.through.fields} through")
        if self.direct.body != self.through.body:
            found.append(f"body: {_around(self.direct.body, self.through.body)}")
        return found


def _around(one: bytes, other: bytes) -> str:
    """Both bodies from shortly before the place where they part."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - 60)
    return (
        f"{len(one)} and {len(other)} bytes, differ at {at}:\n"
        f"      directly …{one[start : at + 400]!r}\n      through  …{other[start : at + 400]!r}"
    )


def undated(body: bytes) -> bytes:
    """Without the instants in it: the sides are asked one after the other."""
    return _DATE.sub(b"<date>", body)
