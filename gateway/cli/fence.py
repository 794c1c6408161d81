"""`fencing-gateway fence`: what the gateway knows of a fence key, and the operator's ways to shut tokens out."""

from __future__ import annotations

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.group import Group
from gateway.cli.options import TokenType
from gateway.cli.rebuild import rebuild
from gateway.cli.show import exact_moment, print_facts, print_json, printable
from gateway.cli.show_fence import (
    STYLE_OF_KIND,
    detail_of,
    floor_facts,
    meaning,
    print_fences,
    print_hindrances,
    print_left,
    print_unsettled,
    tokens_of,
    unless_observed,
    waiting,
)
from gateway.cli.table import print_table
from gateway.client.calls import fence_path
from gateway.client.errors import Json


@click.group(cls=Group)
def fence() -> None:
    """Look at fence keys, and shut tokens out."""


fence.add_command(rebuild)


@fence.command("list")
@click.option("--prefix", default="", help="Only the keys that begin with this.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many; all without it.")
@control_command
def list_fences(client: ControlClient, as_json: bool, prefix: str, limit: int | None) -> None:
    """The keys that have a floor, in order."""
    answer = client.pages("/v1/fences", "fences", "after", limit, {"prefix": prefix} if prefix else {})
    if as_json:
        print_json(answer)
        return
    print_fences(answer["fences"])
    if answer["next"] is not None:
        click.echo("There are more: raise --limit, or leave it away.", err=True)


@fence.command("show")
@click.argument("key")
@control_command
def show_fence(client: ControlClient, as_json: bool, key: str) -> None:
    """Which token holds KEY, and what may still take effect."""
    answer = client.fence(key)
    if as_json:
        print_json(answer)
        return
    print_facts([("Key", answer["key"]), *floor_facts(answer), ("Meaning", meaning(answer) + unless_observed(answer))])
    earlier_s = answer.get("earlier_run_settles_in_s")
    if answer["handover"] is not None:
        click.echo(f"\n{waiting(answer['handover'])}")
    if answer["unsettled"]:
        click.echo("\nSent to the store, and not settled:")
        print_unsettled(answer["unsettled"])
    elif earlier_s is None:
        click.echo("\nNothing is unsettled: no write of this key is on its way to the store.")
    if earlier_s is not None:
        click.echo(
            f"\nWhat an earlier run of the gateway sent may still land for {earlier_s:.0f} s: "
            "tokens above the completed floor wait"
        )
    print_hindrances(client)


@fence.command("events")
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@control_command
def events(client: ControlClient, as_json: bool, key: str, limit: int) -> None:
    """The history of KEY, newest first: who was refused, when, and which token was in the way."""
    answer = client.pages(f"{fence_path(key)}/events", "events", "before", limit, {})
    if as_json:
        print_json(answer)
        return
    told = answer["events"]
    if not told:
        click.echo(
            f"{printable(key)} has no history. Is that the key? Without a rule an object's is object:BUCKET/KEY; "
            "`fencing-gateway explain s3://BUCKET/KEY` tells it."
        )
        return
    rows = [(exact_moment(e["at"]), e["kind"], tokens_of(e), detail_of(e), e["request_id"]) for e in told]
    styles = [STYLE_OF_KIND.get(e["kind"], "") for e in told]
    print_table(("AT (UTC)", "WHAT", "TOKEN", "WHY", "REQUEST"), rows, styles)
    if answer["next"] is not None:
        click.echo("There are older ones: raise --limit.", err=True)


@fence.command("raise")
@click.argument("key")
@click.argument("token", type=TokenType())
@click.option("--reason", required=True, help="Why, for the key's history.")
@control_command
def raise_floor(client: ControlClient, as_json: bool, key: str, token: int, reason: str) -> None:
    """Shut out every token of KEY below TOKEN. There is no way back: a floor never falls."""
    answer = client.ask("POST", f"{fence_path(key)}/raise", {"token": str(token), "reason": reason})
    if as_json:
        print_json(answer)
        return
    click.echo(f"Done: no write with a token below {answer['floor']} takes effect any more{unless_observed(answer)}.")
    print_hindrances(client)


@fence.command("settle")
@click.argument("key")
@click.option("--token", type=TokenType(), help="Only what this token has in doubt.")
@click.option("--reason", required=True, help="Why it can take effect no more, for the key's history.")
@control_command
def settle(client: ControlClient, as_json: bool, key: str, token: int | None, reason: str) -> None:
    """Count what KEY has in doubt as settled: hand-overs wait for it no longer.

    Only where it is certain that the store has dropped it, as after its own restart: what lands all the same replaces
    what a higher token has written."""
    answer = client.ask("POST", f"{fence_path(key)}/settle", _said(token, reason))
    if as_json:
        print_json(answer)
        return
    for send in answer["settled"]:
        click.echo(f"Settled: token {send['token']} on {printable(send['bucket'] + '/' + send['object'])}.")
    if not answer["settled"]:
        click.echo("Nothing was in doubt; nothing has been changed.")
    print_left(answer)


@fence.command("seal")
@click.argument("key")
@click.option("--token", type=TokenType(), help="Only if this token holds the floor.")
@click.option("--reason", required=True, help="Why, for the key's history.")
@control_command
def seal(client: ControlClient, as_json: bool, key: str, token: int | None, reason: str) -> None:
    """Shut out the token that holds the floor of KEY, too."""
    answer = client.ask("POST", f"{fence_path(key)}/seal", _said(token, reason))
    if as_json:
        print_json(answer)
        return
    click.echo(f"Done: token {answer['floor']} is sealed; a write needs a higher one.")
    print_left(answer)
    print_hindrances(client)


def _said(token: int | None, reason: str) -> Json:
    return {"reason": reason} if token is None else {"token": str(token), "reason": reason}
