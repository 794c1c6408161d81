"""The documentation as data: pages, their blocks of code, tables, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>\w+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code. `marker` is the comment above it: `run` for what is run, `prints` for what that prints."""

    page: Path
    line: int
    language: str
    text: str
    marker: str | None

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def page(name: str) -> str:
    """The text of a page below docs/."""
    return (DOCS / name).read_text()


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    return [
        Block(path, text.count("\n", 0, m.start()) + 1, m["language"], m["text"], m["marker"])
        for m in _BLOCK.finditer(text)
    ]


def prose(text: str) -> str:
    """Without the blocks of code."""
    return _BLOCK.sub("", text)


def section(text: str, heading: str) -> str:
    """The prose below a heading, up to the next of the same or a higher level."""
    text = prose(text)
    level, _, _ = heading.partition(" ")
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE).search(text, start)
    return text[start : end.start() if end else len(text)]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row but heads and rulers."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and re.fullmatch(r"\|[-| ]+\|", lines[number + 1])
        if line.startswith("|") and not is_head and not re.fullmatch(r"\|[-| ]+\|", line):
            yield [cell.strip() for cell in _CELLS.split(line)[1:-1]]


def codes(text: str) -> list[str]:
    """What stands in backticks."""
    return _CODE.findall(text)


def first_codes(text: str) -> list[str]:
    """What stands in backticks in the first cell of each row."""
    return [code for row in rows(text) for code in codes(row[0])]


def links(text: str) -> list[str]:
    return _LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in _HEADING.findall(prose(text)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}
