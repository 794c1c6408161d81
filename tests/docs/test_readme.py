"""The README shows what there is: its targets of make, and the demonstration as it is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from gateway.cli.demo import Timeline
from gateway.cli.demonstration import incident
from gateway.cli.demonstration.gateway import DemoGateway
from gateway.cli.demonstration.processes import Endpoint
from gateway.cli.demonstration.task import SIZE_BYTES
from gateway.s3.sigv4 import Credentials
from tests.docs.pages import PAGES, ROOT, blocks, name_of

README = ROOT / "README.md"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_targets_of_make_exist(path: Any) -> None:
    """Every `make TARGET` is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(), re.MULTILINE))
    assert named <= targets
    assert named or path != README


async def test_the_timeline_is_the_demonstrations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's timeline has the lines that the demonstration tells when all goes as told; the times are its own."""
    (shown,) = [block.text for block in blocks(README) if "SIGSTOP" in block.text]
    await tell(monkeypatch, Timeline(silent=False))
    told = capsys.readouterr().out.splitlines()
    assert [untimed(line) for line in shown.splitlines() if line] == [untimed(line) for line in told if line]
    times = [float(at) for at in re.findall(r"^ +(\d+\.\d\d) s ", shown, re.MULTILINE)]
    assert times == sorted(times)
    assert len(times) == sum(" s  " in line for line in told)


def untimed(line: str) -> str:
    return re.sub(r"^ *\d+\.\d\d s ", "AT ", line)


async def tell(monkeypatch: pytest.MonkeyPatch, timeline: Timeline) -> None:
    """Play both parts with workers, a gateway and a receiver that only say what real ones do."""
    receiver = Mock(told=["completed:job-1:3"], first=AsyncMock())
    record = {"state": "completed", "completion": {"token": 3, "holder": "worker B"}}
    control = Mock(ask=Mock(return_value=record), webhooks=Mock(return_value=[{"waiting": 0}]))
    whose = AsyncMock(side_effect=[None, "B", "A"])
    for name, stand_in in (("workers", crew), ("_make_bucket", AsyncMock()), ("_whose", whose)):
        monkeypatch.setattr(incident, name, stand_in)
    monkeypatch.setattr(incident, "ControlClient", lambda *_: nullcontext(control))
    endpoint = Endpoint("http://127.0.0.1:1", Credentials("a", "s"), "renders")
    gateway = DemoGateway(endpoint, "http://127.0.0.1:1")
    outcome = await incident.play_with_gateway(gateway, receiver, timeline.begin, timeline.tell)
    assert outcome.faults() == []
    assert (await incident.play_without_gateway(endpoint, timeline.begin, timeline.tell)).faults() == []


@asynccontextmanager
async def crew(*names: str) -> AsyncIterator[list[Mock]]:
    """Three workers with the gateway, two without."""
    done = {"status": 200}
    late = {"status": 412, "code": "PreconditionFailed", "reason": "StaleToken", "token": "2", "floor": "3"}
    a_job, half = ("job", {"token": 2, "attempts": 2}), ("halfway", {"sent_bytes": SIZE_BYTES // 2})
    says = {
        "X": [("job", {"token": 1, "attempts": 1}), half],
        "A": [a_job, half, ("upload", late), ("completion", {"status": 409, "reason": "completed", "token": 3})],
        "B": [("job", {"token": 3, "attempts": 3}), ("upload", done), ("completion", done)],
    }
    says["A"].append(("stopped", {}))
    if "X" not in names:
        says = {"A": [half, ("upload", done)], "B": [("upload", done)]}
    yield [worker(name, says[name]) for name in names]


def worker(name: str, says: list[tuple[str, dict[str, Any]]]) -> Mock:
    left = iter(says)

    async def report(what: str) -> dict[str, Any]:
        said, facts = next(left)
        assert said == what
        return facts

    one = Mock(report=report, freeze=AsyncMock(), kill=AsyncMock(), ended=AsyncMock(return_value=1))
    one.name = name
    return one
