"""`fencing-gateway job`: jobs and their queues. `job work` is in `job_work.py`."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.group import Group
from gateway.cli.job_work import work
from gateway.cli.options import LONGEST_WAIT, Seconds, TokenType, caller, repeat_option
from gateway.cli.result import NoResult, check_outputs, json_or_text, result_of
from gateway.cli.settings import fail
from gateway.cli.show import json_line, moment, print_facts, print_json, printable
from gateway.cli.table import print_table
from gateway.client.calls import job_path, output_of, queue_path
from gateway.client.errors import Json
from gateway.clock import SystemClock
from gateway.core.job import MAX_PRIORITY

STYLE_OF_STATE = {"completed": "green", "running": "cyan", "dead": "red", "delayed": "yellow"}
STATES = ("waiting", "delayed", "running", "completed", "dead")
OVER = ("completed", "dead")
WIDEST_SHOWN = 60


@click.group(cls=Group)
def job() -> None:
    """Submit jobs, work on them, and look at them."""


job.add_command(work)


@job.command()
@click.argument("queue")
@click.argument("key")
@click.argument("payload", required=False)
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    default=0,
    show_default=True,
    help="The highest is delivered first.",
)
@click.option("--delay", "delay_s", type=Seconds(min=0), default=0.0, help="Not to be delivered for so many seconds.")
@click.option("--new", is_flag=True, help="Refuse a key that has a job already.")
@repeat_option("the command is no second submission.")
@control_command
def submit(
    client: ControlClient,
    as_json: bool,
    queue: str,
    key: str,
    payload: str | None,
    priority: int,
    delay_s: float,
    new: bool,
    idempotency_key: str | None,
) -> None:
    """Submit the job KEY to QUEUE. A key that has its job already is left as it is.

    PAYLOAD is JSON if it is any, else text."""
    body: Json = {"key": key, "priority": priority, "delay_s": delay_s, "deduplicate": not new}
    if payload is not None:
        body["payload"] = json_or_text(payload)
    target = f"{queue_path(queue)}/jobs"
    answer = client.ask("POST", target, body, repeat_key=idempotency_key or SystemClock().nonce())
    if as_json:
        print_json(answer)
        return
    where = f" in queue {printable(answer['queue'])}" if answer["queue"] else ""
    over = " Nothing was submitted; `job reopen` has it done again." if answer["state"] in OVER else ""
    click.echo(f"{printable(answer['key'])} is {answer['state']}{where}.{over}")


@job.command()
@click.argument("queue")
@click.option(
    "--visibility",
    "visibility_s",
    type=Seconds(min=0.1),
    help="Seconds until the job is delivered again, unless it is extended; by default the queue's.",
)
@click.option("--wait", "wait_s", type=Seconds(min=0), default=0.0, help=LONGEST_WAIT)
@click.option(
    "--max", "max_jobs", type=click.IntRange(1, 100), default=1, show_default=True, help="At most so many jobs."
)
@click.option("--holder", help="Who works on it; by default this host and process.")
@control_command
def receive(
    client: ControlClient,
    as_json: bool,
    queue: str,
    visibility_s: float | None,
    wait_s: float,
    max_jobs: int,
    holder: str | None,
) -> None:
    """Take jobs from QUEUE, each under a lease with a fresh token. Exit status 0 also if there are none.

    Whoever takes one must extend it, and complete it with its token. --json shows its S3 credentials, too."""
    body: Json = {"holder": holder or caller(), "wait_s": wait_s, "max": max_jobs}
    if visibility_s is not None:
        body["visibility_s"] = visibility_s
    target = f"{queue_path(queue)}/receive"
    answer = client.ask("POST", target, body, wait_s=wait_s, repeat_key=SystemClock().nonce())
    if as_json:
        print_json(answer)
        return
    if not answer["jobs"]:
        click.echo("There is no job to work on now.")
        return
    rows = [
        (one["key"], str(one["token"]), str(one["attempts"]), f"{one['expires_in_s']:.0f} s", _json(one["payload"]))
        for one in answer["jobs"]
    ]
    print_table(("KEY", "TOKEN", "ATTEMPT", "LEFT", "PAYLOAD"), rows)


@job.command()
@click.argument("key")
@click.argument("token", type=TokenType())
@click.option(
    "--result", type=click.Path(dir_okay=False, path_type=Path), help="A file with the result: JSON, else text."
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="BUCKET/KEY",
    help="An object that must have been written under this token. May be repeated.",
)
@control_command
def complete(
    client: ControlClient, as_json: bool, key: str, token: int, result: Path | None, outputs: tuple[str, ...]
) -> None:
    """Record the job KEY as done by TOKEN, once and for all. Again with the same token: the same answer."""
    check_outputs(outputs)
    body: Json = {"token": str(token), "outputs": [output_of(name) for name in outputs]}
    if result is not None:
        try:
            body["result"] = result_of(result)
        except NoResult as error:
            fail(str(error))
    answer = client.ask("POST", f"{job_path(key)}/complete", body)
    if as_json:
        print_json(answer)
        return
    click.echo(f"Done: {printable(key)} is completed by token {answer['completion']['token']}.")


@job.command("list")
@click.option("--queue", help="Only those of this queue.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@control_command
def list_jobs(client: ControlClient, as_json: bool, queue: str | None, state: str | None, limit: int) -> None:
    """Jobs by key."""
    asked = {name: value for name, value in (("queue", queue), ("state", state)) if value is not None}
    answer = client.pages("/v1/jobs", "jobs", "after", limit, asked)
    if as_json:
        print_json(answer)
        return
    rows = [
        (one["key"], one["queue"] or "", one["state"], str(one["attempts"]), str(one["token"]), _note(one))
        for one in answer["jobs"]
    ]
    styles = [STYLE_OF_STATE.get(one["state"], "") for one in answer["jobs"]]
    print_table(("KEY", "QUEUE", "STATE", "ATTEMPTS", "TOKEN", "NOTE"), rows, styles)
    if answer["next"] is not None:
        click.echo("There are more: raise --limit.", err=True)


@job.command("show")
@click.argument("key")
@control_command
def show_job(client: ControlClient, as_json: bool, key: str) -> None:
    """What is known of the job KEY."""
    answer = client.ask("GET", job_path(key))
    if as_json:
        print_json(answer)
        return
    facts = [("Key", answer["key"]), ("Queue", answer["queue"] or "none"), ("State", answer["state"])]
    if answer["queue"] is not None:
        facts += [
            ("Attempts", str(answer["attempts"])),
            ("Token", str(answer["token"])),
            ("Holder", _holder(answer)),
            ("Priority", str(answer["priority"])),
            ("Submitted", moment(answer["submitted_at"])),
            ("Payload", _json(answer["payload"])),
        ]
    if answer["state"] == "delayed":
        facts.append(("Due", moment(answer["available_at"])))
    if answer["error"]:
        facts.append(("Last error", answer["error"]))
    if done := answer["completion"]:
        outputs = ", ".join(f"{output['bucket']}/{output['key']}" for output in done["outputs"])
        facts += [
            ("Completed", f"{moment(done['at'])} by token {done['token']}, {done['holder'] or 'holder unknown'}"),
            ("Result", _json(done["result"])),
            ("Outputs", outputs or "none named"),
        ]
    print_facts(facts)


@job.command()
@click.argument("queue")
@click.option("--reason", required=True, help="Why, for the jobs' history.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="At most so many.")
@control_command
def redrive(client: ControlClient, as_json: bool, queue: str, reason: str, limit: int) -> None:
    """Have the dead jobs of QUEUE tried again, with all their attempts. An operator's."""
    answer = client.ask("POST", f"{queue_path(queue)}/redrive", {"reason": reason, "limit": limit})
    if as_json:
        print_json(answer)
        return
    count = answer["reopened"]
    click.echo(f"Done: {count} {'job waits' if count == 1 else 'jobs wait'} again.")


@job.command()
@click.argument("key")
@click.option("--reason", required=True, help="Why, for the job's history.")
@control_command
def reopen(client: ControlClient, as_json: bool, key: str, reason: str) -> None:
    """Have the job KEY done again, though it is completed or dead. An operator's."""
    answer = client.ask("POST", f"{job_path(key)}/reopen", {"reason": reason})
    if as_json:
        print_json(answer)
        return
    again = "it waits in its queue" if answer["job"] else "the key may be leased"
    click.echo(f"Done: {printable(key)} is reopened, and {again} again.")


def _json(value: object) -> str:
    return "" if value is None else json_line(value)


def _note(one: Json) -> str:
    """What is most worth knowing of it, shortened."""
    if one["completion"]:
        text = f"by token {one['completion']['token']}"
    elif one["error"]:
        text = one["error"]
    else:
        text = _json(one["payload"])
    return text if len(text) <= WIDEST_SHOWN else text[: WIDEST_SHOWN - 1] + "…"


def _holder(answer: Json) -> str:
    if not answer["holder"]:
        return "nobody"
    return f"{answer['holder']}, for {answer['expires_in_s']:.0f} s more"
