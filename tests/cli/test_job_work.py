"""`job work`: a command for each job of a queue, so many at a time."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.job_work import PAUSE_S
from tests.cli.working import BOUND_S, children, environ, is_gone, metric, running, until
from tests.cli.working import command as command_line
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before, command

SLEEPS = "echo $$; while :; do sleep 0.1; done"


@pytest.fixture
def queue() -> str:
    return f"renders {secrets.token_hex(4)}"


def submit(gateway: GatewayProcess, queue: str, *payloads: str) -> list[str]:
    """A job for each; their keys."""
    keys = [f"{queue}/{number}" for number in range(len(payloads))]
    for key, payload in zip(keys, payloads, strict=True):
        result = gateway.ask("job", "submit", queue, key, payload)
        assert result.exit_code == 0, result.output
    return keys


def job(gateway: GatewayProcess, key: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(gateway.ask("job", "show", key, "--json").stdout)
    return told


def test_each_job_has_its_command(gateway: GatewayProcess, queue: str, tmp_path: Path) -> None:
    """Payload, key and token are in its words and in its environment; status 0 completes it, any other is a failed
    attempt with its status; SIGTERM ends the worker when all that runs has ended."""
    keys = submit(gateway, queue, "a b", '{"frame": 7}', "fail")
    script = '[ "$1" = fail ] && exit 3; printf "%s|%s|%s|%s\\n" "$1" "$2" "$FENCING_PAYLOAD" "$FENCING_KEY" >> out'
    words = ("sh", "-c", f"cd {tmp_path}; {script}", "-", "{payload}", "{token}")
    with running(gateway, "job", "work", "--queue", queue, "--", *words) as work:
        until(lambda: [job(gateway, key)["state"] for key in keys] == ["completed", "completed", "delayed"])
        work.process.terminate()
        assert work.status() == 0
        assert f"{keys[2]}: attempt 1 has failed with exit status 3" in work.said()
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == [f"a b|1|a b|{keys[0]}", f'{{"frame":7}}|1|{{"frame":7}}|{keys[1]}']
    assert job(gateway, keys[2])["error"] == "exit status 3"


def test_payloads_that_no_command_can_be_given(gateway: GatewayProcess, queue: str) -> None:
    """A NUL, or more than the system passes on, fails that job alone and says why: the worker goes on."""
    keys = submit(gateway, queue, '"a\\u0000b"', "x" * 60_000, "last")
    words = ("sh", "-c", ":", "-", "{payload}" * 3)
    with running(gateway, "job", "work", "--queue", queue, "--", *words) as work:
        until(lambda: [job(gateway, key)["state"] for key in keys] == ["delayed", "delayed", "completed"])
        work.process.terminate()
        assert work.status() == 0
    assert all("this payload cannot be given to a command" in job(gateway, key)["error"] for key in keys[:2])


def test_where_nothing_can_be_started(gateway: GatewayProcess, queue: str) -> None:
    """A worker that has run out of descriptors gives the job back with no attempt counted, and ends with 1: it must not
    use up the attempts of a whole queue."""
    with running(gateway, "job", "work", "--queue", queue, "--", "true") as work:
        until(lambda: metric(gateway, "fencing_workers_waiting") == 1)
        resource.prlimit(work.process.pid, resource.RLIMIT_NOFILE, (3, 3))
        (key,) = submit(gateway, queue, "x")
        assert work.status() == 1
        assert "no command can be started" in work.said()
    assert (job(gateway, key)["state"], job(gateway, key)["attempts"]) == ("waiting", 0)


def test_where_there_is_no_such_program(gateway: GatewayProcess, queue: str, tmp_path: Path) -> None:
    """A machine that lacks it takes no job; where it goes away, as with a share, the job goes back with no attempt
    counted. One that a job names itself is that job's failure."""
    missing = command(
        "job", "work", "--queue", queue, "--", str(tmp_path / "none"), FENCING_GATEWAY_URL=gateway.control_url
    )
    assert (missing.exit_code, f"{tmp_path}/none: there is no such program" in missing.stderr) == (1, True)
    program = tmp_path / "render"
    program.symlink_to("/bin/true")
    with running(gateway, "job", "work", "--queue", queue, "--", str(program)) as work:
        until(lambda: metric(gateway, "fencing_workers_waiting") == 1)
        program.unlink()
        (key,) = submit(gateway, queue, "/nowhere")
        assert work.status() == 1
        assert f"no command can be started: {program}" in work.said()
    assert (job(gateway, key)["state"], job(gateway, key)["attempts"]) == ("waiting", 0)
    with running(gateway, "job", "work", "--queue", queue, "--", "{payload}") as work:
        until(lambda: job(gateway, key)["error"] == "exit status 127")
        work.process.terminate()
        assert work.status() == 0


def test_so_many_at_a_time(gateway: GatewayProcess, queue: str) -> None:
    """Two of three run, the third waits in the queue, where others could take it; SIGTERM lets them end and takes no
    more; a second one ends them, and their jobs go back with no attempt counted."""
    keys = submit(gateway, queue, *"abc")
    with running(gateway, "job", "work", "--queue", queue, "-n", "2", "--", "sh", "-c", SLEEPS) as work:
        pids = [int(work.line()), int(work.line())]
        assert sorted(job(gateway, key)["state"] for key in keys) == ["running", "running", "waiting"]
        work.process.terminate()
        assert work.process.stderr is not None
        assert "once more ends it" in work.process.stderr.readline()
        assert not any(map(is_gone, pids))
        work.process.terminate()
        assert work.status() == 0
        assert all(map(is_gone, pids))
    assert [(job(gateway, key)["state"], job(gateway, key)["attempts"]) for key in keys] == [("waiting", 0)] * 3


def test_a_terminal_that_hangs_up(gateway: GatewayProcess, queue: str) -> None:
    """What runs is ended at once, and the jobs go back with no attempt counted: nobody need wait for their time."""
    (key,) = submit(gateway, queue, "x")
    with running(gateway, "job", "work", "--queue", queue, "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line())
        work.process.send_signal(signal.SIGHUP)
        assert work.status() == 0
        assert is_gone(pid)
    assert (job(gateway, key)["state"], job(gateway, key)["attempts"]) == ("waiting", 0)


def test_a_job_lasts_as_the_queue_says(gateway: GatewayProcess, queue: str) -> None:
    """Without --visibility it is the queue's, 60 s where the settings say nothing."""
    (key,) = submit(gateway, queue, "x")
    with running(gateway, "job", "work", "--queue", queue, "--", "sh", "-c", SLEEPS) as work:
        work.line()
        assert 30 < job(gateway, key)["expires_in_s"] <= 60


def test_a_gateway_that_goes_away_for_a_while(store_server: StoreServer, queue: str, tmp_path: Path) -> None:
    """A worker that has been heard once goes on asking, also without any patience, and now and then says so: not as
    fast as it can."""
    child = GatewayProcess(tmp_path, **before(store_server)).start()
    with running(child, "job", "work", "--queue", queue, "--patience", "0", "--", "true") as work:
        until(lambda: metric(child, "fencing_workers_waiting") == 1)
        began_s = time.monotonic()  # before the end: who is kept from reading finds all lines there
        child.kill()
        assert work.process.stderr is not None
        told = [work.process.stderr.readline() for _ in range(3)]
        assert time.monotonic() - began_s > PAUSE_S
        assert all("no gateway answers" in line and "https" not in line for line in told)
        work.process.terminate()
        assert work.status() == 0


def test_a_command_that_is_deaf_is_ended_by_the_second_signal(gateway: GatewayProcess, queue: str) -> None:
    """Killed after the grace, also where it does not heed SIGTERM, or is stopped; no attempt is counted."""
    keys = submit(gateway, queue, "deaf", "stopped")
    script = 'trap "" TERM; echo $$; [ $1 = stopped ] && kill -STOP $$; while :; do sleep 0.1; done'
    options = ("--queue", queue, "-n", "2", "--grace", "0.2")
    with running(gateway, "job", "work", *options, "--", "sh", "-c", script, "-", "{payload}") as work:
        pids = [int(work.line()), int(work.line())]
        work.process.send_signal(signal.SIGINT)
        assert work.process.stderr is not None
        work.process.stderr.readline()
        work.process.send_signal(signal.SIGINT)
        assert work.status() == 0
        assert all(map(is_gone, pids))
        assert work.said() == ""
    assert [(job(gateway, key)["state"], job(gateway, key)["attempts"]) for key in keys] == [("waiting", 0)] * 2


@pytest.mark.parametrize("stream", ["full", "broken"])
def test_nobody_takes_what_it_says(gateway: GatewayProcess, queue: str, stream: str) -> None:
    """With a standard error on a full disk, or whose reader has gone, it works on after a failed attempt, and heeds the
    signals to stop, of which it says something, too."""
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full" if stream == "full" else writer, "wb") as nobody:
        keys = submit(gateway, queue, "1", "0")
        line = command_line("job", "work", "--queue", queue, "--", "sh", "-c", "exit $1", "-", "{payload}")
        with subprocess.Popen(line, env=environ(gateway), stdin=subprocess.DEVNULL, stderr=nobody) as work:
            try:
                until(lambda: [job(gateway, key)["state"] for key in keys] == ["delayed", "completed"])
                work.terminate()
                assert work.wait(BOUND_S) == 0
            finally:
                work.kill()


def test_what_is_ended_has_not_done_its_job(gateway: GatewayProcess, queue: str) -> None:
    """The second signal gives the job back also of a command that ends with status 0 when it is told to: it cannot be
    known whether there was more to do."""
    (key,) = submit(gateway, queue, "x")
    script = "trap 'exit 0' TERM; echo $$; while :; do sleep 0.1; done"
    with running(gateway, "job", "work", "--queue", queue, "--", "sh", "-c", script) as work:
        work.line()
        work.process.terminate()
        assert work.process.stderr is not None
        work.process.stderr.readline()
        work.process.terminate()
        assert work.status() == 0
    assert (job(gateway, key)["state"], job(gateway, key)["attempts"]) == ("waiting", 0)


def test_a_job_for_which_no_lease_lasts_is_not_tried_for_ever(
    store_server: StoreServer, queue: str, tmp_path: Path
) -> None:
    """Where the gateway renews none, the command is ended in time, and that was an attempt: the job is dead after its
    last."""
    settings = '[lease]\nmax_renewals = 0\n[[queue]]\nname = "*"\nmax_attempts = 2\nbackoff_s = 0\n'
    child = GatewayProcess(tmp_path, configuration=settings, **before(store_server)).start()
    (key,) = submit(child, queue, "x")
    with running(child, "job", "work", "--queue", queue, "--visibility", "1", "--", "sh", "-c", SLEEPS) as work:
        until(lambda: job(child, key)["state"] == "dead")
        work.process.terminate()
        assert work.status() == 0
        assert [work.line().isdecimal() for _ in range(3)] == [True, True, False]
    child.kill()


def test_a_guard_that_is_killed_takes_its_command_along(gateway: GatewayProcess, queue: str) -> None:
    """Nothing works without its guard: the next renewal finds it dead, and the command is killed; the worker goes
    on."""
    submit(gateway, queue, "x")
    options = ("--queue", queue, "--visibility", "3")
    with running(gateway, "job", "work", *options, "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line())
        (guard,) = [one for one in children(work.process.pid) if one != pid]
        os.kill(guard, signal.SIGKILL)
        until(lambda: is_gone(pid))
        assert is_gone(guard)
        work.line()


def test_a_lost_job_ends_its_command_alone(gateway: GatewayProcess, queue: str) -> None:
    """Overtaken by an operator, a command ends, and it is told; the worker goes on with what is ready: the same job,
    under a higher token."""
    (key,) = submit(gateway, queue, "payload")
    options = ("--queue", queue, "--visibility", "2")
    with running(gateway, "job", "work", *options, "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line())
        gateway.raise_floor(key, 9)
        work.line()
        assert is_gone(pid)
        assert (job(gateway, key)["state"], job(gateway, key)["token"]) == ("running", 10)
        assert work.process.stderr is not None
        assert key in work.process.stderr.readline()


def test_killed_it_leaves_nothing_behind(gateway: GatewayProcess, queue: str) -> None:
    """The guards end what it ran; the jobs are delivered again."""
    (key,) = submit(gateway, queue, "x")
    options = ("--queue", queue, "--visibility", "2")
    with running(gateway, "job", "work", *options, "--", "sh", "-c", SLEEPS) as work:
        pid = int(work.line())
        work.process.kill()
        until(lambda: is_gone(pid))
    with running(gateway, "job", "work", *options, "--", sys.executable, "-c", "pass") as work:
        until(lambda: job(gateway, key)["state"] == "completed")
        work.process.send_signal(signal.SIGINT)
        assert work.status() == 0
    assert job(gateway, key)["completion"]["token"] == 2


def test_where_it_cannot_work(gateway: GatewayProcess, queue: str) -> None:
    """A queue that may not be and no command are misuse, 2; nobody there is 3."""
    misused = command("job", "work", "--queue", "\n", "--", "true", FENCING_GATEWAY_URL=gateway.control_url)
    assert (misused.exit_code, "queue" in misused.stderr) == (2, True)
    nobody = ("job", "work", "--queue", queue, "--patience", "0", "--url", "http://127.0.0.1:1", "--", "true")
    assert command(*nobody).exit_code == 3
    assert gateway.ask("job", "work", "--queue", queue).exit_code == 2
