"""`run`: a command that works under a lease, whatever happens to it, to the lease, and to `run` itself."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.clock import HolderClock
from tests.cli.working import BOUND_S, children, command, environ, is_gone, metric, run, running, until
from tests.client.rig import served
from tests.conftest import StoreServer
from tests.gateway_process import ROOT, GatewayProcess, before, environment
from tests.gateway_process import command as ask

TTL_S = 2.0
TTL = ("--ttl", str(TTL_S))
LATE_S = 1.5
"""What a busy machine may add."""
SLEEPS = "echo $$ $FENCING_TOKEN; while :; do sleep 0.1; done"
PUTS = """
import os, sys, boto3
from botocore.config import Config
s3 = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}))
print(os.getpid(), flush=True)
if len(sys.argv) > 2:
    sys.stdin.readline()
try:
    s3.put_object(Bucket=sys.argv[1], Key="out", Body=b"rendered under " + os.environ["FENCING_TOKEN"].encode())
except Exception as error:
    print(getattr(error, "response", {}).get("Error", {}).get("FencingReason"), error, flush=True)
    sys.exit(9)
"""


def job(gateway: GatewayProcess, key: str) -> dict[str, object]:
    result = gateway.ask("job", "show", key, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, object] = json.loads(result.stdout)
    return told


# --- what it does


def test_what_the_command_finds(gateway: GatewayProcess, key: str) -> None:
    """Key, token, bound credentials, endpoint and region are in its environment, and nothing that would overrule them;
    exit status 0 completes the job."""
    done = run(gateway, "run", "--key", key, "--", "env", "-0", AWS_PROFILE="somebody-else")
    assert done.returncode == 0, done.stderr
    found = dict(one.split("=", 1) for one in done.stdout.split("\0") if one)
    assert (found["FENCING_KEY"], found["FENCING_TOKEN"]) == (key, "1")
    assert found["FENCING_GATEWAY_URL"] == gateway.control_url
    assert found["AWS_ENDPOINT_URL_S3"] == found["AWS_ENDPOINT_URL"] == found["S3_ENDPOINT_URL"] == gateway.url
    assert found["AWS_REGION"] == found["AWS_DEFAULT_REGION"] == "us-east-1"
    assert found["AWS_ACCESS_KEY_ID"].startswith("FGLS")
    assert {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} < found.keys()
    assert "AWS_PROFILE" not in found
    assert job(gateway, key)["state"] == "completed"


def test_an_endpoint_that_is_set_already_stays(gateway: GatewayProcess, key: str) -> None:
    """Whichever variable says it, s5cmd's own too: SDKs and tools find the same one."""
    named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
    done = run(gateway, "run", "--key", key, "--", "env", "-0", S3_ENDPOINT_URL="http://here:9000")
    found = dict(one.split("=", 1) for one in done.stdout.split("\0") if one)
    assert [found[name] for name in named] == ["http://here:9000"] * 3, done.stderr


def test_an_sdk_that_knows_of_nothing_writes_fenced(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """boto3 as anybody uses it, with no change: its object bears key and token, and is verified as the job's output."""
    named = ("--output", f"{bucket}/out")
    done = run(gateway, "run", "--key", key, *named, "--", sys.executable, "-c", PUTS, bucket)
    assert done.returncode == 0, done.stderr + done.stdout
    head = gateway.s3.head_object(Bucket=bucket, Key="out")
    assert head["ResponseMetadata"]["HTTPHeaders"]["x-fencing-object-token"] == "1"
    completion = job(gateway, key)["completion"]
    assert isinstance(completion, dict)
    assert completion["outputs"] == [{"bucket": bucket, "key": "out"}]


def test_a_work_that_takes_longer_than_its_credentials_are_good(key: str) -> None:
    """The command writes with what it was given at its start, after the end of that: the lease is held."""
    with served(session_lifetime_s=0) as gateway:
        done = subprocess.run(
            command("run", "--key", key, "--output", "b/out", "--", sys.executable, "-c", PUTS, "b"),
            env=environment(FENCING_GATEWAY_URL=gateway.url, PYTHONPATH=str(ROOT)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert gateway.rig.stored("out") is not None


def test_an_output_that_is_not_there(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """The job is not complete, whatever the command's status; the lease is free again, and nothing else is said."""
    refused = run(gateway, "run", "--key", key, "--output", f"{bucket}/none", "--", "true")
    assert (refused.returncode, "none" in refused.stderr) == (1, True), refused.stderr
    assert refused.stderr.startswith("fencing-gateway: The command has run. The completion of ")
    assert refused.stderr.endswith("Nothing has been recorded.\n")
    assert run(gateway, "run", "--key", key, "--", "true").returncode == 0


def test_a_result_from_a_file(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    """JSON is kept as such, everything else as text. Without one that can be told there is no completion: status 1, as
    where the gateway refuses it, for the command has run."""
    file = tmp_path / "result.json"
    script = f"printf '%s' '{{\"frames\": 240}}' > {file}"
    assert run(gateway, "run", "--key", key, "--result", str(file), "--", "sh", "-c", script).returncode == 0
    completion = job(gateway, key)["completion"]
    assert isinstance(completion, dict)
    assert completion["result"] == {"frames": 240}
    for name, size, why in (
        (
            "none",
            0,
            "--result {file} cannot be read: No such file or directory. The command has run",
        ),
        ("long", 65537, "--result {file} is larger than 65536 bytes. The command has run"),
        ("escaped", 65000, "`result` is at most 65536 bytes"),
    ):
        file = tmp_path / name
        if size:
            file.write_text('"' * size)
        refused = run(gateway, "run", "--key", f"{key}-{name}", "--result", str(file), "--", "true")
        assert (refused.returncode, why.format(file=file) in refused.stderr) == (1, True), refused.stderr
        assert gateway.ask("job", "show", f"{key}-{name}").exit_code == 1


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)]
)
def test_the_status_is_the_command_s(gateway: GatewayProcess, key: str, script: str, status: int) -> None:
    """Passed on, 128 and its number for a signal; the lease is given back, and the job not completed."""
    assert run(gateway, "run", "--key", key, "--", "sh", "-c", script).returncode == status
    assert run(gateway, "run", "--key", key, "--", "sh", "-c", "exit $FENCING_TOKEN").returncode == 2


def test_what_cannot_be_run(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    """As shells say it: 127 for what is not there, 126 for what is no program."""
    missing = run(gateway, "run", "--key", key, "--", "no-such-program")
    assert (missing.returncode, "no-such-program: No such file" in missing.stderr) == (127, True)
    assert run(gateway, "run", "--key", key, "--", str(tmp_path)).returncode == 126
    nameless = run(gateway, "run", "--key", key, "--", "")
    assert (nameless.returncode, len(nameless.stderr.splitlines())) == (127, 1)


def test_a_program_that_is_not_there_and_nobody_to_tell(gateway: GatewayProcess, key: str) -> None:
    """The status is the same where standard error is closed."""
    line = shlex.join([*command("run", "--key", key), "--", "no-such-program"])
    ended = subprocess.run(["sh", "-c", f"{line} 2>&-"], env=environ(gateway), stdin=subprocess.DEVNULL, check=False)
    assert ended.returncode == 127


def test_its_own_failures(gateway: GatewayProcess, key: str) -> None:
    """1 where the lease is another's or the job is done, 2 for what makes no sense, 3 where nobody answers; the command
    is not begun."""
    begun = ("--", "echo", "begun")
    with running(gateway, "run", "--key", key, "--holder", "first", "--", "sh", "-c", SLEEPS) as first:
        first.line()
        held = run(gateway, "run", "--key", key, *begun)
        assert (held.returncode, held.stdout, "'first'" in held.stderr) == (1, "", True)
        first.process.terminate()
        assert first.status() == 143
    assert run(gateway, "run", "--key", key, "--", "true").returncode == 0
    done = run(gateway, "run", "--key", key, *begun)
    assert (done.returncode, done.stdout, "completed" in done.stderr) == (1, "", True)
    assert ask("run", "--key", key, FENCING_GATEWAY_URL=gateway.control_url).exit_code == 2
    assert ask("run", *begun, FENCING_GATEWAY_URL=gateway.control_url).exit_code == 2
    bad = ("run", "--key", key, "--output", "bucket", *begun)
    assert ask(*bad, FENCING_GATEWAY_URL=gateway.control_url).exit_code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert ask("run", "--key", key, "--patience", "0", "--url", nobody, *begun).exit_code == 3


def test_waiting_in_line(gateway: GatewayProcess, key: str) -> None:
    """With --wait the second begins when the first has ended, under a higher token; meanwhile it says so, and
    how to find out who has it."""
    with running(gateway, "run", "--key", key, *TTL, "--", "sh", "-c", SLEEPS) as first:
        assert first.line().endswith(" 1")
        with running(gateway, "run", "--key", key, "--wait", str(BOUND_S), "--", "sh", "-c", SLEEPS) as second:
            assert second.process.stderr is not None
            told = second.process.stderr.readline()
            assert f"waiting for a lease on {key!r}; fencing-gateway fence show {shlex.quote(key)} tells" in told
            first.process.terminate()
            assert second.line().endswith(" 2")
            second.process.terminate()
            assert second.status() == 143


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"])
def test_signals_are_passed_on(gateway: GatewayProcess, key: str, name: str) -> None:
    """What is sent to `run` reaches the command, which decides."""
    script = f"trap 'echo heard; exit 5' {name.removeprefix('SIG')}; echo $$; while :; do sleep 0.05; done"
    with running(gateway, "run", "--key", key, "--", "bash", "-c", script) as work:
        work.line()
        work.process.send_signal(getattr(signal, name))
        assert (work.line(), work.status()) == ("heard", 5)


# --- what happens to the lease


def test_a_lost_lease_ends_the_command_and_all_it_has_started(gateway: GatewayProcess, key: str) -> None:
    """Taken over by an operator: SIGTERM, and SIGKILL for what does not listen, its children included; status 1."""
    script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & echo $$; wait"
    with running(gateway, "run", "--key", key, *TTL, "--", "sh", "-c", script) as work:
        pids = [int(work.line()), int(work.line())]
        gateway.raise_floor(key, 7)
        assert work.status() == 1
        assert "overtaken" in work.said()
        assert all(map(is_gone, pids))


def test_a_gateway_that_has_gone_for_good(store_server: StoreServer, key: str, tmp_path: Path) -> None:
    """Nobody renews: the command has ended by the deadline, and what it had time for it was asked to do."""
    child = GatewayProcess(tmp_path, **before(store_server)).start()
    script = "trap 'echo asked; exit 0' TERM; echo $$; while :; do sleep 0.05; done"
    with running(child, "run", "--key", key, *TTL, "--", "sh", "-c", script) as work:
        work.line()
        child.kill()
        sure = HolderClock.monotonic() + TTL_S
        assert work.line() == "asked"
        assert work.status() == 1
        assert HolderClock.monotonic() < sure + LATE_S
        assert "could not be renewed in time: no gateway answers" in work.said()


def test_a_gateway_that_is_gone_when_the_command_has_run(store_server: StoreServer, key: str, tmp_path: Path) -> None:
    """Status 3, as where none was reached at all; the message tells the two apart."""
    child = GatewayProcess(tmp_path, **before(store_server)).start()
    options = ("--key", key, "--ttl", "1", "--patience", "0")
    result = run(child, "run", *options, "--", "sh", "-c", f"kill -9 {child.process.pid}")
    child.kill()
    assert result.returncode == 3
    assert "no gateway answers" in result.stderr
    assert "The command has run; whether its job is completed is not known" in result.stderr


def test_a_gateway_that_restarts(store_server: StoreServer, key: str, tmp_path: Path) -> None:
    """Killed and started again in mid-lease: the command never hears of it, and completes under the same token."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sets = (f"control.listen=127.0.0.1:{port}", "fencing.settle_timeout_s=3")
    child = GatewayProcess(tmp_path, *sets, **before(store_server)).start()
    go = tmp_path / "go"
    script = f"echo $$; while [ ! -e {go} ]; do sleep 0.05; done; echo $FENCING_TOKEN"
    try:
        with running(child, "run", "--key", key, "--ttl", "20", "--", "sh", "-c", script) as work:
            work.line()
            child.kill()
            child.start()
            until(lambda: renewals(child) > 0)
            go.touch()
            assert (work.line(), work.status()) == ("1", 0), work.said()
        completion = job(child, key)["completion"]
        assert isinstance(completion, dict)
        assert completion["token"] == 1
    finally:
        child.kill()


def renewals(gateway: GatewayProcess) -> float:
    """How many this run of the gateway has seen."""
    return metric(gateway, 'fencing_leases_total{event="renewed"}')


def waiting(gateway: GatewayProcess) -> float:
    """How many stand in line."""
    return metric(gateway, "fencing_leases_waiting")


# --- what happens to run


def test_frozen_past_the_lease(gateway: GatewayProcess, key: str) -> None:
    """`run` alone is stopped and renews no more: the command has ended by the deadline all the same, somebody else has
    the lease, and `run`, continued, says so."""
    with running(gateway, "run", "--key", key, *TTL, "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line().split()[0])
        work.process.send_signal(signal.SIGSTOP)
        sure = HolderClock.monotonic() + TTL_S
        until(lambda: is_gone(pid))
        assert HolderClock.monotonic() < sure + LATE_S
        other = run(gateway, "run", "--key", key, "--wait", str(BOUND_S), "--", "sh", "-c", "echo $FENCING_TOKEN")
        assert other.stdout == "2\n"
        work.process.send_signal(signal.SIGCONT)
        assert work.status() == 1


def test_everything_frozen_past_the_lease(gateway: GatewayProcess, key: str, bucket: str) -> None:
    """`run`, its guard and the command are stopped, as a paused machine's processes are. Continued, the command alone
    comes first and writes: it is refused; then it is ended."""
    script = (sys.executable, "-c", PUTS, bucket, "wait")
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "run", "--key", key, *TTL, "--", *script],
        env=environ(gateway),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        frozen = [process.pid, *children(process.pid)]
        assert worker in frozen
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        other = run(gateway, "run", "--key", key, "--wait", str(BOUND_S), "--", sys.executable, "-c", PUTS, bucket)
        assert other.returncode == 0, other.stderr
        process.stdin.write("go on\n")
        process.stdin.flush()
        os.kill(worker, signal.SIGCONT)
        assert process.stdout.readline().split()[0] in ("StaleToken", "Sealed")
        for pid in frozen:
            if not is_gone(pid):
                os.kill(pid, signal.SIGCONT)
        assert process.wait(BOUND_S) == 1
    assert gateway.s3.get_object(Bucket=bucket, Key="out")["Body"].read() == b"rendered under 2"


def test_killed_it_leaves_nothing_behind(gateway: GatewayProcess, key: str) -> None:
    """SIGKILL for `run`: the guard ends the command, with its children, at once."""
    with running(gateway, "run", "--key", key, "--ttl", "30", "--", "sh", "-c", f"sh -c '{SLEEPS}' & {SLEEPS}") as work:
        pids = [int(work.line().split()[0]), int(work.line().split()[0])]
        began_s = time.monotonic()
        work.process.kill()
        until(lambda: all(map(is_gone, pids)))
        assert time.monotonic() - began_s < 10


def test_a_guard_that_is_killed_takes_the_command_along(gateway: GatewayProcess, key: str) -> None:
    """Nothing works without its guard: `run` sees it die, and kills the command."""
    with running(gateway, "run", "--key", key, "--ttl", "30", "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line().split()[0])
        (guard,) = [one for one in children(work.process.pid) if one != pid]
        os.kill(guard, signal.SIGKILL)
        assert work.status() == 1
        assert is_gone(pid)


def test_ended_while_it_waits_in_line(gateway: GatewayProcess, key: str) -> None:
    """SIGTERM before there is a lease: it ends at once, begins nothing, and leaves the line."""
    with running(gateway, "run", "--key", key, *TTL, "--", "sh", "-c", SLEEPS) as first:
        first.line()
        with running(gateway, "run", "--key", key, "--wait", "60", "--", "echo", "begun") as second:
            until(lambda: waiting(gateway) == 1)
            second.process.terminate()
            assert (second.status(), second.line()) == (143, "")
        until(lambda: waiting(gateway) == 0)


@pytest.mark.parametrize("call", [("run", "--key"), ("lease", "acquire")])
def test_interrupted_while_it_waits_in_line(gateway: GatewayProcess, key: str, call: tuple[str, ...]) -> None:
    """It dies of Ctrl-C, so that a script ends with it: with a status of its own it would tell that it was refused."""
    with running(gateway, "run", "--key", key, *TTL, "--", "sh", "-c", SLEEPS) as first:
        first.line()
        rest = ("--", "echo", "begun") if call[0] == "run" else ()
        with running(gateway, *call, key, "--wait", "60", *rest) as second:
            until(lambda: waiting(gateway) == 1)
            second.process.send_signal(signal.SIGINT)
            assert (second.status(), second.line()) == (-signal.SIGINT, "")
        until(lambda: waiting(gateway) == 0)
