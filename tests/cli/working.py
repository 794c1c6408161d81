"""Commands that work under leases, as processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.gateway_process import ROOT, GatewayProcess, environment

BOUND_S = 40


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def environ(gateway: GatewayProcess, **more: str) -> dict[str, str]:
    """How a worker finds the gateway."""
    return environment(FENCING_GATEWAY_URL=gateway.control_url, PYTHONPATH=str(ROOT), **more)


def run(gateway: GatewayProcess, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command from its begin to its end."""
    return subprocess.run(
        command(*arguments),
        env=environ(gateway, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


class Working:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line that it, or what it runs, has written."""
        return self._stdout.readline().strip()

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def status(self) -> int:
        return self.process.wait(BOUND_S)

    def said(self) -> str:
        """All of its standard error; it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def running(gateway: GatewayProcess, *arguments: str, **more: str) -> Iterator[Working]:
    """The command for as long as the context lasts."""
    with subprocess.Popen(
        command(*arguments),
        env=environ(gateway, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Working(process)
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    """Its children that live, whichever of its threads has started them."""
    found = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(one) for one in " ".join(found).split()]


def metric(gateway: GatewayProcess, name: str) -> float:
    """What it tells Prometheus."""
    with urllib.request.urlopen(f"{gateway.control_url}/metrics", timeout=BOUND_S) as answer:
        (value,) = re.findall(rf"^{re.escape(name)} ([\d.]+)$", answer.read().decode(), re.M)
    return float(value)
