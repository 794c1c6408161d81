"""What all clients have in common: five calls, so that one set of tests speaks of all of them, and how they fail.

Every call does what the client's own users would do; where a client can say a token, it says it in its own way.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tests.conftest import REGION
from tests.gateway_process import Target

TIMEOUT_S = 120
HEADER = "X-Fencing-Token"
ALL = frozenset({"upload", "copy", "delete"})


class Failed(Exception):
    """The client gave up. The text is what its user sees."""

    def __init__(self, text: str, exit_status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.exit_status = exit_status


class Driver(Protocol):
    """A client. Calls raise `Failed`."""

    tells_token_on: ClassVar[frozenset[str]]
    """Those of upload, copy and delete with which it can send a token."""

    def __init__(self, target: Target, home: Path) -> None: ...

    def upload(self, path: Path, key: str, token: str | None = None) -> None: ...
    def download(self, key: str, path: Path) -> None: ...
    def copy(self, source: str, key: str, token: str | None = None) -> None: ...
    def delete(self, key: str, token: str | None = None) -> None: ...
    def names(self, prefix: str) -> set[str]: ...


def environment(target: Target, home: Path) -> dict[str, str]:
    """What a program finds in its environment: the endpoint, the credentials, no other configuration."""
    rclone = home / "rclone.conf"
    rclone.touch()
    token = target.credentials.session_token
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "AWS_ACCESS_KEY_ID": target.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": target.credentials.secret_key,
        **({"AWS_SESSION_TOKEN": token} if token else {}),
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": target.url,
        "S3_ENDPOINT_URL": target.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "RCLONE_CONFIG": str(rclone),
        "RCLONE_CONFIG_GATEWAY_TYPE": "s3",
        "RCLONE_CONFIG_GATEWAY_PROVIDER": "Other",
        "RCLONE_CONFIG_GATEWAY_ENV_AUTH": "true",
        "RCLONE_CONFIG_GATEWAY_ENDPOINT": target.url,
    }


class Program:
    """What the drivers of programs share: a run in a home of its own."""

    def __init__(self, target: Target, home: Path) -> None:
        self.target = target
        self._home = home

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self._home,
            env=environment(self.target, self._home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(done.stderr + done.stdout, done.returncode)
        return done.stdout


class Companion:
    """What the drivers of libraries in other environments and languages share: a program that makes calls for them.

    Programs are kept while the tests run, since beginning one costs more than a hundred calls."""

    command: tuple[str, ...]
    _kept: ClassVar[dict[tuple[object, ...], tuple[subprocess.Popen[str], Path]]] = {}

    def __init__(self, target: Target, home: Path) -> None:
        named = (*self.command, target)
        if named not in self._kept:
            program = subprocess.Popen(
                self.command,
                cwd=home,
                env=environment(target, home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._kept[named] = program, home
        self._program, self.home = self._kept[named]

    def call(self, name: str, *arguments: Any) -> Any:
        """What the program answers. Raises `Failed`."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        bound = threading.Timer(TIMEOUT_S, self._program.kill)
        bound.start()
        try:
            self._program.stdin.write(json.dumps([name, *(one for one in arguments if one is not None)]) + "\n")
            self._program.stdin.flush()
            told = json.loads(self._program.stdout.readline())
        finally:
            bound.cancel()
        if "error" in told:
            raise Failed(told["error"])
        return told["answer"]

    @classmethod
    def end_all(cls) -> None:
        """End the programs that are kept."""
        while cls._kept:
            _, (program, _) = cls._kept.popitem()
            program.communicate(timeout=TIMEOUT_S)
