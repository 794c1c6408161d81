"""What commands print: tables for people (colour on a terminal, else plain lines), JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Sequence[str]
WIDEST_ALIGNED = 100
"""Characters of a cell that the others of its column are still aligned with, off a terminal."""


def print_json(value: object) -> None:
    """One JSON document, indented."""
    click.echo(_json(value, indent=2))


def json_line(value: object) -> str:
    """JSON in one line, without spaces."""
    return _json(value, separators=(",", ":"))


def _json(value: object, **form: Any) -> str:
    """Bytes that are no UTF-8, as an object's name may hold, stay escaped: nothing else can be printed of them."""
    return json.dumps(value, ensure_ascii=False, **form).encode("utf-8", "backslashreplace").decode()


def print_table(heads: Row, rows: Sequence[Row], styles: Sequence[str] | None = None) -> None:
    """A table with its heads; `styles` names a colour for each row. Nothing is ever cut off."""
    console = Console(highlight=False)
    clean = [[printable(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        _plain([list(heads), *clean])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for index, row in enumerate(clean):
        table.add_row(*map(Text, row), style=styles[index] if styles else "")
    console.print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names with what they are, one a line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {printable(value)}")


def moment(at: str | None) -> str:
    """A time of the control API for people, to the second; null is never."""
    return exact_moment(at)[:19]


def exact_moment(at: str | None) -> str:
    """The same to the millisecond."""
    return at.replace("T", " ").removesuffix("Z")[:23] if at else "never"


def printable(text: str) -> str:
    """Without what could steer a terminal: names in it come from whoever wrote an object."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _plain(rows: Sequence[Row]) -> None:
    """Aligned, but for cells so long that they would push all other lines apart."""
    widths = [max(n for n in map(len, column) if n <= WIDEST_ALIGNED) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
