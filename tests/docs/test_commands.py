"""Every command that a page names is one."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gateway.cli import main
from tests.docs.pages import PAGES, name_of

_NAMED = re.compile(r"(?:`|^ *|\$ |-- )fencing-gateway ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=name_of)
def test_commands_exist(path: Path) -> None:
    """`fencing-gateway COMMAND`, and its subcommand where it is a group of them."""
    context = click.Context(main)
    for name, below in _NAMED.findall(path.read_text()):
        command = main.get_command(context, name)
        assert command is not None, f"fencing-gateway {name}"
        if below and isinstance(command, click.Group):
            assert command.get_command(context, below) is not None, f"fencing-gateway {name} {below}"


def test_commands_are_found() -> None:
    """A page without a command proves nothing."""
    named = {found for path in PAGES for found in _NAMED.findall(path.read_text())}
    assert {("run", ""), ("job", "work"), ("fence", "raise")} <= named
