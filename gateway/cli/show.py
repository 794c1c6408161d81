"""What commands print: facts for people, JSON for programs. Tables are in `table.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click


def print_json(value: object) -> None:
    """One JSON document, indented."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """The same, to be printed."""
    return _json(value, indent=2)


def json_line(value: object) -> str:
    """JSON in one line, without spaces."""
    return _json(value, separators=(",", ":"))


def _json(value: object, **form: Any) -> str:
    """Bytes that are no UTF-8, as an object's name may hold, stay escaped: nothing else can be printed of them."""
    return json.dumps(value, ensure_ascii=False, **form).encode("utf-8", "backslashreplace").decode()


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names with what they are, one a line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {printable(value)}")


def tell(message: str) -> None:
    """Say it on standard error. Where that takes nothing, as on a full disk, or when its reader has gone, what is to be
    done and the exit status stay what they are."""
    with suppress(OSError):
        click.echo(f"fencing-gateway: {message}", err=True)


def moment(at: str | None) -> str:
    """A time of the control API for people, to the second; null is never."""
    return exact_moment(at)[:19]


def exact_moment(at: str | None) -> str:
    """The same to the millisecond."""
    return at.replace("T", " ").removesuffix("Z")[:23] if at else "never"


def printable(text: str) -> str:
    """Without what could steer a terminal: names in it come from whoever wrote an object."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
