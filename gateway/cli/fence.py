"""`fencing-gateway fence`: what the gateway knows of a fence key, and the operator's ways to shut tokens out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from gateway.cli.control_client import ControlClient, Json, control_command
from gateway.cli.group import Group
from gateway.cli.rebuild import rebuild
from gateway.cli.show import exact_moment, moment, print_facts, print_json, printable
from gateway.cli.table import print_table
from gateway.clock import SystemClock
from gateway.core.errors import Malformed
from gateway.core.keys import parse_token

STYLE_OF_KIND = {
    "refused": "red",
    "would-refuse": "yellow",
    "in-doubt": "yellow",
    "settled-by-timeout": "yellow",
    "settled-by-operator": "magenta",
    "sealed": "magenta",
    "raised": "green",
}


class TokenType(click.ParamType[int]):
    """A token on the command line, under the rule that holds for headers."""

    name = "token"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_token(value)
        except Malformed as error:
            self.fail(error.message, param, ctx)


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
    answer = client.fences(prefix, limit)
    if as_json:
        print_json(answer)
        return
    _print_fences(answer["fences"])
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
    print_facts(
        [("Key", answer["key"]), *floor_facts(answer), ("Meaning", _meaning(answer) + _unless_observed(answer))]
    )
    earlier_s = answer.get("earlier_run_settles_in_s")
    if answer["handover"] is not None:
        click.echo(f"\n{_waiting(answer['handover'])}")
    if answer["unsettled"]:
        click.echo("\nSent to the store, and not settled:")
        _print_unsettled(answer["unsettled"])
    elif earlier_s is None:
        click.echo("\nNothing is unsettled: no write of this key is on its way to the store.")
    if earlier_s is not None:
        click.echo(
            f"\nWhat an earlier run of the gateway sent may still land for {earlier_s:.0f} s: "
            "tokens above the completed floor wait"
        )


@fence.command("events")
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@control_command
def events(client: ControlClient, as_json: bool, key: str, limit: int) -> None:
    """The history of KEY, newest first: who was refused, when, and which token was in the way."""
    answer = client.events(key, limit)
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
    rows = [(exact_moment(e["at"]), e["kind"], tokens_of(e), _detail(e), e["request_id"]) for e in told]
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
    answer = client.raise_floor(key, token, reason)
    if as_json:
        print_json(answer)
        return
    click.echo(f"Done: no write with a token below {answer['floor']} takes effect any more{_unless_observed(answer)}.")


@fence.command("settle")
@click.argument("key")
@click.option("--token", type=TokenType(), help="Only what this token has in doubt.")
@click.option("--reason", required=True, help="Why it can take effect no more, for the key's history.")
@control_command
def settle(client: ControlClient, as_json: bool, key: str, token: int | None, reason: str) -> None:
    """Count what KEY has in doubt as settled: hand-overs wait for it no longer.

    Only where it is certain that the store has dropped it, as after its own restart: what lands all the same replaces
    what a higher token has written."""
    answer = client.settle(key, token, reason)
    if as_json:
        print_json(answer)
        return
    for send in answer["settled"]:
        click.echo(f"Settled: token {send['token']} on {printable(send['bucket'] + '/' + send['object'])}.")
    if not answer["settled"]:
        click.echo("Nothing was in doubt; nothing has been changed.")
    _print_left(answer)


@fence.command("seal")
@click.argument("key")
@click.option("--token", type=TokenType(), help="Only if this token holds the floor.")
@click.option("--reason", required=True, help="Why, for the key's history.")
@control_command
def seal(client: ControlClient, as_json: bool, key: str, token: int | None, reason: str) -> None:
    """Shut out the token that holds the floor of KEY, too."""
    answer = client.seal(key, token, reason)
    if as_json:
        print_json(answer)
        return
    click.echo(f"Done: token {answer['floor']} is sealed; a write needs a higher one.")
    _print_left(answer)


def _print_left(answer: Json) -> None:
    """What may take effect all the same."""
    if answer["unsettled"]:
        click.echo("\nSent to the store before, and not settled:")
        _print_unsettled(answer["unsettled"])


def floor_facts(answer: Json) -> list[tuple[str, str]]:
    """The floors of one key, for people."""
    floor, completed, sealed = _floors(answer)
    facts = [
        ("Floor", f"{floor}, raised {exact_moment(answer['raised_at'])}" if answer["raised_at"] else floor),
        ("Completed floor", completed),
        ("Sealed", sealed),
    ]
    if answer["lease"] is not None:
        facts.append(("Held by", _lease(answer["lease"])))
    if answer["shadow_floor"]:
        facts.append(("Shadow floor", f"{answer['shadow_floor']} (what mode observe would have made the floor)"))
    return facts


def _lease(lease: Json) -> str:
    """Who holds the lease, and how long."""
    left_s = lease["expires_in_s"]
    if lease["pending"]:
        left = "its hand-over is pending"
    elif left_s > 0:
        left = f"{left_s:.0f} s more, unless it is renewed"
    else:
        left = "it has run out, and nobody has taken over"
    return f"{lease['holder']}: {left}"


def _print_fences(fences: list[Json]) -> None:
    observed = any(f["shadow_floor"] for f in fences)
    rows = [
        (f["key"], *_floors(f), *([str(f["shadow_floor"])] if observed else []), exact_moment(f["raised_at"]))
        for f in fences
    ]
    heads = ("KEY", "FLOOR", "COMPLETED FLOOR", "SEALED", *(["SHADOW FLOOR"] if observed else []), "RAISED (UTC)")
    print_table(heads, rows)


def _floors(answer: Json) -> tuple[str, str, str]:
    return str(answer["floor"]), str(answer["completed_floor"]), "yes" if answer["sealed"] else "no"


def _meaning(answer: Json) -> str:
    """What the numbers are to the next writer."""
    floor = int(answer["floor"])
    if not floor and answer["shadow_floor"]:
        return f"observed, nothing is refused; enforced, tokens below {answer['shadow_floor']} would have been"
    if not floor:
        return "no token has been seen for this key: any is let through"
    if answer["sealed"]:
        return f"token {floor} and all below are refused; a write needs a higher one"
    if int(answer["completed_floor"]) < floor:
        return (
            f"tokens below {floor} are refused; the hand-over to {floor} is not recorded as complete: its writes wait "
            "until nothing lower can take effect"
        )
    return f"tokens below {floor} are refused; {floor} and higher ones are let through"


def _unless_observed(answer: Json) -> str:
    """The fence's state does not tell the mode of the key's rule, but that one in mode observe has looked at it."""
    observed = int(answer["floor"]) and answer["shadow_floor"]
    return ", where a rule enforces; mode observe refuses nothing" if observed else ""


def _waiting(handover: Json) -> str:
    """What a hand-over waits for, since when and until when."""
    count = handover["requests"]
    requests = "1 request waits" if count == 1 else f"{count} requests wait"
    sends = len(handover["sends"])
    told = {0: "what was sent before the gateway started", 1: "1 send of a lower token"}
    return (
        f"The hand-over to token {handover['token']} waits since {exact_moment(handover['since'])} for "
        f"{told.get(sends, f'{sends} sends of lower tokens')}, until {moment(handover['latest'])} at the latest, "
        f"in {handover['latest_in_s']:.0f} s; {requests} for it now."
    )


def _print_unsettled(sends: list[Json]) -> None:
    now = datetime.fromtimestamp(SystemClock().wall(), UTC)
    rows = [
        (str(s["token"]), s["phase"], _until(s, now), f"{s['bucket']}/{s['object']}", s["request_id"]) for s in sends
    ]
    print_table(("TOKEN", "PHASE", "UNTIL (UTC)", "OBJECT", "REQUEST"), rows)


def _until(send: Json, now: datetime) -> str:
    if send["settles_in_s"] is None:
        return f"the store answers, at most {send['latest_in_s']:.0f} s"
    at = now + timedelta(seconds=send["settles_in_s"])
    return f"{at:%Y-%m-%d %H:%M:%S}, in {send['settles_in_s']:.0f} s"


def tokens_of(event: Json) -> str:
    """The event's token beside the floor it met."""
    token, floor = event["token"], event["floor"]
    match event["kind"]:
        case "raised":
            return f"{floor} -> {token}"
        case "refused" | "would-refuse":
            return (str(token) if token else "none") + (f", floor {floor}" if floor else "")
    return str(token)


def _detail(event: Json) -> str:
    return f"{event['detail']} ({event['count']} times)" if event["count"] > 1 else str(event["detail"])
