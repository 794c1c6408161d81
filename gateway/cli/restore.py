"""`fencing-gateway restore`: a backup in the place of a gateway's database."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gateway.cli.settings import REFUSED, config_options, fail, settings_of
from gateway.cli.show import print_facts, print_json
from gateway.cli.table import print_table
from gateway.clock import SystemClock
from gateway.core.keys import token_in_json
from gateway.server.assemble import store_path
from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite.backup import DatabaseThere, Restored
from gateway.stores.sqlite.backup import restore as put_in_place


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace a database that is there. It is kept beside, and no floor falls.")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(file: Path, force: bool, config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Put the backup FILE in the place of the database that the configuration names, while its gateway is stopped.

    A restored database is another one, of the next generation: what is fenced in a bucket that bears a record is
    refused until `fencing-gateway fence rebuild` has restored its floors from the objects."""
    target = store_path(settings_of(config, assignments, as_json=as_json))
    try:
        restored = put_in_place(file, target, SystemClock().wall(), force=force)
        _give_away(target)
    except DatabaseThere as error:
        remedy = "To replace it, say --force: it is kept beside, and what it knows is taken over"
        fail(f"{error}. {remedy}", REFUSED, as_json=as_json)
    except StoreUnavailable as error:
        fail(str(error), REFUSED, as_json=as_json)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}", REFUSED, as_json=as_json)
    if as_json:
        print_json(_document(restored, target))
        return
    _print(restored, target)


def _give_away(target: Path) -> None:
    """What root has put there is to be opened by the gateway's user, whose the directory is. He may have put links
    there himself: they are not followed."""
    if os.geteuid() != 0:
        return
    target = target.resolve()
    owner = target.parent.stat()
    for path in (target, target.with_name(target.name + ".lock")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _document(restored: Restored, target: Path) -> dict[str, object]:
    contents = restored.contents
    return {
        "database": str(target),
        "made": contents.made or None,
        "keys": contents.keys,
        "raised": restored.raised,
        "raised_keys": [
            {"key": one.key, "before": token_in_json(one.floor), "floor": token_in_json(one.token)}
            for one in restored.found
        ],
        "kept": str(restored.kept) if restored.kept else None,
        "unreadable": restored.unreadable,
        "to_rebuild": contents.buckets,
    }


def _print(restored: Restored, target: Path) -> None:
    contents = restored.contents
    facts = [("Database", str(target)), ("Backup of", contents.made or "unknown: a plain copy"),
             ("Keys", str(contents.keys))]  # fmt: skip
    if restored.kept:
        facts.append(("Replaced", f"kept as {restored.kept}"))
    if restored.raised is not None:
        facts.append(("Floors raised", f"{restored.raised}, to what it knew"))
    print_facts(facts)
    if restored.found:
        click.echo()
        print_table(("KEY", "FLOOR"), [(one.key, f"{one.floor} -> {one.token}") for one in restored.found])
    if (more := (restored.raised or 0) - len(restored.found)) > 0:
        click.echo(f"… and {more} more: `fencing-gateway fence list`, once the gateway runs")
    if restored.unreadable:
        click.echo(
            f"\nThe database that was there could not be read, so nothing of it is taken over: {restored.unreadable}"
        )
    click.echo(
        "\nThis is another database now. Start the gateway; before it serves anything fenced in a bucket that was "
        "fenced before, its floors have to be rebuilt:"
    )
    for bucket in contents.buckets or ("BUCKET",):
        click.echo(f"  fencing-gateway fence rebuild --bucket {bucket}")
