"""What all commands that run programs under leases have in common on their command line."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from gateway.cli.options import Seconds
from gateway.cli.program.environment import ENDPOINT_VARIABLES
from gateway.cli.settings import fail
from gateway.client.engine import PATIENCE_S


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--holder`, `--patience`, `--grace` and `--endpoint`, for commands that work under leases."""
    for option in (
        click.option(
            "--endpoint",
            envvar=ENDPOINT_VARIABLES,
            show_envvar=True,
            help="The S3 endpoint for the command's environment, if not the one that the gateway names.",
        ),
        click.option(
            "--grace",
            "grace_s",
            type=Seconds(min=0),
            default=5.0,
            show_default=True,
            help="Seconds between SIGTERM and SIGKILL; at most a quarter of the lease.",
        ),
        click.option(
            "--patience",
            "patience_s",
            type=Seconds(min=0),
            default=PATIENCE_S,
            show_default=True,
            help="Seconds to go on trying where no gateway answers, or one that restarts.",
        ),
        click.option("--holder", help="Who others are told holds the lease; by default this host and process."),
    ):
        command = option(command)
    return command


def require_process_groups() -> None:
    """An exit with status 2 where there are none."""
    if os.name != "posix":
        fail("this command needs the process groups of POSIX")
