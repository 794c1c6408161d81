"""Statements that the writer runs by themselves, beside what is decided of fences and jobs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import aiosqlite

from gateway.stores.sqlite.statements import Row, Values
from gateway.stores.sqlite.writer import Writer

FORGOTTEN_AT_ONCE = 1000
"""Rows in one transaction: about 10 ms."""


async def execute(statement: str, values: Values, connection: aiosqlite.Connection) -> list[Row]:
    """All rows at once: a cursor that lives on would make the next COMMIT fail."""
    return list(await connection.execute_fetchall(statement, values))


async def forget_before(
    writer: Writer, statement: str, before: float, committed: Callable[[list[Row]], None] = lambda _: None
) -> int:
    """Delete by `statement` what is older than wall-clock time `before`, little by little, with others' commits
    between; `committed` is told of what has gone. Answers how many rows."""
    write = partial(execute, statement, {"before": before, "limit": FORGOTTEN_AT_ONCE})
    total = 0
    while forgotten := await writer.change_rows(write, committed):
        total += len(forgotten)
    return total
