"""Jobs of real processes: workers and gateways killed at every step, a worker frozen while another takes over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.end_to_end.process import CLIENT, CONFIGURATION, gateway_over, wait_until
from tests.gateway_process import BOUND_S, ROOT, GatewayProcess, environment

QUICK = ("upstream.url=http://127.0.0.1:9", "fencing.settle_timeout_s=3", "fencing.settle_timeout_assembly_s=3")
JOBS, RECEIVE = "queues/renders/jobs", "queues/renders/receive"
ASKED = {"holder": "A", "visibility_s": 30}


def call(
    gateway: GatewayProcess, path: str, body: object = None, method: str = "POST", once: str = ""
) -> tuple[int, Any]:
    """Status and document. OSError, HTTPException: no answer has come."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Idempotency-Key": once} if once else {}
    try:
        with urlopen(
            Request(f"{gateway.control_url}/v1/{path}", data, headers, method=method), timeout=BOUND_S
        ) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def job(gateway: GatewayProcess, key: str) -> dict[str, Any]:
    status, shown = call(gateway, f"jobs/{key}", method="GET")
    assert status == 200
    return dict(shown)


def kinds(gateway: GatewayProcess, key: str) -> list[str]:
    """The key's history, the newest first."""
    return [event["kind"] for event in call(gateway, f"fences/{key}/events", method="GET")[1]["events"]]


def test_a_gateway_killed_between_each_write_and_its_answer(tmp_path: Path) -> None:
    """Whatever it was asked is asked again, and is as if it had been asked once: no job is lost, none delivered to two
    or with an old token, none completed twice."""
    armed = tmp_path / "armed"
    program = ("tests.end_to_end.dying", str(armed))
    gateway = GatewayProcess(tmp_path, *QUICK, configuration=CONFIGURATION, program=program).start()

    def killed_after(method: str, path: str, body: object, once: str = "") -> tuple[int, Any]:
        armed.write_text(method)
        with pytest.raises((OSError, HTTPException)):
            call(gateway, path, body, once=once)
        gateway.end()
        gateway.start()
        return call(gateway, path, body, once=once)

    def delivered(once: str) -> tuple[str, int, int]:
        (found,) = call(gateway, RECEIVE, ASKED, once=once)[1]["jobs"]
        return found["key"], found["token"], found["attempts"]

    try:
        status, shown = killed_after("submit", JOBS, {"key": "j", "payload": 1})
        assert (status, shown["state"]) == (200, "waiting")
        _, answer = killed_after("deliver", RECEIVE, ASKED, once="1")
        assert [(one["token"], one["attempts"]) for one in answer["jobs"]] == [(1, 1)]
        assert call(gateway, RECEIVE, ASKED | {"holder": "B"}) == (200, {"jobs": []})
        status, problem = killed_after("release", "jobs/j/release", {"token": 1})
        assert (status, problem["reason"], job(gateway, "j")["state"]) == (409, "lost", "waiting")
        assert delivered("2") == ("j", 2, 1)
        status, problem = killed_after("fail", "jobs/j/fail", {"token": 2, "delay_s": 0.1})
        assert (status, problem["reason"]) == (409, "lost")
        wait_until(lambda: job(gateway, "j")["state"] == "waiting")
        assert delivered("3") == ("j", 3, 2)
        status, done = killed_after("complete", "jobs/j/complete", {"token": 3, "result": "r"})
        assert (status, done["completion"]["token"], done["completion"]["result"]) == (200, 3, "r")
        assert kinds(gateway, "j").count("completed") == 1
        status, problem = killed_after("reopen", "jobs/j/reopen", {"reason": "again"})
        assert (status, problem["reason"], job(gateway, "j")["state"]) == (409, "not-ended", "waiting")
        assert delivered("4") == ("j", 4, 1)
    finally:
        gateway.kill()


def test_after_a_restart_running_jobs_have_their_full_time(tmp_path: Path) -> None:
    """They come back when it is over, and not before; what is delayed is due in its time; what waits still waits."""
    gateway = gateway_over(tmp_path, *QUICK).start()
    try:
        for key in ("run", "late", "wait"):
            assert call(gateway, JOBS, {"key": key})[0] == 201
        for key in ("run", "late"):
            (one,) = call(gateway, RECEIVE, ASKED | {"visibility_s": 2})[1]["jobs"]
            assert one["key"] == key
        assert call(gateway, "jobs/late/fail", {"token": 1, "delay_s": 1})[0] == 200
        gateway.stop()
        before = time.monotonic()
        gateway.start()
        received: dict[str, tuple[int, int, float]] = {}
        while len(received) < 3:
            (one,) = call(gateway, RECEIVE, ASKED | {"wait_s": 10})[1]["jobs"]
            received[one["key"]] = (one["token"], one["attempts"], time.monotonic() - before)
        assert {key: found[:2] for key, found in received.items()} == {"late": (2, 2), "run": (2, 2), "wait": (1, 1)}
        assert received["run"][2] >= 2
    finally:
        gateway.kill()


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway before the embedded store, with a bucket."""
    with gateway_over(tmp_path_factory.mktemp("rendering")) as gateway:
        gateway.__dict__["credentials"] = CLIENT
        gateway.s3.create_bucket(Bucket="films")
        yield gateway


class Workers:
    """Worker processes, ended with the test."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, step: str, *queues: str, visibility_s: float = 1) -> subprocess.Popen[str]:
        given = (self._gateway.control_url, self._gateway.url, CLIENT.access_key, CLIENT.secret_key)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.working", *given, str(visibility_s), step, *queues],
            env=environment(PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def workers(rendering: GatewayProcess) -> Iterator[Workers]:
    started = Workers(rendering)
    yield started
    started.end()


def test_a_worker_killed_at_any_step_is_replaced(rendering: GatewayProcess, workers: Workers) -> None:
    """Each job is finished by another worker, with one completion, whose token is the output's, too."""
    keys = ("received", "written", "completing")
    for step in keys:
        assert call(rendering, f"queues/{step}/jobs", {"key": step})[0] == 201
        assert workers.start(step, step).wait(BOUND_S) == -signal.SIGKILL
    told, _ = workers.start("none", *keys).communicate(timeout=2 * BOUND_S)
    finished = {line.split()[0] for line in told.splitlines()}
    assert {"received", "written"} <= finished
    for key in keys:
        done = job(rendering, key)
        assert (done["state"], kinds(rendering, key).count("completed")) == ("completed", 1)
        token = done["completion"]["token"]
        head = rendering.s3.get_object(Bucket="films", Key=f"renders/{key}/final")
        assert head["Body"].read() == str(token).encode()
        assert (token, done["attempts"]) == ((2, 2) if key in finished else (1, 1))


def test_a_frozen_worker_and_its_successor_complete_at_once(rendering: GatewayProcess, workers: Workers) -> None:
    """One completion is recorded, the successor's; the one who wakes is told so."""
    assert call(rendering, JOBS, {"key": "frozen"})[0] == 201
    first = workers.start("frozen", "renders")
    wait_until(lambda: _is_stopped(first.pid), BOUND_S)
    second = workers.start("frozen", "renders", visibility_s=30)
    wait_until(lambda: _is_stopped(second.pid), BOUND_S)
    for process in (first, second):
        process.send_signal(signal.SIGCONT)
    lines = [process.communicate(timeout=BOUND_S)[0].split() for process in (first, second)]
    assert lines[0][:2] == ["frozen", "1"]
    assert lines[0][2] in ("409", "412")
    assert lines[1] == ["frozen", "2", "200"]
    done = job(rendering, "frozen")
    assert (done["completion"]["token"], done["completion"]["result"]) == (2, second.pid)
    assert kinds(rendering, "frozen").count("completed") == 1


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
