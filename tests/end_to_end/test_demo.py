"""`demo`: the incident on real parts, how it is judged, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.demo import Timeline, run, start_gateway
from gateway.cli.demo_incident import DemoFault, Endpoint, play
from gateway.s3.sigv4 import Credentials
from tests.conftest import StoreServer
from tests.gateway_process import BOUND_S, GatewayProcess, before, command, environment


def test_the_incident_goes_as_told() -> None:
    """With the gateway the frozen worker's late write is refused and the object is the other's; without it the late
    write wins. Both stand in the timeline, in order and with their seconds; exit status 0."""
    result = command("demo")
    assert result.exit_code == 0, result.output
    _, with_gateway, without = re.split(r"^With.*\n", result.stdout, flags=re.MULTILINE)
    refused = "412 PreconditionFailed, StaleToken: token 33, floor 34"
    assert_in_order(with_gateway, "SIGSTOP", "worker B  is answered 200 OK", "SIGCONT", refused, "worker B rendered")
    assert_in_order(without, "SIGSTOP", "worker B  is answered 200 OK", "SIGCONT", "200 OK", "worker A rendered")
    seconds = [float(at) for at in re.findall(r"^ +(\d+\.\d\d) s  \S", result.stdout, re.MULTILINE)]
    assert len(seconds) == 16
    assert seconds == sorted(seconds)
    assert seconds[-1] < 40
    assert "\x1b" not in result.stdout


def assert_in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        at = text.index(part, at)


def test_without_a_fence_the_first_part_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Played with the bare store in the gateway's place, the demonstration sees that the late write won and ends with
    status 1; the part without a gateway still goes as told."""

    @asynccontextmanager
    async def no_gateway(directory: Path, behind: Endpoint) -> AsyncIterator[Endpoint]:
        yield replace(behind, bucket="renders")

    assert run(Timeline(silent=True), no_gateway, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["as_told"] is False
    assert told["faults"] == [
        "With the gateway: worker A's write should have been refused: 412 PreconditionFailed, StaleToken"
    ]
    assert told["timeline"][-1].keys() == {"at_s", "part", "who", "what"}


def test_with_a_fence_the_second_part_fails(store_server: StoreServer, tmp_path: Path) -> None:
    """Played with a gateway where none should be, the late write does not win, and that is a fault."""
    gateway = GatewayProcess(tmp_path, **before(store_server)).start()
    try:
        endpoint = Endpoint(gateway.url, gateway.credentials, f"unfenced-{os.getpid()}")
        with pytest.raises(DemoFault, match="late write should have won"):
            asyncio.run(play(endpoint, lambda who, what: None, fenced=False))
    finally:
        gateway.kill()


async def test_a_gateway_that_does_not_start_is_a_fault(tmp_path: Path) -> None:
    """Without a gateway there is nothing to show; the fault says why, from the gateway's own words."""
    (tmp_path / "gateway.db").mkdir()
    behind = Endpoint("http://127.0.0.1:9", Credentials("access", "secret"), "b")
    with pytest.raises(DemoFault, match=r"gateway\.db"):
        async with start_gateway(tmp_path, behind):
            pass


@pytest.mark.parametrize(
    ("number", "moment", "children_then"),
    [
        (signal.SIGINT, "worker A", 4),  # store, gateway, two workers
        (signal.SIGTERM, "store", 1),
        (signal.SIGKILL, "worker A", 4),
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
