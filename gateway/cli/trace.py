"""`fencing-gateway trace`: what happens to a job or a request, as it happens."""

from __future__ import annotations

import math
from contextlib import suppress

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.settings import UNREACHABLE, fail
from gateway.cli.show import exact_moment, json_line, printable
from gateway.cli.show_fence import STYLE_OF_KIND, tokens_of
from gateway.client.errors import Json
from gateway.clock import SystemClock

WIDTHS = (23, 19, 24, 8)
"""Characters of moment, what, token, status; the rest of a line is as long as it is. Lines come one by one, so that no
column can be fitted to what it holds."""
FIELDS_TOLD = frozenset(("source", "event", "level", "timestamp", "fence_key", "token", "request_id"))
"""Of a line that is no request's: what has a place of its own."""


@click.command()
@click.option("--key", help="Follow one fence key: its requests, and its history.")
@click.option("--request", "request_id", help="Follow one request, by the id that its client was shown.")
@click.option("--for", "for_s", type=click.IntRange(0, 86400), help="End after so many seconds; 0: what is known now.")
@control_command
def trace(client: ControlClient, as_json: bool, key: str | None, request_id: str | None, for_s: int | None) -> None:
    """Follow what a gateway does, live, beginning with the last requests; Ctrl-C ends it. One line each: JSON objects
    with --json."""
    seen = False
    monotonic = SystemClock().monotonic
    until = monotonic() + (math.inf if for_s is None else for_s)
    with suppress(KeyboardInterrupt):
        for line in client.trace(key, request_id, for_s):
            seen = True
            click.echo(json_line(line) if as_json else _told(line, key))
        if monotonic() < until:
            why = f"the gateway at {client.url} follows no further: it stops, or has for a day"
            fail(why, UNREACHABLE, as_json=as_json)
    if not seen:
        click.echo("Nothing: a gateway knows its last 1000 requests, and what came since the command began.", err=True)


def _told(line: Json, followed: str | None) -> str:
    """Whose a line is, it says where not one key alone is followed."""
    told: tuple[str, ...]
    key = line.get("fence_key")
    whose = [f"key {key}"] if key is not None and followed is None else []
    match line:
        case {"source": "history"}:
            told = (line["at"], line["kind"], tokens_of(line), "", line["detail"], line["request_id"])
        case {"source": "log", "event": "request"}:
            told = _request(line, whose)
        case {"source": "log"}:
            rest = ", ".join(whose + [f"{name} {value}" for name, value in line.items() if name not in FIELDS_TOLD])
            token = str(line.get("token", ""))
            told = (line["timestamp"], line["event"], token, "", rest, str(line.get("request_id", "")))
        case _:
            return f"… {line['dropped']} lines came too fast, and are left out"
    cells = [printable(cell) for cell in (exact_moment(told[0]), *told[1:])]
    fixed = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    return click.style("  ".join([*fixed, *filter(None, cells[len(WIDTHS) :])]).rstrip(), fg=STYLE_OF_KIND.get(told[1]))


def _request(line: Json, whose: list[str]) -> tuple[str, ...]:
    token = "" if line["token"] is None else str(line["token"])
    if line["floor"] is not None and line["floor"] != line["token"]:
        token = f"{token or 'none'}, floor {line['floor']}"
    place = "/".join(part for part in (line["bucket"], line["object"]) if part)
    what = f"{line['operation']} {place}".rstrip()
    reason = "" if line["reason"] is None else f"{line['reason']}: "
    sender = f"{line['client'] or 'nobody'} from {line['address']}"
    detail = reason + ", ".join([what, *whose, sender])
    return line["timestamp"], line["decision"], token, str(line["status"]), detail, line["request_id"]
