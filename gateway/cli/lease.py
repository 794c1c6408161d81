"""`fencing-gateway lease`: leases for scripts that renew them themselves. `fencing-gateway run` does all of it."""

from __future__ import annotations

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.group import Group
from gateway.cli.options import LONGEST_WAIT, Seconds, TokenType, caller, repeat_option
from gateway.cli.show import moment, print_facts, print_json
from gateway.cli.table import print_table
from gateway.client.calls import lease_path
from gateway.client.errors import Json
from gateway.clock import SystemClock
from gateway.core.keys import token_in_json


@click.group(cls=Group)
def lease() -> None:
    """Acquire, renew, give back and look at leases."""


@lease.command()
@click.argument("key")
@click.option(
    "--ttl",
    "ttl_s",
    type=Seconds(min=0.1),
    default=30.0,
    show_default=True,
    help="Seconds until the lease runs out, unless it is renewed.",
)
@click.option("--wait", "wait_s", type=Seconds(min=0), default=0.0, help=LONGEST_WAIT)
@click.option("--holder", help="Who others are told holds it; by default this host and process.")
@repeat_option("the command is given the same lease.")
@control_command
def acquire(
    client: ControlClient,
    as_json: bool,
    key: str,
    ttl_s: float,
    wait_s: float,
    holder: str | None,
    idempotency_key: str | None,
) -> None:
    """Acquire the lease on KEY. Who holds it must renew it before --ttl is over, and stop when he cannot.

    --json shows its S3 credentials, too."""
    body = {"holder": holder or caller(), "ttl_s": ttl_s, "wait_s": wait_s}
    answer = client.ask(
        "POST", lease_path(key), body, wait_s=wait_s, repeat_key=idempotency_key or SystemClock().nonce()
    )
    if as_json:
        print_json(answer)
        return
    facts = [
        ("Key", answer["key"]),
        ("Token", str(answer["token"])),
        ("Holder", answer["holder"]),
        ("Expires in", f"{answer['expires_in_s']:.1f} s, unless it is renewed"),
    ]
    if "output" in answer:
        facts.append(("Output", answer["output"]))
    print_facts(facts)


@lease.command()
@click.argument("key")
@click.argument("token", type=TokenType())
@control_command
def renew(client: ControlClient, as_json: bool, key: str, token: int) -> None:
    """Renew the lease of TOKEN on KEY. Exit status 1 if it is lost."""
    answer = client.ask("POST", lease_path(key) + "/renew", {"token": str(token)})
    if as_json:
        print_json(answer)
        return
    click.echo(f"Renewed: {answer['expires_in_s']:.1f} s from before this command was run.")


@lease.command()
@click.argument("key")
@click.argument("token", type=TokenType())
@control_command
def release(client: ControlClient, as_json: bool, key: str, token: int) -> None:
    """Give back the lease of TOKEN on KEY: its token is refused from now on, the floor stays."""
    client.ask("DELETE", f"{lease_path(key)}?token={token}")
    if as_json:
        print_json({"key": key, "token": token_in_json(token), "released": True})
        return
    click.echo(f"Done: token {token} is sealed; the key is free.")


@lease.command("list")
@click.option("--prefix", default="", help="Only on keys that begin with this.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many; all without it.")
@control_command
def list_leases(client: ControlClient, as_json: bool, prefix: str, limit: int | None) -> None:
    """The leases that are held, by key."""
    answer = client.pages("/v1/leases", "leases", "after", limit, {"prefix": prefix} if prefix else {})
    if as_json:
        print_json(answer)
        return
    rows = [
        (one["key"], str(one["token"]), one["holder"], _left(one), moment(one["granted_at"]))
        for one in answer["leases"]
    ]
    print_table(("KEY", "TOKEN", "HOLDER", "LEFT", "GRANTED (UTC)"), rows)
    if answer["next"] is not None:
        click.echo("There are more: raise --limit, or leave it away.", err=True)


def _left(one: Json) -> str:
    if one["pending"]:
        return "hand-over pending"
    return f"{one['expires_in_s']:.1f} s" if one["expires_in_s"] else "run out, not taken"
