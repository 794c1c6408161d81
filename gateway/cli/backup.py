"""`fencing-gateway backup`: a consistent copy of a running gateway's database."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.settings import REFUSED, fail
from gateway.cli.show import print_json
from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite.backup import contents_of
from gateway.stores.sqlite.database import sync_directory


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@control_command
def backup(client: ControlClient, as_json: bool, file: Path, force: bool) -> None:
    """Copy the database of a running gateway to FILE. It goes on meanwhile; the copy is of one moment, and checked."""
    if file.exists() and not force:
        fail(f"{file} exists: name another file, or say --force", REFUSED, as_json=as_json)
    part = file.with_name(file.name + ".part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            size_bytes = sum(map(target.write, client.backup()))
            target.flush()
            os.fsync(target.fileno())
        contents = contents_of(part)
        part.replace(file)
        sync_directory(file.parent)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", REFUSED, as_json=as_json)
    except StoreUnavailable as error:
        fail(f"what the gateway sent is no sound backup: {error}", REFUSED, as_json=as_json)
    finally:
        part.unlink(missing_ok=True)
    if as_json:
        print_json(
            {"file": str(file), "bytes": size_bytes, "made": contents.made, "keys": contents.keys,
             "generation": contents.generation, "buckets": contents.buckets}
        )  # fmt: skip
        return
    click.echo(f"Done: {file}, {size_bytes} bytes, {contents.keys} keys as of {contents.made}.")
