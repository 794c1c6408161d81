"""`check-config`: what holds, or what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway_process import command

SECRET = "correct-horse-battery"
GOOD = f"""
[s3]
listen = "127.0.0.1:9000"

[upstream]
url = "https://s3.example.com"
access_key = "{SECRET}-access"
secret_key = "{SECRET}-secret"

[[client]]
access_key = "{SECRET}-client"
secret_key = {{ env = "CLIENT_SECRET" }}
buckets = ["renders"]

[[api_token]]
token = "{SECRET}-token"
role = "operator"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(GOOD)
    return path


def test_a_good_configuration_is_told_by_section(file: Path) -> None:
    """What holds is shown by section, flags over environment over file, defaults too; exit status 0."""
    environ = {"CLIENT_SECRET": SECRET, "FENCING_GATEWAY_FENCING__SETTLE_TIMEOUT_S": "40"}
    result = command("check-config", "--config", str(file), "--set", "control.listen=127.0.0.1:9001", **environ)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.startswith("OK")
    assert ["[s3]", "listen", "127.0.0.1:9000"] in lines
    assert ["[control]", "listen", "127.0.0.1:9001"] in lines
    assert ["[fencing]", "settle_timeout_s", "40.0"] in lines
    assert ["handover_wait_s", "20.0"] in lines
    assert ["buckets", '["renders"]'] in lines
    assert ["[[rule]]", "none"] in lines


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_secret_is_shown(file: Path, flags: tuple[str, ...]) -> None:
    """No value of a secret key is told, in neither form; that one is set is."""
    result = command("check-config", "--config", str(file), *flags, CLIENT_SECRET=SECRET)
    assert result.exit_code == 0
    assert SECRET not in result.output
    assert result.stdout.count("******") == 5


def test_json_of_a_good_configuration(file: Path) -> None:
    """Programs get the settings as one document."""
    told = json.loads(command("check-config", "--config", str(file), "--json", CLIENT_SECRET=SECRET).stdout)
    assert told["ok"] is True
    assert told["settings"]["s3"]["listen"] == "127.0.0.1:9000"
    assert told["settings"]["client"][0] | {"keys": 0} == {
        "access_key": "******",
        "secret_key": "******",
        "buckets": ["renders"],
        "operations": ["*"],
        "keys": 0,
        "require_signed_token": True,
        "max_concurrent_requests": None,
    }
    assert told["settings"]["upstream"]["session_token"] is None


def test_a_bad_key_is_told_with_file_line_and_what_is_allowed(file: Path) -> None:
    """An unknown key is an error that names file, line and key, on standard error; exit status 2."""
    file.write_text('[s3]\nlisten = "127.0.0.1:9000"\nlissten = "127.0.0.1:9000"\n')
    result = command("check-config", "--config", str(file))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{file}:3: [s3] lissten" in result.stderr
    assert "did you mean listen?" in result.stderr


def test_json_of_bad_configurations(file: Path) -> None:
    """Programs get every fault as a line of its own, with exit status 2."""
    file.write_text('[s3]\nlisten = "nowhere"\n[fencing]\nhandover_wait_s = -1\n')
    result = command("check-config", "--config", str(file), "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert [fault.removeprefix(f"{file}:")[:2] for fault in told["errors"]] == ["2:", "4:"]


@pytest.mark.parametrize("assignment", ["listen=127.0.0.1:1", "s3.listen"])
def test_a_flag_that_sets_nothing(assignment: str) -> None:
    """`--set` without section or value is a usage error that shows how it is written."""
    result = command("check-config", "--set", assignment)
    assert result.exit_code == 2
    assert "SECTION.KEY=VALUE" in result.stderr


def test_what_the_commands_read_from_the_environment_is_no_setting() -> None:
    """FENCING_GATEWAY_URL and FENCING_GATEWAY_API_TOKEN do not make the configuration a bad one."""
    environ = {"FENCING_GATEWAY_URL": "http://127.0.0.1:1", "FENCING_GATEWAY_API_TOKEN": SECRET}
    result = command("check-config", **environ)
    assert result.exit_code == 0
    assert SECRET not in result.output
