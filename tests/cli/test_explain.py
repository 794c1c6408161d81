"""`explain`: the rule and the fence key of an object, from the configuration, and what a gateway knows of that key."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before, command

RULES = """
[[rule]]
match = "renders/{job}/logs/**"
mode = "off"

[[rule]]
buckets = ["studio*"]
match = "renders/{job}/**"
key = "{job}"
without_token = "require"
rekey = true

[[rule]]
match = "{name:path}.tmp"
key = "tmp:{name}"
mode = "observe"

[[rule]]
match = "policy/**"
without_token = "allow"
"""

Ask = Callable[..., Result]


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def explain(tmp_path: Path, nobody: str) -> Ask:
    """Asks with the rules above, without a gateway."""
    file = tmp_path / "gateway.toml"
    file.write_text(RULES)
    return lambda *arguments: command("explain", *arguments, "--config", str(file), FENCING_GATEWAY_URL=nobody)


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize(
    ("address", "rule", "mode", "without_token", "rekey", "key", "key_from"),
    [
        ("studio/renders/job-1/a.exr", 2, "enforce", "require", True, "job-1", "rule"),
        ("studio-2/renders/job-1/a/b c.exr", 2, "enforce", "require", True, "job-1", "rule"),
        (
            "studio/renders/job-1/logs/x",
            1,
            "off",
            "until-fenced",
            False,
            "object:studio/renders/job-1/logs/x",
            "object",
        ),
        ("other/renders/job-1/a.tmp", 3, "observe", "until-fenced", False, "tmp:renders/job-1/a", "rule"),
        ("other/policy/a", 4, "enforce", "allow", False, "object:other/policy/a", "object"),
        ("other/renders/ü", None, "enforce", "until-fenced", False, "object:other/renders/ü", "object"),
    ],
)
def test_rule_and_key_of_an_object(
    explain: Ask, address: str, rule: int, mode: str, without_token: str, rekey: bool, key: str, key_from: str
) -> None:
    """The first rule that matches, by its number, with its policy and the key that it gives; else the object's own."""
    document = told(explain(f"s3://{address}", "--json"))
    bucket, _, object_key = address.partition("/")
    assert document == {
        "bucket": bucket,
        "object": object_key,
        "rule": rule,
        "match": re.findall('match = "(.*)"', RULES)[rule - 1] if rule else None,
        "mode": mode,
        "without_token": without_token,
        "rekey": rekey,
        "max_token_jump": None,
        "max_first_token": None,
        "key": key,
        "key_from": key_from,
        "fence": None,
    }


def test_without_a_gateway_the_configuration_alone_is_told(explain: Ask, nobody: str) -> None:
    """People read rule and key, and in one line that no gateway was reachable: status 0."""
    result = explain("s3://studio/renders/job-1/a.exr")
    assert result.exit_code == 0
    assert re.search(r"^Rule +2: match renders/\{job\}/\*\*$", result.stdout, re.MULTILINE)
    assert re.search(r"^Fence key +job-1$", result.stdout, re.MULTILINE)
    assert f"no gateway answers at {nobody}" in result.stdout.splitlines()[-1]


def test_a_configuration_that_names_no_port_is_explained_too() -> None:
    """What cannot be asked is not asked; that is no fault of the question."""
    result = command("explain", "s3://b/k", "--set", "control.listen=127.0.0.1:0")
    assert result.exit_code == 0
    assert "was not asked" in result.stdout


def test_without_a_configuration_there_may_be_a_rule(explain: Ask, nobody: str) -> None:
    """A worker's machine has none, and the gateway is not asked for its own: the answer is told to be none of that."""
    said = command("explain", "s3://studio/renders/job-1/a.exr", FENCING_GATEWAY_URL=nobody).stderr
    assert "no configuration is named" in said
    assert explain("s3://studio/renders/job-1/a.exr").stderr == ""


def test_without_a_rule_a_header_may_name_the_key(explain: Ask) -> None:
    """No rule, and one without key: the object's own key, unless the request names one. Mode off: none at all."""
    shown = explain("s3://other/a/b").stdout
    assert "no rule matches" in shown
    assert re.search(r"^Fence key +object:other/a/b, unless .*X-Fencing-Key", shown, re.MULTILINE)
    assert "X-Fencing-Key" in explain("s3://other/policy/a").stdout
    assert re.search(r"^Fence key +none", explain("s3://studio/renders/j/logs/a").stdout, re.MULTILINE)


def test_a_stray_slash_leads_to_the_same_rule(explain: Ask) -> None:
    """Stores that file keys as paths take it for the same object, and so does the fence; AWS does not."""
    address = "s3://studio//renders//job-1/a.exr"
    assert told(explain(address, "--json"))["key"] == "job-1"
    assert "files keys as paths" in explain(address).stdout
    assert told(explain(address, "--json", "--set", "upstream.url=aws"))["rule"] is None


@pytest.mark.parametrize(
    "address", ["studio/a", "s3:/studio/a", "s3://", "s3://studio", "s3://studio/", "s3:///a", "s3://-b/a", "S3://b/a"]
)
def test_a_bad_address_is_status_2(explain: Ask, address: str) -> None:
    """What names no object is told as such."""
    result = explain(address)
    assert result.exit_code == 2
    assert "object" in result.stderr


def test_a_key_that_is_too_long_is_status_2(explain: Ask) -> None:
    """S3 has no such object."""
    assert explain("s3://b/" + "x" * 1025).exit_code == 2


def test_a_rule_that_gives_no_valid_key_is_status_1(explain: Ask) -> None:
    """Every write of such an object is refused: the rule is named, and why."""
    address = "s3://b/" + "x" * 600 + ".tmp"
    result = explain(address)
    assert result.exit_code == 1
    assert "rule 3 ({name:path}.tmp)" in result.stderr
    assert "longer than 512 bytes" in result.stderr
    result = explain(address, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["key"] is None


def test_a_running_gateway_tells_of_the_key(store_server: StoreServer, tmp_path: Path) -> None:
    """Where a gateway answers, floor and what is unsettled are told too; one that wants a token is a line, no fault."""
    settings = f'{RULES}\n[[api_token]]\ntoken = "secret"\nrole = "operator"\n'
    child = GatewayProcess(tmp_path, configuration=settings, **before(store_server)).start()
    asked = ("explain", "s3://studio/renders/job-1/a.exr", "--config", str(tmp_path / "gateway.toml"))
    try:
        raise_ = ("fence", "raise", "job-1", "34", "--reason", "x")
        assert child.ask(*raise_, FENCING_GATEWAY_API_TOKEN="secret").exit_code == 0
        result = child.ask(*asked, FENCING_GATEWAY_API_TOKEN="secret")
        assert result.exit_code == 0
        assert re.search(r"^Floor +34, raised 20", result.stdout, re.MULTILINE)
        assert re.search(r"^Unsettled sends +0$", result.stdout, re.MULTILINE)
        assert told(child.ask(*asked, "--json", FENCING_GATEWAY_API_TOKEN="secret"))["fence"]["floor"] == 34
        result = child.ask(*asked)
        assert result.exit_code == 0
        assert "FENCING_GATEWAY_API_TOKEN" in result.stdout
    finally:
        child.kill()


def test_the_limits_of_tokens_are_told(tmp_path: Path, nobody: str) -> None:
    """Where the rule sets one, with what it bounds."""
    file = tmp_path / "gateway.toml"
    file.write_text('[[rule]]\nmatch = "**"\nmax_token_jump = 100\nmax_first_token = 1000\n')
    shown = command("explain", "s3://b/k", "--config", str(file), FENCING_GATEWAY_URL=nobody).stdout
    assert re.search(r"^Token jump +at most 100 above the floor$", shown, re.MULTILINE)
    assert re.search(r"^First token +at most 1000$", shown, re.MULTILINE)
