"""`fencing-gateway healthcheck`, for supervisors that ask by a command, as the container image's."""

from __future__ import annotations

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.show import print_json, printable, tell
from gateway.client.errors import Distrusted


@click.command()
@control_command
def healthcheck(client: ControlClient, as_json: bool) -> None:
    """Whether a gateway answers, ready or not, and whatever its certificate. Exit status 3 if none does."""
    try:
        answer = client.ask("GET", "/healthz")
    except Distrusted as distrusted:
        # To end it would help nobody: the files may have been renewed and not been read again, or have expired.
        tell(printable(str(distrusted)))
        answer = {"status": "not believed"}
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["status"])
