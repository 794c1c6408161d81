"""`fencing-gateway healthcheck`, for supervisors that ask by a command, as the container image's."""

from __future__ import annotations

import click

from gateway.cli.control_client import ControlClient, control_command
from gateway.cli.show import print_json


@click.command()
@control_command
def healthcheck(client: ControlClient, as_json: bool) -> None:
    """Whether a gateway answers, ready or not. Exit status 3 if none does."""
    answer = client.check_alive()
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["status"])
