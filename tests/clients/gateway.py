"""The gateway that all clients speak to: three clients, two rules, an embedded store.

What it did is read from its log, one line a request: how often a client really asked, and what it was answered.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import sqlite3
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit

from gateway.s3.sigv4 import Credentials
from tests.conftest import s3_client
from tests.gateway_process import GatewayProcess, Target, serve

MAX_CONCURRENT_REQUESTS = 16
LOG_TIMEOUT_S = 30
STRICT = Credentials("RENDERER", "renderer-secret")
LENIENT = Credentials("LENIENT", "lenient-secret")
LIMITED = Credentials("LIMITED", "limited-secret")
BUCKET = "studio"

CONFIGURATION = f"""
[s3]
max_concurrent_requests = {MAX_CONCURRENT_REQUESTS}

[[client]]
access_key = "{STRICT.access_key}"
secret_key = "{STRICT.secret_key}"

[[client]]
access_key = "{LENIENT.access_key}"
secret_key = "{LENIENT.secret_key}"
require_signed_token = false

[[client]]
access_key = "{LIMITED.access_key}"
secret_key = "{LIMITED.secret_key}"
keys = ["limited-*"]
require_signed_token = false

[[rule]]
match = "renders/{{job}}/**"
key = "{{job}}"

[[rule]]
match = "masters/{{job}}/**"
key = "{{job}}"
without_token = "require"
"""


class RequestLog:
    """The gateway's log, read as it is written."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="gateway log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": "not-json", "line": line}
            with self._news:
                self._lines.append(entry)
                self._news.notify_all()

    def close(self) -> None:
        """Its writer has ended."""
        self._thread.join(LOG_TIMEOUT_S)
        self._stream.close()

    def __len__(self) -> int:
        return len(self._lines)

    def since(self, mark: int) -> list[dict[str, Any]]:
        with self._news:
            return self._lines[mark:]

    def wait(self, mark: int, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The lines since `mark`, as soon as they are as asked."""
        with self._news:
            assert self._news.wait_for(lambda: holds(self._lines[mark:]), LOG_TIMEOUT_S), self._lines[mark:]
            return self._lines[mark:]


class WatchedGateway(GatewayProcess):
    """A running gateway whose log is read."""

    lines: RequestLog
    store: Target

    def __init__(self, directory: Path, configuration: str = CONFIGURATION) -> None:
        super().__init__(directory, configuration=configuration)

    def _serve(self) -> subprocess.Popen[str]:
        process = serve(self.directory, *self._sets, stderr=subprocess.PIPE, **self._environ)
        assert process.stderr is not None
        self.lines = RequestLog(process.stderr)
        return process

    def log(self) -> str:
        return "\n".join(json.dumps(line) for line in self.lines.since(0))

    def start(self) -> Self:
        super().start()
        pair = json.loads((self.directory / "store" / "s3.json").read_bytes())["identities"][0]["credentials"][0]
        ports = json.loads((self.directory / "store" / "ports.json").read_bytes())
        self.store = Target(f"http://127.0.0.1:{ports['s3']}", Credentials(pair["accessKey"], pair["secretKey"]))
        return self

    def end(self) -> int:
        status = super().end()
        self.lines.close()
        return status

    def target(self, credentials: Credentials) -> Target:
        return Target(self.url, credentials)

    def lease(self, job: str) -> dict[str, Any]:
        """A lease on the key, waited for if another has it; as the API answers."""
        body = json.dumps({"holder": "another", "ttl_s": 60, "wait_s": 30}).encode()
        with urllib.request.urlopen(f"{self.control_url}/v1/leases/{job}", body, timeout=60) as answer:
            return dict(json.load(answer))

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[dict[str, Any]]]:
        """A list that holds, once the block has ended, each request that was answered within it."""
        self._caught_up(len(self.lines))
        mark, lines = len(self.lines), list[dict[str, Any]]()
        yield lines
        lines.extend(line for line in self._caught_up(mark) if line["event"] == "request")

    def _caught_up(self, mark: int) -> list[dict[str, Any]]:
        """The log since `mark`, up to a request that is made now and left out."""
        name = f"mark-{secrets.token_hex(6)}"
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        connection.request("GET", f"/{name}")
        connection.getresponse().read()
        connection.close()
        lines = self.lines.wait(mark, lambda lines: any(line.get("bucket") == name for line in lines))
        return [line for line in lines if line.get("bucket") != name]

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Within the block as many requests are under way as the gateway serves: each further one is 503 SlowDown."""
        client = s3_client(self.url, STRICT, signature_version="s3v4")
        mark, busy = len(self.lines), list[socket.socket]()
        try:
            for number in range(MAX_CONCURRENT_REQUESTS):
                place = {"Bucket": BUCKET, "Key": f"busy/{number}"}
                busy.append(_begin_upload(client.generate_presigned_url("put_object", place)))
            yield
        finally:
            for connection in busy:
                connection.close()
            client.close()
            self.lines.wait(mark, lambda lines: sum(_is_busy(line) for line in lines) >= len(busy))

    @contextlib.contextmanager
    def without_database(self) -> Iterator[None]:
        """Within the block another program writes to the database: no floor can rise, and each write that
        would raise one is 503 ServiceUnavailable."""
        with contextlib.closing(sqlite3.connect(self.directory / "gateway.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield


def _is_busy(line: dict[str, Any]) -> bool:
    return str(line.get("object")).startswith("busy/")


def _begin_upload(url: str) -> socket.socket:
    """A PUT that the gateway has admitted, and whose body never comes."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=10)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 10\r\n"
    connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 100"), answer
    return connection
