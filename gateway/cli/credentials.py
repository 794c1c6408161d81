"""`fencing-gateway credentials`: what AWS SDKs run as their `credential_process`, for the lease that they are given.

The document is AWS's (AWS SDKs and Tools Reference Guide, "Process credential provider").
"""

from __future__ import annotations

from typing import TypeVar

import click
import orjson

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.options import TokenType
from gateway.cli.program.environment import KEY_VARIABLE, TOKEN_VARIABLE
from gateway.client.calls import lease_path

T = TypeVar("T")


def _needed(ctx: click.Context, param: click.Parameter, value: T | None) -> T:
    if value is None:
        raise click.UsageError(f"no lease is named: {param.envvar} is not set, and no {param.opts[0]} was given")
    return value


@click.command()
@click.option("--key", envvar=KEY_VARIABLE, show_envvar=True, callback=_needed, help="The lease's key.")
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    type=TokenType(),
    callback=_needed,
    help="The lease's token.",
)
@control_command
def credentials(client: ControlClient, as_json: bool, key: str, token: int) -> None:
    """AWS credentials for the lease in FENCING_KEY and FENCING_TOKEN, as `credential_process` wants them: JSON.

    Never takes a lease: once that one is lost it gives none, and ends with 1."""
    given = client.ask("POST", f"{lease_path(key)}/credentials", {"token": str(token)})["credentials"]
    document = {
        "Version": 1,
        "AccessKeyId": given["access_key_id"],
        "SecretAccessKey": given["secret_access_key"],
        "SessionToken": given["session_token"],
        "Expiration": given["expires_at"],
    }
    click.echo(orjson.dumps(document).decode())
