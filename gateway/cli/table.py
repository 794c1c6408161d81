"""Tables for people: colour on a terminal, else plain lines.

Apart from `show.py`, since only what prints tables should have to load the library that draws them.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.show import printable

Row = Sequence[str]
WIDEST_ALIGNED = 100
"""Characters of a cell that the others of its column are still aligned with, off a terminal."""


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


def _plain(rows: Sequence[Row]) -> None:
    """Aligned, but for cells so long that they would push all other lines apart."""
    widths = [max(n for n in map(len, column) if n <= WIDEST_ALIGNED) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
