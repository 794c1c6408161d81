"""`demo`: the story on real parts, that it can fail, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gateway.cli.demo import Timeline, run
from gateway.cli.demonstration.gateway import CONFIGURATION, serving, start_gateway
from gateway.cli.demonstration.processes import DemoFault, Endpoint
from gateway.cli.demonstration.receiver import Receiver
from gateway.s3.sigv4 import Credentials
from tests.gateway_process import BOUND_S, command, environment

STALE = "answered 412 PreconditionFailed, StaleToken: token 2, floor 3"
STORY = (
    ("Preparation", "SeaweedFS", "gateway   runs at http", "receiver  listens"),
    ("With the gateway: a worker crashes", "worker X  takes job-1", "SIGKILL", "object    is not there"),
    (
        "With the gateway: the next one pauses",
        *("worker A  takes job-1, attempt 2", "worker A  is frozen (SIGSTOP)", "worker B  takes job-1, attempt 3"),
        *("worker B  has sent all of it, and is answered 200 OK", "worker B  reports the job as done"),
    ),
    (
        "With the gateway: it wakes up, too late",
        *("SIGCONT", f"worker A  has sent all of it, and is {STALE}", "answered 409 completed by token 3"),
        "worker A  notices that its lease is lost, and stops itself: exit status 1",
    ),
    (
        "With the gateway: what is left",
        *(
            "worker B rendered",
            "job       is completed: done with token 3, by worker B",
            "told of 1 completion, though",
        ),
    ),
    (
        "Without the gateway: the same, straight to the store",
        *("worker A  is frozen (SIGSTOP)", "worker B  has sent all of it, and is answered 200 OK", "SIGCONT"),
        *("worker A  has sent all of it, and is answered 200 OK", "worker A rendered"),
    ),
)


def test_the_story_goes_as_told() -> None:
    """Crash: the job is picked up again. Pause: the late write is refused and the object is the other's. Self-abort:
    the late worker stops itself. Completion: one, by the other's token, announced once. Without the gateway the late
    write wins. All of it stands in the timeline, in order and with its seconds; exit status 0."""
    result = command("demo")
    assert result.exit_code == 0, result.output
    parts = re.split(r"\n\n", result.stdout.strip())
    assert len(parts) == len(STORY) + 1
    for part, told in zip(parts, STORY, strict=False):
        assert_in_order(part, *told)
    seconds = [float(at) for at in re.findall(r"^ +(\d+\.\d\d) s  \S", result.stdout, re.MULTILINE)]
    assert len(seconds) == 26
    assert seconds == sorted(seconds)
    assert "\x1b" not in result.stdout


def assert_in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        at = text.index(part, at)


def test_without_a_fence_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """With a rule that only observes, the demonstration sees that the late write has won, and that the other's
    completion could not be verified, and ends with status 1. What a program reads says so."""
    observing = CONFIGURATION.replace("[[rule]]", '[[rule]]\nmode = "observe"')
    assert run(Timeline(silent=True), partial(serving, configuration=observing), as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["as_told"] is False
    head, b = "With the gateway: ", "worker B's"
    assert told["faults"] == [
        f"{head}{b} completion should have been recorded",
        f"{head}worker A's write should have been refused: 412 PreconditionFailed, StaleToken",
        f"{head}worker A's completion should have been refused: 409 completed, by {b} token",
        f"{head}the object should be {b}",
        f"{head}the completion should name {b} token",
        f"{head}one completion should have been announced, {b}",
    ]
    assert (told["with_gateway"]["tokens"], told["with_gateway"]["winner"]) == ([1, 2, 3], "A")
    assert told["without_gateway"]["late_upload"]["status"] == 200
    assert told["timeline"][-1].keys() == {"at_s", "part", "who", "what"}


async def test_a_gateway_that_does_not_start_is_a_fault(tmp_path: Path) -> None:
    """Without a gateway there is nothing to show; the fault says why, from the gateway's own words."""
    (tmp_path / "gateway.db").mkdir()
    behind = Endpoint("http://127.0.0.1:9", Credentials("access", "secret"), "b")
    async with Receiver() as receiver:
        with pytest.raises(DemoFault, match=r"gateway\.db"):
            async with start_gateway(tmp_path, behind, receiver):
                pass


@pytest.mark.parametrize(
    ("number", "moment", "children_then"),
    [
        (signal.SIGINT, "worker X", 5),  # store, gateway, three workers
        (signal.SIGTERM, "store", 1),
        (signal.SIGKILL, "SIGSTOP", 4),  # worker X is dead, worker A stopped
    ],
)
def test_nothing_stays_behind(number: signal.Signals, moment: str, children_then: int, tmp_path: Path) -> None:
    """Ended in the middle, also by force, the demonstration leaves no process; its directory goes too where it could
    still be removed. The status is not 0."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gateway", "demo"],
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        descriptors = [os.pidfd_open(int(pid)) for pid in children]
        process.send_signal(number)
        try:
            assert process.wait(BOUND_S) not in (0, 2, 3)
        finally:
            process.kill()
    assert len(children) >= children_then
    for descriptor in descriptors:
        # A pidfd becomes readable when its process has ended.
        assert wait_for_end(descriptor)
        os.close(descriptor)
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []


def wait_for_end(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], BOUND_S)[0])
