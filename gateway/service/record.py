"""What a bucket's record says, as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.stores.base import MAX_GENERATION

MAX_LAPSE_S = 300.0
"""The longest that any gateway may go without a look at its record."""

_VERSION = 1
_NAME = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Record:
    """Who rules a bucket."""

    database: str
    generation: int
    run: str
    nonce: str
    """No two records bear the same, so that none is ever taken for another."""
    rebuilding: bool
    """The bucket has been claimed; nothing fenced is served until its floors are rebuilt."""
    lapse_s: float
    """How long its owner goes on without having seen it; of a claim, any owner before it, too."""
    written: str
    """When, by its writer's clock; for people."""

    @property
    def owner(self) -> str:
        """For people."""
        return f"database {self.database[:8]}, generation {self.generation}, which wrote its record at {self.written}"


def render_record(record: Record) -> bytes:
    """As it is stored."""
    told = {"version": _VERSION, "note": "Written by fencing-gateway; do not delete."} | asdict(record)
    return orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n"


def parse_record(data: bytes) -> Record:
    """Raises ValueError, with what is wrong, for anything that `render_record` of this version has not written."""
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    if not isinstance(told, dict) or told.get("version") != _VERSION:
        raise ValueError(f"it is no record of version {_VERSION}, the only one that this gateway knows")
    names = [_checked(told, name, lambda v: isinstance(v, str) and _NAME.fullmatch(v)) for name in _NAMES]
    generation = _checked(told, "generation", lambda v: type(v) is int and 0 <= v <= MAX_GENERATION)
    lapse_s = _checked(told, "lapse_s", lambda v: type(v) in (int, float) and 0 < v <= MAX_LAPSE_S)
    rebuilding = _checked(told, "rebuilding", lambda v: isinstance(v, bool))
    database, run, nonce, written = names
    return Record(database, generation, run, nonce, rebuilding, float(lapse_s), written)


_NAMES = ("database", "run", "nonce", "written")


def _checked(told: dict[str, Any], name: str, holds: Any) -> Any:
    if not holds(told.get(name)):
        raise ValueError(f"its {name!r} is not what it has to be")
    return told[name]


def time_of(seconds: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
