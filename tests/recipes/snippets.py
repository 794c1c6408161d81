"""The code of docs/tokens.md and docs/effects.md: what the pages show is what the tests run."""

from __future__ import annotations

import re
from typing import Any

from tests.docs.pages import DOCS, blocks


def shown(page: str, marker: str, language: str) -> str:
    """What a page shows under that marker, in that language."""
    found = [block.text for block in blocks(DOCS / page) if (block.marker, block.language) == (marker, language)]
    assert found, f"{page} shows no {language} under {marker}"
    return "\n".join(found)


def code(page: str, marker: str, *, psycopg: bool = False) -> dict[str, Any]:
    """The names that the Python shown under that marker defines; `psycopg`: changed as the page tells its readers."""
    source = shown(page, marker, "python")
    if psycopg:
        source = for_psycopg(source).replace("with database:", "with database.transaction():")
    names: dict[str, Any] = {}
    exec(compile(source, f"{page} {marker}", "exec"), names)
    return names


def for_psycopg(statement: str) -> str:
    """The statement with psycopg's parameters."""
    return re.sub(r"(?<![:\w]):([a-z]\w*)", r"%(\1)s", statement)
