"""`job` and `lease`: jobs and leases by hand, and what scripts get of them."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any

import pytest

from gateway.client import SyncGatewayClient
from tests.gateway_process import GatewayProcess


@pytest.fixture
def queue() -> str:
    return f"renders {secrets.token_hex(4)}"


def asked(gateway: GatewayProcess, *arguments: str) -> Any:
    """The JSON that a command prints."""
    result = gateway.ask(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def told(gateway: GatewayProcess, *arguments: str) -> str:
    """What it tells people."""
    result = gateway.ask(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# --- lease


def test_a_lease_by_hand(gateway: GatewayProcess, key: str) -> None:
    """Acquired, shown, renewed, refused to another, given back, and lost then; each with its exit status."""
    shown = told(gateway, "lease", "acquire", key, "--ttl", "60", "--holder", "me")
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [["Token", "1"], ["Holder", "me"]]
    assert "secret" not in shown.lower()
    held = gateway.ask("lease", "acquire", key)
    assert (held.exit_code, "'me' holds it" in held.stderr) == (1, True)
    head, line = told(gateway, "lease", "list", "--prefix", key).splitlines()
    assert head.split()[:3] == ["KEY", "TOKEN", "HOLDER"]
    assert line.startswith(key)
    assert told(gateway, "lease", "renew", key, "1").startswith("Renewed: 60.0 s")
    assert "sealed" in told(gateway, "lease", "release", key, "1")
    lost = gateway.ask("lease", "renew", key, "1")
    assert (lost.exit_code, "given up" in lost.stderr) == (1, True)
    assert gateway.ask("lease", "renew", key, "0").exit_code == 2


def test_a_lease_for_scripts(gateway: GatewayProcess, key: str) -> None:
    """JSON is the API's own, credentials included; the same idempotency key gives the same lease."""
    first = asked(
        gateway, "lease", "acquire", key, "--idempotency-key", f"once-{secrets.token_hex(4)}", "--holder", "h"
    )
    assert (first["key"], first["token"]) == (key, 1)
    assert first["credentials"]["endpoint_url"] == gateway.url
    listed = asked(gateway, "lease", "list", "--prefix", key)
    assert [one["token"] for one in listed["leases"]] == [1]
    assert asked(gateway, "lease", "renew", key, "1")["expires_in_s"] == pytest.approx(30, abs=1)
    refused = gateway.ask("lease", "acquire", key, "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["reason"]) == (1, "held")
    assert asked(gateway, "lease", "release", key, "1") == {"key": key, "token": 1, "released": True}


def test_tokens_past_what_json_readers_have_exact_are_strings(gateway: GatewayProcess, key: str) -> None:
    """In what a command tells by itself, as in what it passes on."""
    gateway.raise_floor(key, 2**63 - 2)
    highest = asked(gateway, "lease", "acquire", key)["token"]
    assert highest == str(2**63 - 1)
    assert asked(gateway, "lease", "release", key, highest)["token"] == highest


def test_a_lost_answer_costs_no_lease(gateway: GatewayProcess, key: str) -> None:
    """A script that repeats its command with the same idempotency key gets the lease that it has."""
    once = ("lease", "acquire", key, "--holder", "script", "--idempotency-key", f"once-{secrets.token_hex(4)}")
    assert asked(gateway, *once)["token"] == asked(gateway, *once)["token"] == 1


# --- job


def test_a_job_by_hand(gateway: GatewayProcess, key: str, queue: str, tmp_path: Path) -> None:
    """Submitted once, received, completed once, and shown with what came of it."""
    assert "waiting" in told(gateway, "job", "submit", queue, key, '{"frames": 240}', "--priority", "3")
    assert asked(gateway, "job", "submit", queue, key, "another")["payload"] == {"frames": 240}
    again = gateway.ask("job", "submit", queue, key, "--new")
    assert (again.exit_code, "has a job already" in again.stderr) == (1, True)
    for _ in range(2):
        assert "waiting" in told(
            gateway, "job", "submit", f"{queue} 2", f"{key} 2", "--new", "--idempotency-key", "once"
        )
    _, line = told(gateway, "job", "receive", queue, "--holder", "me").splitlines()
    assert line.endswith('{"frames":240}')
    assert told(gateway, "job", "receive", queue).startswith("There is no job")
    assert "me, for " in told(gateway, "job", "show", key)
    result = tmp_path / "result.txt"
    result.write_text("not JSON")
    assert "completed by token 1" in told(gateway, "job", "complete", key, "1", "--result", str(result))
    assert gateway.ask("job", "complete", key, "1").exit_code == 0
    shown = told(gateway, "job", "show", key)
    assert '"not JSON"' in shown
    assert "by token 1, me" in shown
    head, line = told(gateway, "job", "list", "--queue", queue, "--state", "completed").splitlines()
    assert head.split() == ["KEY", "QUEUE", "STATE", "ATTEMPTS", "TOKEN", "NOTE"]
    assert line.endswith("by token 1")
    assert told(gateway, "job", "list", "--queue", queue, "--state", "dead").count("\n") == 1


def test_numbers_are_sent_and_shown_as_they_are(gateway: GatewayProcess, key: str, queue: str, tmp_path: Path) -> None:
    """Long ones too, in payload and result, for people and for scripts; what no double can be is refused, and not taken
    for a text. Without its result nothing is completed."""
    ids = "[123456789012345678901234567890,-9223372036854775809]"
    for beyond in ("1e400", f'{{"n": {"9" * 5000}}}'):
        refused = gateway.ask("job", "submit", queue, key, beyond)
        assert (refused.exit_code, "as a string" in refused.stderr) == (2, True)
    assert asked(gateway, "job", "submit", queue, key, ids)["payload"] == json.loads(ids)
    assert ids in told(gateway, "job", "list", "--queue", queue)
    assert ids in told(gateway, "job", "receive", queue)
    result = tmp_path / "result.json"
    unread = gateway.ask("job", "complete", key, "1", "--result", str(result))
    assert (unread.exit_code, f"--result {result} cannot be read" in unread.stderr) == (2, True)
    result.write_text(f'{{"ids": {ids}, "share": 0.1}}\n')
    answer = asked(gateway, "job", "complete", key, "1", "--result", str(result))
    assert answer["completion"]["result"] == json.loads(result.read_text())
    shown = told(gateway, "job", "show", key)
    assert f"Payload  {ids}" in re.sub(" +", "  ", shown)
    assert f'{{"ids":{ids},"share":0.1}}' in shown


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "not JSON", "{'a': 1}", ""])
def test_what_is_not_json_is_a_text(gateway: GatewayProcess, key: str, queue: str, text: str) -> None:
    """Also what Python alone takes for a number."""
    assert asked(gateway, "job", "submit", queue, key, text)["payload"] == text


def test_an_output_is_verified(gateway: GatewayProcess, key: str, queue: str, bucket: str) -> None:
    """A completion that names what has not been written is refused, and what names no object is a usage error."""
    asked(gateway, "job", "submit", queue, key)
    (job,) = asked(gateway, "job", "receive", queue)["jobs"]
    token = str(job["token"])
    refused = gateway.ask("job", "complete", key, token, "--output", f"{bucket}/none", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["reason"]) == (1, "output-not-verified")
    assert gateway.ask("job", "complete", key, token, "--output", "bucket").exit_code == 2
    assert asked(gateway, "job", "show", key)["state"] == "running"


def test_what_has_failed_for_good_is_tried_again_by_an_operator(gateway: GatewayProcess, key: str, queue: str) -> None:
    """A dead job says why, and waits again once it is redriven."""
    asked(gateway, "job", "submit", queue, key)
    (job,) = asked(gateway, "job", "receive", queue)["jobs"]
    fail(gateway, key, job["token"])
    again = told(gateway, "job", "submit", queue, key)
    assert again == f"{key} is dead in queue {queue}. Nothing was submitted; `job reopen` has it done again.\n"
    shown = told(gateway, "job", "show", key)
    assert "no such scene" in shown
    assert "dead" in shown
    assert told(gateway, "job", "redrive", queue, "--reason", "the scene is there now") == "Done: 1 job waits again.\n"
    assert asked(gateway, "job", "show", key)["state"] == "waiting"
    assert asked(gateway, "job", "redrive", queue, "--reason", "once more") == {"reopened": 0}


def test_what_is_done_is_done_again_when_an_operator_reopens_it(gateway: GatewayProcess, key: str, queue: str) -> None:
    """A job goes back to its queue, and is delivered with a higher token; a key that was leased without one is free."""
    asked(gateway, "job", "submit", queue, key)
    asked(gateway, "job", "receive", queue)
    asked(gateway, "job", "complete", key, "1")
    told_of = told(gateway, "job", "reopen", key, "--reason", "wrong texture")
    assert told_of.endswith("is reopened, and it waits in its queue again.\n")
    assert [job["token"] for job in asked(gateway, "job", "receive", queue)["jobs"]] == [2]
    leased = f"{key} of no queue"
    asked(gateway, "lease", "acquire", leased)
    asked(gateway, "job", "complete", leased, "1")
    again = told(gateway, "job", "submit", queue, leased)
    assert again == f"{leased} is completed. Nothing was submitted; `job reopen` has it done again.\n"
    assert "Priority" not in told(gateway, "job", "show", leased)
    assert told(gateway, "job", "reopen", leased, "--reason", "once more").endswith("the key may be leased again.\n")
    assert asked(gateway, "lease", "acquire", leased)["token"] == 2
    assert gateway.ask("job", "reopen", leased, "--reason", "not over").exit_code == 1


def fail(gateway: GatewayProcess, key: str, token: int) -> None:
    """As a worker says that no other attempt would do better."""
    with SyncGatewayClient(gateway.control_url) as client:
        client.engine.background.call(client.engine.calls.fail(key, token, "no such scene", retry=False))


def test_a_job_that_is_not_there(gateway: GatewayProcess, key: str) -> None:
    """Asked for by name, it is refused."""
    missing = gateway.ask("job", "show", key)
    assert (missing.exit_code, "There is no job" in missing.stderr) == (1, True)
