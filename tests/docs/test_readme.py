"""The README shows what there is: its targets of make, and the demonstration as it is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.cli import demo_incident
from gateway.cli.demo import Timeline
from gateway.cli.demo_incident import A, B, Endpoint, play
from gateway.cli.demo_worker import SIZE_BYTES
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
    timeline = Timeline(silent=False)
    for part in ("With the gateway", "Without the gateway: the same, straight to the store"):
        timeline.begin(part)
        await tell(monkeypatch, timeline, fenced=part == "With the gateway")
    told = capsys.readouterr().out.splitlines()
    assert [untimed(line) for line in shown.splitlines() if line] == [untimed(line) for line in told if line]
    times = [float(at) for at in re.findall(r"^ +(\d+\.\d\d) s ", shown, re.MULTILINE)]
    assert times == sorted(times)
    assert len(times) == len(told) - 4  # two heads, each below an empty line


def untimed(line: str) -> str:
    return re.sub(r"^ *\d+\.\d\d s ", "AT ", line)


async def tell(monkeypatch: pytest.MonkeyPatch, timeline: Timeline, *, fenced: bool) -> None:
    """Play the incident with workers that only report what real ones do."""
    accepted = {"status": 200}
    refused = {
        "status": 412,
        "Code": "PreconditionFailed",
        "FencingReason": "StaleToken",
        "FencingToken": str(A),
        "FencingFloor": str(B),
    }
    reports = iter([{"halfway": SIZE_BYTES // 2}, accepted, refused if fenced else accepted])

    @asynccontextmanager
    async def worker(*_: object) -> AsyncIterator[Mock]:
        yield Mock()

    async def nothing(*_: object) -> None:
        pass

    async def report(*_: object) -> dict[str, Any]:
        return next(reports)

    async def whose(*_: object) -> str:
        return "B" if fenced else "A"

    for name, stand_in in (("_worker", worker), ("_make_bucket", nothing), ("_report", report), ("_whose", whose)):
        monkeypatch.setattr(demo_incident, name, stand_in)
    await play(Endpoint("http://127.0.0.1:1", Credentials("a", "s"), "renders"), timeline.tell, fenced=fenced)
