"""A receiver of announcements, a process of its own: it writes down what it is sent, and answers as a file tells it.

`python -m tests.end_to_end.receiver DIRECTORY SECRET [PORT]` prints its port. Each attempt is a line of `attempts` in
the directory; the file `mood` says what is answered: a status, `slow` (nothing, for a minute), or `cut` (the connection
is closed without an answer).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from standardwebhooks import Webhook

from gateway.upstream import tied_exec
from tests.gateway_process import ROOT, environment

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BOUND_S = 30


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory: Path
    verifier: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        told = self.verifier.verify(body, dict(self.headers))
        mood = (self.directory / "mood").read_text()
        line = {"id": self.headers["webhook-id"], "mood": mood, "headers": dict(self.headers), "told": told}
        with (self.directory / "attempts").open("a") as attempts:
            attempts.write(json.dumps(line) + "\n")
        if mood == "slow":
            time.sleep(60)
        if mood in ("slow", "cut"):
            self.close_connection = True
            return
        self.send_response(int(mood))
        if mood.startswith("3"):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Receiver:
    """The process, from outside."""

    directory: Path
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self.directory.mkdir(exist_ok=True)
        self.feels("200")
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """On the port that it had, if it has run before."""
        command = [sys.executable, "-m", "tests.end_to_end.receiver", str(self.directory), SECRET, str(self.port)]
        tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
        self.process = subprocess.Popen(
            [*tied, *command], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(BOUND_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def feels(self, mood: str) -> None:
        """Answer so from now on."""
        new = self.directory / "mood.new"
        new.write_text(mood)
        new.replace(self.directory / "mood")

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Every post that came, verified, in order."""
        file = self.directory / "attempts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def taken(self) -> list[str]:
        """The ids that were answered 2xx."""
        return [one["id"] for one in self.attempts if one["mood"].startswith("2")]

    def until(self, come_about: Callable[[Receiver], object]) -> None:
        """Wait for what another process brings about."""
        bound = time.monotonic() + BOUND_S
        while not come_about(self):
            assert time.monotonic() < bound, self.attempts
            time.sleep(0.05)

    def settings(self, **more: str) -> str:
        """A `[[webhook]]` that leads here."""
        settings = {"url": f'"http://127.0.0.1:{self.port}/in"', "secret": f'"{SECRET}"', "name": '"real"'} | more
        return "[[webhook]]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


def main() -> None:
    Handler.directory, Handler.verifier = Path(sys.argv[1]), Webhook(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
