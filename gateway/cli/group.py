"""Commands with commands of their own."""

from __future__ import annotations

import click


class Group(click.Group):
    """Its help says the whole first sentence of each command, where click's would cut it to fit a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in found if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
