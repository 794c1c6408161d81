"""`fencing-gateway`: its commands."""

from __future__ import annotations

import click

from gateway import __version__
from gateway.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencing-gateway")
def main() -> None:
    """An S3 proxy that refuses stale writes."""


main.add_command(serve)
