"""How a fence and its history are told to people."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.show import exact_moment, moment, printable
from gateway.cli.table import print_table
from gateway.client.errors import Json, Refused, Unreachable
from gateway.clock import SystemClock

STYLE_OF_KIND = {
    "refused": "red",
    "would-refuse": "yellow",
    "in-doubt": "yellow",
    "settled-by-timeout": "yellow",
    "settled-by-operator": "magenta",
    "sealed": "magenta",
    "raised": "green",
}


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


def hindrances(client: ControlClient, bucket: str | None = None) -> list[str]:
    """What the gateway refuses whatever the floors let through, for people: all requests, or what is fenced in some
    buckets (`bucket`: in that one alone). Empty where it does not tell."""
    told = []
    with suppress(Refused, Unreachable):
        try:
            client.check_ready()
        except Unreachable as error:
            if "status" not in error.problem:
                raise
            told.append(f"The gateway takes no requests now: {printable(error.problem['reason'])}")
        refused = client.buckets()["refused"]
        told += map(refused_bucket, [one for one in refused if bucket in (None, one["bucket"])])
    return told


def refused_bucket(one: Json) -> str:
    """A bucket in which nothing fenced is served, why, and what an operator does about it."""
    return (
        f"Nothing fenced is served in {printable(one['bucket'])}: {printable(one['reason'])}\n"
        f"  {printable(one['remedy'])}"
    )


def print_hindrances(client: ControlClient) -> None:
    """The same, each with a line before it."""
    for one in hindrances(client):
        click.echo(f"\n{one}")


def print_fences(fences: list[Json]) -> None:
    """Keys with their floors, one a line; shadow floors where any key has one."""
    observed = any(f["shadow_floor"] for f in fences)
    rows = [
        (f["key"], *_floors(f), *([str(f["shadow_floor"])] if observed else []), exact_moment(f["raised_at"]))
        for f in fences
    ]
    heads = ("KEY", "FLOOR", "COMPLETED FLOOR", "SEALED", *(["SHADOW FLOOR"] if observed else []), "RAISED (UTC)")
    print_table(heads, rows)


def _floors(answer: Json) -> tuple[str, str, str]:
    return str(answer["floor"]), str(answer["completed_floor"]), "yes" if answer["sealed"] else "no"


def meaning(answer: Json) -> str:
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


def unless_observed(answer: Json) -> str:
    """The fence's state does not tell the mode of the key's rule, but that one in mode observe has looked at it."""
    observed = int(answer["floor"]) and answer["shadow_floor"]
    return ", where a rule enforces; mode observe refuses nothing" if observed else ""


def waiting(handover: Json) -> str:
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


def print_unsettled(sends: list[Json]) -> None:
    """Sends, and until when each may take effect."""
    now = datetime.fromtimestamp(SystemClock().wall(), UTC)
    rows = [
        (str(s["token"]), s["phase"], _until(s, now), f"{s['bucket']}/{s['object']}", s["request_id"]) for s in sends
    ]
    print_table(("TOKEN", "PHASE", "UNTIL (UTC)", "OBJECT", "REQUEST"), rows)


def print_left(answer: Json) -> None:
    """What may take effect all the same."""
    if answer["unsettled"]:
        click.echo("\nSent to the store before, and not settled:")
        print_unsettled(answer["unsettled"])


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


def detail_of(event: Json) -> str:
    """Why, and how often where the history counts what is alike."""
    return f"{event['detail']} ({event['count']} times)" if event["count"] > 1 else str(event["detail"])
