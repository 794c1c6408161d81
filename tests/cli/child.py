"""`fencing-gateway serve` as a child process, on free ports, tied to the tests' life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.credentials_file import ready_made_credentials
from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec
from tests.conftest import s3_client

BOUND_S = 20


def environment(**more: str) -> dict[str, str]:
    """Ours, without settings of the gateway and of AWS."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FENCING_GATEWAY_"))}
    return kept | more


def serve(directory: Path, *sets: str, **environ: str) -> subprocess.Popen[str]:
    """The process, its data in `directory`; standard output in a pipe, its log in gateway.log."""
    given = ("s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", f"store.url=sqlite:{directory}/gateway.db", *sets)
    arguments = [part for one in given for part in ("--set", one)]
    tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
    with (directory / "gateway.log").open("ab") as log:
        return subprocess.Popen(
            [*tied, sys.executable, "-m", "gateway", "serve", *arguments],
            env=environment(**environ),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


class Child:
    """A running gateway before an upstream."""

    def __init__(self, directory: Path, url: str, credentials: Credentials, *sets: str, **environ: str) -> None:
        self.directory = directory
        self.process = serve(
            directory,
            f"upstream.url={url}",
            *sets,
            FENCING_GATEWAY_UPSTREAM__ACCESS_KEY=credentials.access_key,
            FENCING_GATEWAY_UPSTREAM__SECRET_KEY=credentials.secret_key,
            **environ,
        )
        try:
            self.s3_url, self.control_url = self._url("S3 endpoint"), self._url("Control API")
        except BaseException:
            self.kill()
            raise
        self.credentials = ready_made_credentials(directory / "s3-credentials.json")
        self.s3: Any = s3_client(self.s3_url, self.credentials, signature_version="s3v4")

    def _url(self, label: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(label), f"{line!r}; log: {self.log()}"
        return line.split()[-1]

    def wait_for(self, text: str) -> None:
        """Read standard output up to the line that begins with `text`."""
        assert self.process.stdout is not None
        assert any(line.startswith(text) for line in self.process.stdout)

    def log(self) -> str:
        return (self.directory / "gateway.log").read_text()

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
            if hasattr(self, "s3"):
                self.s3.close()


def command(*arguments: str, **environ: str) -> Result:
    """Run one command in this process, under that environment alone."""
    cleared = {n: None for n in os.environ if n.startswith(("AWS_", "FENCING_GATEWAY_"))}
    return CliRunner().invoke(main, arguments, env={**cleared, **environ}, catch_exceptions=False)


def raised(gateway: Child, key: str, *tokens: int) -> None:
    """Raise the floor of a key, token by token."""
    for token in tokens:
        result = gateway.ask("fence", "raise", key, str(token), "--reason", "a test")
        assert result.exit_code == 0, result.output
