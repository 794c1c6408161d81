"""`fencing-gateway`: its commands."""

from __future__ import annotations

import click

from gateway import __version__
from gateway.cli.check_config import check_config
from gateway.cli.demo import demo
from gateway.cli.fence import fence
from gateway.cli.serve import serve
from gateway.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencing-gateway")
def main() -> None:
    """An S3 proxy that refuses stale writes."""


for command in (serve, demo, check_config, fence, status):
    main.add_command(command)
