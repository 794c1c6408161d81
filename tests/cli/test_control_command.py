"""How commands find a gateway and show who asks, and what they say where that fails."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.working import command as command_line
from tests.cli.working import environ
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before, command, environment
from tests.scripted import saying

WORKER, OPERATOR = "worker-token", "operator-token"
TOKENS = f"""
[[api_token]]
token = "{OPERATOR}"
role = "operator"

[[api_token]]
token = "{WORKER}"
role = "worker"
keys = ["job-*"]
"""


# --- who may


def test_the_api_token_comes_from_the_environment(store_server: StoreServer, tmp_path: Path) -> None:
    """With configured tokens: none or a wrong one is refused, a worker may look at its keys and not raise, an operator
    may; each refusal has status 1."""
    child = GatewayProcess(tmp_path, configuration=TOKENS, **before(store_server)).start()
    try:
        raise_ = ("fence", "raise", "job-1", "34", "--reason", "x")
        unnamed = child.ask("fence", "show", "job-1")
        assert (unnamed.exit_code, "FENCING_GATEWAY_API_TOKEN" in unnamed.stderr) == (1, True)
        assert child.ask("status").exit_code == 1
        assert child.ask("fence", "show", "job-1", FENCING_GATEWAY_API_TOKEN="wrong").exit_code == 1
        assert child.ask("fence", "show", "job-1", FENCING_GATEWAY_API_TOKEN=WORKER).exit_code == 0
        assert child.ask("fence", "show", "other", FENCING_GATEWAY_API_TOKEN=WORKER).exit_code == 1
        refused = child.ask(*raise_, FENCING_GATEWAY_API_TOKEN=WORKER)
        assert (refused.exit_code, "operator" in refused.stderr) == (1, True)
        assert child.ask(*raise_, FENCING_GATEWAY_API_TOKEN=OPERATOR).exit_code == 0
        assert child.ask("status", FENCING_GATEWAY_API_TOKEN=f"{OPERATOR}\n").exit_code == 0
        assert child.ask("status", FENCING_GATEWAY_API_TOKEN="ü").exit_code == 2
        assert OPERATOR not in child.log()
    finally:
        child.kill()


# --- what cannot be meant


@pytest.mark.parametrize(
    "arguments",
    [
        ("lease", "acquire", "\udcff"),
        ("lease", "acquire", "job", "--holder", "\udcff"),
        ("lease", "acquire", ""),
        ("lease", "acquire", "job", "--ttl", "nan"),
        ("lease", "acquire", "job", "--wait", "inf"),
        ("lease", "list", "--prefix", "\udcff"),
        ("lease", "list", "--url", "http://127.0.0.1:99999"),
        ("lease", "list", "--url", "http://127.0.0.1:port"),
        ("lease", "list", "--url", "http://a..b:8081"),
        ("lease", "acquire", "job", "--idempotency-key", ""),
        ("lease", "acquire", "job", "--idempotency-key", "a\nb"),
        ("lease", "acquire", "job", "--idempotency-key", "ü"),
        ("lease", "acquire", "job", "--idempotency-key", "a" * 256),
        ("job", "submit", "queue", "job", "--idempotency-key", ""),
        ("job", "submit", "queue", "job", "--priority", "9" * 30),
        ("fence", "rebuild", "--bucket", ""),
        ("job", "submit", "queue", "job", "\udcff"),
        ("job", "submit", "", "job"),
        ("job", "complete", "job", "1", "--output", "bucket/\udcff"),
        ("run", "--key", "\udcff", "--", "true"),
        ("run", "--key", "job", "--grace", "nan", "--", "true"),
        ("job", "work", "--queue", "queue", "--grace", "nan", "--", "true"),
        ("fence", "show", "\udcff"),
    ],
)
def test_words_that_no_call_can_say(arguments: tuple[str, ...]) -> None:
    """Bytes that are no UTF-8, names of nothing, times that are no numbers, hosts and ports that are none, what no
    header or number can hold: status 2, a line that says so, and nothing has been asked."""
    result = command(*arguments, FENCING_GATEWAY_URL="http://127.0.0.1:1")
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr


def test_an_empty_name_is_not_an_empty_queue() -> None:
    """A variable that a script has not set is told as such, not as a queue without jobs or a bucket without objects."""
    told = [
        command(*arguments, FENCING_GATEWAY_URL="http://127.0.0.1:1").stderr
        for arguments in (("job", "redrive", "", "--reason", "again"), ("fence", "rebuild", "--bucket", ""))
    ]
    assert told == ["fencing-gateway: '' names no queue\n", "fencing-gateway: '' names no bucket\n"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("fence", "raise", "job", "5", "--reason", ""),
        ("lease", "acquire", "a\nb"),
        ("lease", "acquire", "a" * 513),
        ("lease", "acquire", "job", "--ttl", "99999"),
        ("run", "--key", "a\nb", "--", "true"),
        ("run", "--key", "job", "--ttl", "99999", "--", "true"),
    ],
)
def test_what_the_gateway_finds_misused_is_status_2(gateway: GatewayProcess, arguments: tuple[str, ...]) -> None:
    """Only the gateway knows that it is out of bounds; it is wrong usage all the same, and nothing was done."""
    result = gateway.ask(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("fencing-gateway: ")


def test_a_full_disk_that_the_output_goes_to(gateway: GatewayProcess) -> None:
    """Status 1, and a line that says so."""
    with open("/dev/full", "wb") as full:
        listed = subprocess.run(
            command_line("lease", "list"), env=environ(gateway), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert listed.returncode == 1
    assert listed.stderr.count(b"\n") == 1
    assert b"No space left on device" in listed.stderr


@pytest.mark.parametrize(
    ("arguments", "status"), [(("status", "--url", "http://127.0.0.1:1"), 3), (("lease", "acquire", ""), 2)]
)
def test_nobody_takes_what_it_says(arguments: tuple[str, ...], status: int) -> None:
    """With a standard error on a full disk the status tells all the same what has happened."""
    with open("/dev/full", "wb") as full:
        assert (
            subprocess.run(command_line(*arguments), env=environment(), stderr=full, check=False).returncode == status
        )


# --- where


def test_without_url_the_configuration_says_where(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    """`control.listen` of the configuration is asked; one for every address is asked on this machine."""
    port = gateway.control_url.rpartition(":")[2]
    gateway.raise_floor(key, 7)
    file = tmp_path / "gateway.toml"
    for listen in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
        file.write_text(f'[control]\nlisten = "{listen}"\n[[api_token]]\ntoken = "t"\nrole = "operator"\n')
        result = command("fence", "show", key, "--config", str(file), "--json")
        assert json.loads(result.stdout)["floor"] == 7, result.output


def test_a_configuration_without_a_port_needs_a_url() -> None:
    """Port 0 names no place to ask: status 2, and the way out is said."""
    result = command("status", "--set", "control.listen=127.0.0.1:0")
    assert result.exit_code == 2
    assert "--url" in result.stderr


def test_a_configuration_that_cannot_be_loaded_needs_a_url(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Secrets of the service are not to be had here: status 2 names the way without them, and that way works."""
    file = tmp_path / "gateway.toml"
    file.write_text('[upstream]\nurl = "aws"\naccess_key = { env = "NOT_SET_HERE" }\nsecret_key = "s"\n')
    result = command("status", "--config", str(file))
    assert result.exit_code == 2
    assert "NOT_SET_HERE" in result.stderr
    assert "FENCING_GATEWAY_URL" in result.stderr
    assert "--url" in result.stderr
    assert gateway.ask("status", "--config", str(file)).exit_code == 0


@pytest.mark.parametrize("arguments", [("status",), ("fence", "list"), ("fence", "raise", "k", "1", "--reason", "x")])
def test_nobody_there_is_status_3(arguments: tuple[str, ...]) -> None:
    """Where nothing listens, the command says so and ends with status 3."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = command(*arguments, "--url", url)
    assert result.exit_code == 3
    assert "no gateway answers" in result.stderr


def test_nobody_at_an_address_that_was_not_named() -> None:
    """The gateway listens elsewhere, more likely than not: the command names the ways to say where."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        result = command("status", "--set", f"control.listen=127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 3
    assert "Connection refused. If it listens elsewhere, say --url or set FENCING_GATEWAY_URL" in result.stderr


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 18\r\n\r\n" + b'{"detail": "broken"}'[:18],
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
def test_something_else_there_is_status_3(answer: bytes) -> None:
    """What answers like no gateway is told as such; a redirect is not followed."""
    with saying(answer) as url:
        result = command("fence", "list", "--url", url)
    assert result.exit_code == 3, result.output
    assert "Traceback" not in result.output


def test_a_gateway_that_cannot_now_tells_scripts_why() -> None:
    """Status 3, and with `--json` what it has answered: one that drains, or a hand-over that is pending."""
    body = b'{"status":"unavailable","reason":"draining"}'
    with saying(b"HTTP/1.1 503 Later\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)) as url:
        result = command("status", "--json", "--url", url)
    assert (result.exit_code, json.loads(result.stdout)) == (3, json.loads(body))
    assert "draining" in result.stderr
