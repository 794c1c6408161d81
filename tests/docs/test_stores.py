"""docs/stores.md says of each store what the tests hold it to."""

from __future__ import annotations

import pytest

from gateway.cli.doctor import TITLES
from gateway.cli.guarantees import Holds
from gateway.upstream.examination import TOLD
from tests.contract import test_other_stores as others
from tests.docs.pages import page, rows, section
from tests.upstream.test_examination import EMBEDDED_LACKS

PAGE = page("stores.md")
COLUMNS: list[type[others.OtherStore] | None] = [
    None, others.TestRadosGw, others.TestMiniStack, others.TestMoto, others.TestRclone,
]  # fmt: skip
"""In the order of the page's tables; first the embedded store."""


@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_the_table_of_experiments(column: int) -> None:
    """Each experiment has a row, with what each store does."""
    store = COLUMNS[column]
    lacks = EMBEDDED_LACKS if store is None else store.LACKS
    told = {row[0]: row[column + 1] for row in rows(section(PAGE, "## What was tried out"))}
    expected = {TITLES[name]: "no" if name in lacks else "yes" for name in TOLD if name not in others.BY_CHANCE}
    assert {title: said for title, said in told.items() if title in expected} == expected
    assert told.keys() == set(TITLES.values())


@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_the_table_of_guarantees(column: int) -> None:
    """Each guarantee has a row, with how far it holds."""
    store = COLUMNS[column]
    not_held = {} if store is None else store.NOT_HELD
    told = {row[0]: row[column + 1] for row in rows(section(PAGE, "## Which guarantees hold"))}
    assert told == {f"G{n}": not_held.get(f"G{n}", Holds.YES) for n in range(6)}
