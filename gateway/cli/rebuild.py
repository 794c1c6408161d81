"""`fencing-gateway fence rebuild`: make a bucket this gateway's, with the floors that its objects tell."""

from __future__ import annotations

import sys
from urllib.parse import quote

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.settings import REFUSED, fail
from gateway.cli.show import print_facts, print_json, printable
from gateway.cli.table import print_table
from gateway.client.errors import Json

WAIT_S = 2.0
"""So often at least one hears of a rebuild that goes on."""


@click.command()
@click.option("--bucket", required=True, metavar="TEXT", help="The bucket.")
@control_command
def rebuild(client: ControlClient, as_json: bool, bucket: str) -> None:
    """Restore the floors of a bucket from its objects, and make this gateway's database the one that rules it.

    For a gateway with a new or restored database, or one that takes over from another: until then it refuses what is
    fenced in the bucket. It may be broken off and called again at any time; the gateway goes on by itself."""
    target = f"/v1/buckets/{quote(bucket, safe='')}/rebuild"
    progress = client.ask("POST", target, {})
    told = ""
    while progress["phase"] not in ("done", "failed"):
        if (line := _line(progress)) != told:
            click.echo(line, err=True)
            told = line
        progress = client.ask("GET", f"{target}?wait_s={WAIT_S:g}")
    if as_json:
        print_json(progress)
        sys.exit(REFUSED if progress["error"] else 0)
    if progress["error"]:
        fail(
            printable(f"bucket {bucket} is not rebuilt: {progress['error']}. Called again, it goes on where it was"),
            REFUSED,
        )
    _print(progress)


def _line(progress: Json) -> str:
    match progress["phase"]:
        case "waiting":
            return f"Waiting {progress['waits_s']:.0f} s until nothing can land any more that was sent before …"
        case "looking":
            return f"Looking at the objects: {progress['objects']}, floors raised: {progress['raised']} …"
    return "Claiming the bucket …"


def _print(progress: Json) -> None:
    print_facts(
        [
            ("Bucket", progress["bucket"]),
            ("Was ruled by", progress["adopted"] or "nobody else"),
            ("Generation", str(progress["generation"])),
            ("Objects looked at", f"{progress['objects']}, with a token {progress['fenced']}"),
            ("Floors raised", str(progress["raised"])),
            ("Owners recorded", f"{progress['owners']}, of objects without a rule"),
        ]
    )
    if progress["raised_keys"]:
        click.echo()
        rows = [(one["key"], f"{one['before']} -> {one['floor']}") for one in progress["raised_keys"]]
        print_table(("KEY", "FLOOR"), rows)
        if progress["raised"] > len(rows):
            click.echo(f"… and {progress['raised'] - len(rows)} more: `fencing-gateway fence list`")
    if progress["unreadable"]:
        click.echo(
            f"\n{progress['unreadable']} objects cannot be looked at without their writer's encryption key, so their "
            "tokens are not known. Raise the floors of their jobs by `fencing-gateway fence raise`:"
        )
        for name in progress["unreadable_objects"]:
            click.echo(f"  {printable(name)}")
