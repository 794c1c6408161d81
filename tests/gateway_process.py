"""`fencing-gateway serve` as its users run it: a process of its own, on free ports, tied to the tests' life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote, urlsplit

from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.credentials_file import ready_made_credentials
from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec
from tests.conftest import StoreServer, s3_client

BOUND_S = 60
"""No start and no end may take longer; a drain alone may take 25 s."""
ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """Ours, without settings of the gateway and of AWS."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FENCING_GATEWAY_"))}
    return kept | more


@dataclass(frozen=True, slots=True)
class Target:
    """An S3 endpoint and who calls it."""

    url: str
    credentials: Credentials

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc


def before(store: StoreServer | Target) -> dict[str, str]:
    """The settings, as environment variables, of a gateway before that store."""
    return {
        "FENCING_GATEWAY_UPSTREAM__URL": store.url,
        "FENCING_GATEWAY_UPSTREAM__ACCESS_KEY": store.credentials.access_key,
        "FENCING_GATEWAY_UPSTREAM__SECRET_KEY": store.credentials.secret_key,
    }


def serve(
    directory: Path,
    *sets: str,
    stderr: IO[bytes] | int | None = None,
    program: tuple[str, ...] = ("gateway",),
    **environ: str,
) -> subprocess.Popen[str]:
    """The process, its data in `directory`; standard output in a pipe, its log in gateway.log, or in `stderr`.
    `program`: a module in place of the gateway's own, and what comes before the command."""
    given = ("s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", f"store.url=sqlite:{directory}/gateway.db", *sets)
    arguments = [part for one in given for part in ("--set", one)]
    tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
    with (directory / "gateway.log").open("ab") as log:
        return subprocess.Popen(
            [*tied, sys.executable, "-m", *program, "serve", *arguments],
            env=environment(PYTHONUNBUFFERED="1", PYTHONPATH=str(ROOT), **environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log if stderr is None else stderr,
            text=True,
        )


class GatewayProcess:
    """A gateway over `directory`, started and ended as often as one likes: as a context, or call by call.

    Its settings come from `configuration`, a TOML file's text; `environ`, environment variables; `sets`, the command
    line. Its embedded store, if it has one, is in the directory too. `program` as for `serve`."""

    process: subprocess.Popen[str]
    url: str
    control_url: str

    def __init__(
        self,
        directory: Path,
        *sets: str,
        configuration: str = "",
        program: tuple[str, ...] = ("gateway",),
        **environ: str,
    ) -> None:
        self.directory = directory
        self._program = program
        self._sets = (f"upstream.directory={directory}/store", *sets)
        self._environ = environ
        if configuration:
            file = directory / "gateway.toml"
            file.write_text(configuration)
            self._environ = {"FENCING_GATEWAY_CONFIG": str(file), **environ}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self.end()

    def start(self) -> Self:
        """Returns when it serves. Raises `AssertionError` with its log if it ends instead."""
        self.process = self._serve()
        bound = threading.Timer(BOUND_S, self.process.kill)
        bound.start()
        try:
            self.url, self.control_url = self._told("S3 endpoint"), self._told("Control API")
        except BaseException:
            self.kill()
            raise
        finally:
            bound.cancel()
        return self

    def _serve(self) -> subprocess.Popen[str]:
        return serve(self.directory, *self._sets, program=self._program, **self._environ)

    def _told(self, label: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(label):
                return line.split()[-1]
        raise AssertionError(f"the gateway has ended; log: {self.log()}")

    @cached_property
    def credentials(self) -> Credentials:
        """The ready-made pair, which a gateway without `[[client]]` takes."""
        return ready_made_credentials(self.directory / "s3-credentials.json")

    @cached_property
    def s3(self) -> Any:
        """A client without retries under those credentials."""
        return s3_client(self.url, self.credentials, signature_version="s3v4")

    def wait_for(self, text: str) -> None:
        """Read standard output up to the line that begins with `text`."""
        self._told(text)

    def log(self) -> str:
        return (self.directory / "gateway.log").read_text()

    @property
    def address(self) -> tuple[str, int]:
        """Where the S3 listener is."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def fence(self, key: str) -> Any:
        """What the control API shows of a key."""
        with urllib.request.urlopen(f"{self.control_url}/v1/fences/{quote(key, safe='')}", timeout=BOUND_S) as answer:
            return json.load(answer)

    def raise_floor(self, key: str, *tokens: int) -> None:
        """Raise the floor of a key, token by token."""
        for token in tokens:
            result = self.ask("fence", "raise", key, str(token), "--reason", "a test")
            assert result.exit_code == 0, result.output

    def ask(self, *arguments: str, **environ: str) -> Result:
        """Run a command that speaks to this gateway."""
        return command(*arguments, FENCING_GATEWAY_URL=self.control_url, **environ)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Wait for the process."""
        try:
            return self.process.wait(BOUND_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if "s3" in self.__dict__:
                self.__dict__.pop("s3").close()


def command(*arguments: str, **environ: str) -> Result:
    """Run one command in this process, under that environment alone."""
    cleared = {n: None for n in os.environ if n.startswith(("AWS_", "FENCING_GATEWAY_"))}
    return CliRunner().invoke(main, arguments, env={**cleared, **environ}, catch_exceptions=False)
