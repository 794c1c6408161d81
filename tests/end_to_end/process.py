"""A gateway as its users run it: a child process with a configuration file, ended by its pid."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.s3.sigv4 import Credentials

CLIENT = Credentials("ENDTOENDKEY", "end-to-end-secret")
START_S = 25.0


class GatewayProcess:
    """One `fencing-gateway serve` over `directory`; `upstream` is a TOML section, the embedded store by default."""

    def __init__(self, directory: Path, upstream: str = "", extra: str = "") -> None:
        self.directory = directory
        self._config = directory / "gateway.toml"
        self._config.write_text(
            f"""
[s3]
listen = "127.0.0.1:0"
[control]
listen = "127.0.0.1:0"
[store]
url = "sqlite:{directory}/gateway.db"
[[client]]
access_key = "{CLIENT.access_key}"
secret_key = "{CLIENT.secret_key}"
[[rule]]
match = "renders/{{job}}/**"
key = "{{job}}"
{extra}
[upstream]
directory = "{directory}/store"
{upstream}
"""
        )
        self.log = directory / "gateway.log"
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.control = ""

    def start(self) -> GatewayProcess:
        """Returns when it serves."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(self._config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        self.url = self._line("S3 endpoint")
        self.control = self._line("Control API")
        return self

    def _line(self, label: str) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(label):
                return line.split()[-1]
        raise AssertionError(f"the gateway has ended: {self.log.read_text()[-2000:]}")

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it and wait for its end."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            self.process.wait(30)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One call of the control API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.control + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def fence(self, key: str) -> Any:
        """What the control API shows of a key."""
        status, shown = self.call("GET", f"/v1/fences/{quote(key, safe='')}")
        assert status == 200
        return shown


@contextlib.contextmanager
def running(directory: Path, upstream: str = "", extra: str = "") -> Iterator[GatewayProcess]:
    """A gateway that serves inside the context."""
    gateway = GatewayProcess(directory, upstream, extra)
    try:
        yield gateway.start()
    finally:
        gateway.kill(signal.SIGTERM)


def wait_until(holds: Any, bound_s: float = 10.0) -> None:
    """Wait for another process's state, which sends no event."""
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)
