"""The table of rules and harms in `docs/model.md`."""

from __future__ import annotations

from pathlib import Path

from tests.model.explore import Found, explore
from tests.model.rules_off import NOT_HERE, SWITCHES, Switch

PAGE = Path(__file__).parents[2] / "docs" / "model.md"
BEGIN, END = "<!-- rules: written by `make model` -->", "<!-- end of rules -->"


def harm(switch: Switch) -> Found:
    """What comes of the rule's absence."""
    with switch.off():
        return explore(switch.size)


def table(found: list[Found]) -> str:
    """One row for each switch, in their order."""
    rows = ["| rule | taken away | in | harm | steps | states |", "|---|---|---|---|---|---|"]
    for switch, one in zip(SWITCHES, found, strict=True):
        told = str(one.violation) if one.violation is not None else "none found"
        rows.append(f"| {switch.rule} | {switch.what} | {switch.where} | {told} | {one.depth} | {one.states} |")
    rows += [f"| {rule} | | not here | {why} | | |" for rule, why in NOT_HERE.items()]
    return "\n".join(rows)


def written() -> str:
    """The table as the page has it."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()


def write(rows: str) -> None:
    """Put the table into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}")
