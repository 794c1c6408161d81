"""The documentation names what the code has, all of it, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gateway
from gateway.cli import main
from gateway.cli.settings import REFUSED, UNREACHABLE, USAGE
from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.core.errors import Reason
from gateway.s3.errors import CODE_OF_REASON, STATUS_OF_CODE
from gateway.server.tls import Tls, TlsMetrics
from gateway.stores.values import EventKind
from tests.authority import Authority
from tests.docs.conftest import Shell
from tests.docs.pages import DOCS, ROOT, blocks, codes, first_codes, page, prose, rows, section

CODE = Path(gateway.__file__).parent
CONTROL = sorted((CODE / "server" / "control").glob("*.py"))
OPERATING, INTERFACE = page("operating.md"), page("interface.md")
GUIDES = ("adopting.md", "deploying.md", "operating.md", "interface.md")


# --- reasons


def test_every_reason_has_its_row() -> None:
    """Each reason has one row, with the status that it is answered with."""
    told = {codes(row[0])[0]: row[1] for row in rows(section(OPERATING, "## Reasons"))}
    assert list(told) == list(Reason)
    for reason, answer in told.items():
        assert answer.split(",")[0] == str(STATUS_OF_CODE[CODE_OF_REASON[Reason(reason)]]), reason


def test_every_reason_has_its_code() -> None:
    """The interface's table gives each reason its status and S3 code."""
    told: dict[str, str] = {}
    for status_and_code, reasons in rows(section(INTERFACE, "## Refusals")):
        told |= dict.fromkeys(codes(reasons), status_and_code)
    expected = {r: f"{STATUS_OF_CODE[code]} `{code}`" for r, code in CODE_OF_REASON.items()}
    assert told == expected


# --- what the gateway tells of itself


def test_every_metric_has_its_row(shell: Shell, authority: Authority) -> None:
    """The metrics that a running gateway exports, and those of TLS, by the names and labels that Prometheus reads."""
    told = {codes(row[0])[0]: set(codes(row[1])) for row in rows(section(OPERATING, "## Metrics"))}
    cert, key = authority.issue("s3.example.com")
    served = Settings.model_validate({"s3": {"tls_cert": cert, "tls_key": key}})
    of_tls = CollectorRegistry()
    of_tls.register(TlsMetrics(Tls(served, SystemClock.wall)))
    assert told == metrics(exported(shell)) | metrics(generate_latest(of_tls).decode())


def exported(shell: Shell) -> str:
    request = Request(shell.gateway.control_url + "/metrics")
    request.add_header("Authorization", f"Bearer {shell.variables['FENCING_GATEWAY_API_TOKEN']}")
    with urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def metrics(text: str) -> dict[str, set[str]]:
    found = {}
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels}
            found[family.name + ("_total" if family.type == "counter" else "")] = labels - {"le"}
    return found


def test_every_field_of_the_log_has_its_row(shell: Shell) -> None:
    """The table of the request line's fields, and the example, have the fields that are written."""
    fields = set(request_line(shell))
    table, _, others = page("operating.md").partition("## The log")[2].partition("Other lines")
    assert set(first_codes(table)) == fields
    (example,) = [b for b in blocks(DOCS / "operating.md") if b.language == "json"]
    assert set(json.loads(example.text)) == fields
    assert set(first_codes(others.partition("\n## ")[0])) == set(events_logged())


def test_a_request_id_finds_one_line(shell: Shell) -> None:
    """What a client was shown leads to the one line of its request."""
    ids = [line["request_id"] for line in request_lines(shell)]
    assert len(ids) == len(set(ids)) > 1


def request_line(shell: Shell) -> dict[str, Any]:
    """A line of the request log."""
    return request_lines(shell)[0]


def request_lines(shell: Shell) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in shell.gateway.log().splitlines()]
    return [line for line in lines if line["event"] == "request"]


def events_logged() -> Iterator[str]:
    """The names of all other lines: what is given to structlog, and to `Telemetry.event` and `failure`."""
    for path in CODE.rglob("*.py"):
        for call in calls(path):
            is_log = isinstance(call.func, ast.Attribute) and call.func.attr in (
                "event", "failure", "debug", "info", "warning", "error", "exception",
            )  # fmt: skip
            if is_log and call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value != "request":
                yield str(call.args[0].value)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def test_every_kind_of_event_has_its_row() -> None:
    """The kinds that the gateway records in a key's history."""
    deciding = [path for path in CODE.rglob("*.py") if "stores" not in path.parts or path.name == "job_rules.py"]
    source = "".join(path.read_text() for path in deciding)
    recorded = {EventKind[name].value for name in re.findall(r"EventKind\.(\w+)", source)}
    assert set(first_codes(section(OPERATING, "## History"))) == recorded


# --- commands


def test_every_command_has_its_row() -> None:
    """The commands, as they are called: with their arguments and what they require."""
    told = [codes(row[0])[0] for row in rows(section(OPERATING, "## Commands")) if row[0].startswith("`")]
    assert sorted(told) == sorted(usages(main, ()))


def usages(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from usages(found, (*words, name))
        return
    arguments = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    required = [f"{p.opts[0]} TEXT" for p in command.params if isinstance(p, click.Option) and p.required]
    yield " ".join((*words, *arguments, *required))


def test_every_exit_status_has_its_row() -> None:
    """0, and those that the commands end with."""
    told = [row[0] for row in rows(section(OPERATING, "## Commands")) if row[0].isdecimal()]
    assert told == [str(status) for status in (0, REFUSED, USAGE, UNREACHABLE)]


# --- settings


def settings() -> dict[str, dict[str, Any]]:
    """The keys of each section, with their defaults."""
    found: dict[str, dict[str, Any]] = {}
    for name, field in Settings.model_fields.items():
        model = field.annotation if isinstance(field.annotation, type) else field.annotation.__args__[0]  # type: ignore[union-attr]
        found[name] = {key: f.default for key, f in model.model_fields.items()}
    return found


@pytest.mark.parametrize("name", GUIDES)
def test_the_settings_named_are_there(name: str, shell: Shell) -> None:
    """What the guides call a setting is one, and where they give its default, that is it."""
    known = settings()
    keys = {key: default for of_section in known.values() for key, default in of_section.items()}
    text = prose(page(name))
    for table, key in re.findall(r"`\[+(\w+)\]+ (\w+)", text):
        assert key in known[table], f"[{table}] {key}"
    for key, in_brackets, in_cell in re.findall(r"`(\w+)`(?: \((\d+) s[;)]| \| (\d+) )", text):
        if key in keys:
            assert keys[key] == int(in_brackets or in_cell), f"{key} is {keys[key]}"
    of_the_log = {"settle_s", "again_after_s"}
    others = {*request_line(shell), *metrics(exported(shell)), *members(), *of_the_log}
    for word in codes(text):
        if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", word) and not word.startswith("aws_"):
            assert word in keys or word in others, word


def members() -> set[str]:
    """The members of the control API's documents."""
    return {name for path in CONTROL for name in re.findall(r"^    (\w+):", path.read_text(), re.MULTILINE)}


def test_every_setting_named_elsewhere_is_in_the_manual() -> None:
    """config/gateway.toml is the manual of the settings: it has each section and each of its keys."""
    text = (ROOT / "config" / "gateway.toml").read_text()
    for name, keys in settings().items():
        _, head, rest = re.split(rf"^(?:#: )?(\[+{name}\]+)$", text, maxsplit=1, flags=re.MULTILINE)
        assert head
        own = re.split(r"^(?:#: )?\[", rest, maxsplit=1, flags=re.MULTILINE)[0]
        assert set(re.findall(r"^#(?:: )?(\w+) = ", own, re.MULTILINE)) == set(keys), name
