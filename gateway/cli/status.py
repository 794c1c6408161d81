"""`fencing-gateway status`."""

from __future__ import annotations

import click
from prometheus_client.parser import text_string_to_metric_families

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import control_command
from gateway.cli.settings import UNREACHABLE, fail
from gateway.cli.show import print_facts, print_json, printable
from gateway.cli.show_fence import refused_bucket
from gateway.client.errors import Json, Refused, Unreachable

GAUGES = {
    "fencing_requests_running": "requests_running",
    "fencing_sends_unsettled": "sends_unsettled",
    "fencing_sends_in_doubt": "sends_in_doubt",
    "fencing_sends_settled_by_timeout": "sends_settled_by_timeout",
    "fencing_sends_settled_by_operator": "sends_settled_by_operator",
    "fencing_handovers_waiting": "handovers_waiting",
    "fencing_handover_wait_seconds": "handover_wait_s",
}

BY_REASON = {"fencing_refusals_total": "refusals", "fencing_would_refuse_total": "would_refuse"}


@click.command()
@control_command
def status(client: ControlClient, as_json: bool) -> None:
    """Whether a gateway takes requests, and what it is busy with. Exit status 3 if it takes none."""
    answer, unready = _asked(client)
    if as_json:
        print_json(answer)
    else:
        _print(client.url, answer)
    if unready is not None:
        fail(printable(str(unready)), UNREACHABLE)


def _asked(client: ControlClient) -> tuple[Json, Unreachable | None]:
    """What is known, also of a gateway that cannot do its work: then with its saying so. Raises as every call does."""
    unready = None
    try:
        ready = client.check_ready()
    except Unreachable as error:
        if "status" not in error.problem:
            raise
        ready, unready = error.problem, error
    try:
        rest = _numbers(client.metrics()) | {"authority": client.buckets(), "webhooks": client.webhooks()}
    except (Refused, Unreachable):
        if unready is None:
            raise
        raise unready from None
    return ready | rest, unready


def _print(url: str, answer: Json) -> None:
    print_facts(
        [
            ("Gateway", url),
            ("Status", printable(": ".join(str(answer[name]) for name in ("status", "reason") if answer.get(name)))),
            ("Requests running", str(answer["requests_running"])),
            ("Sends unsettled", f"{answer['sends_unsettled']}, in doubt {answer['sends_in_doubt']}"),
            ("Hand-overs waiting", _waiting(answer)),
            ("Settled by time-out since the start", str(answer["sends_settled_by_timeout"])),
            ("Settled by an operator", str(answer["sends_settled_by_operator"])),
            ("Refused since the start", _by_reason(answer["refusals"])),
            ("Mode observe would have refused", _by_reason(answer["would_refuse"])),
            ("Database", f"{answer['authority']['database'][:8]}, generation {answer['authority']['generation']}"),
            ("Buckets", _buckets(answer["authority"])),
            *((f"Webhook {one['name']}", _webhook(one)) for one in answer["webhooks"]),
        ]
    )
    for one in answer["authority"]["refused"]:
        click.echo(f"\n{refused_bucket(one)}")


def _buckets(authority: Json) -> str:
    told = f"{len(authority['ruled'])} ruled, {len(authority['refused'])} refused"
    if not authority["records"]:
        return f"{told}; no records ([store] fenced_before = false)"
    count = len(authority["unrecorded"])
    return f"{told}; {count} without a record: the store has not proved conditional writes" if count else told


def _webhook(webhook: Json) -> str:
    told = f"{webhook['state']}, {webhook['waiting']} waiting"
    if webhook["waiting"]:
        told += f" since {webhook['oldest']}"
    if dropped := sum(webhook["dropped"].values()):
        told += f", {dropped} given up"
    if webhook["last_error"] and (webhook["waiting"] or webhook["state"] != "delivering"):
        told += f"; {printable(webhook['last_error'])}"
    return told


def _waiting(answer: Json) -> str:
    count = answer["handovers_waiting"]
    return f"{count}, the longest for {answer['handover_wait_s']} s" if count else "0"


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items()) or "nothing"


def _numbers(metrics: str) -> Json:
    numbers: Json = dict.fromkeys(GAUGES.values(), 0) | {name: {} for name in BY_REASON.values()}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in GAUGES:
                numbers[GAUGES[sample.name]] = int(sample.value)
            elif sample.name in BY_REASON:
                numbers[BY_REASON[sample.name]][sample.labels["reason"]] = int(sample.value)
    return numbers
