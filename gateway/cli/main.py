"""`fencing-gateway`: its commands."""

from __future__ import annotations

from importlib import import_module

import click

from gateway import __version__
from gateway.cli.group import Group

COMMANDS = (
    "serve",
    "demo",
    "check-config",
    "doctor",
    "explain",
    "fence",
    "run",
    "lease",
    "job",
    "credentials",
    "trace",
    "status",
    "backup",
    "restore",
    "healthcheck",
)


class Commands(Group):
    """Each command is in the module of its name, imported when it is asked for: a question to a gateway need not wait
    until all that a gateway is made of has been loaded."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"gateway.cli.{name}"), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencing-gateway")
def main() -> None:
    """An S3 proxy that refuses stale writes."""
