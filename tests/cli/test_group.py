"""What `--help` says of commands."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from gateway.cli.main import main
from tests.gateway_process import command


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with the words that call them, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, *path, name)


@pytest.mark.parametrize("group", [(), ("fence",), ("lease",), ("job",)])
def test_no_summary_is_cut(group: tuple[str, ...]) -> None:
    """The first sentence of each command is there to its end, over as many lines as it takes."""
    told = command(*group, "--help").stdout.partition("Commands:")[2]
    assert told
    assert "..." not in told


def test_all_commands_that_print_do_so_as_json() -> None:
    """Without `--json` are those alone whose output is that of the program that they run."""
    without = {
        " ".join(words)
        for words, found in commands(main)
        if not isinstance(found, click.Group) and "--json" not in {o for given in found.params for o in given.opts}
    }
    assert without == {"run", "job work"}


def test_every_command_and_option_says_what_it_is_for() -> None:
    """None is without its line of help, which names the environment variable that stands in for an option."""
    mute = [
        (words, given.name)
        for words, found in commands(main)
        for given in found.params
        if isinstance(given, click.Option) and not given.help
    ]
    assert not mute
    hidden = [
        (words, given.name)
        for words, found in commands(main)
        for given in found.params
        if isinstance(given, click.Option) and given.envvar and not given.show_envvar
    ]
    assert not hidden
    assert not [words for words, found in commands(main) if not found.help]
