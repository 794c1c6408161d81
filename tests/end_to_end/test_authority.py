"""Who rules a bucket, on real processes: a gateway that sleeps through its own end, a database lost or restored."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from gateway.core.names import RECORD_KEY
from tests.conftest import StoreServer, s3_client
from tests.end_to_end.process import CLIENT, gateway_over
from tests.gateway_process import GatewayProcess, Target, before, command

KEY, OTHER = "renders/j/out", "renders/k/out"
QUICK = ("store.record_lapse_s=3", "fencing.settle_timeout_s=3", "fencing.settle_timeout_assembly_s=3")


class Hold:
    """A TCP proxy before the store. Told to, it holds the next PUT of a key back, from some byte of its body on, until
    it is let go: what its sender has sent is under way, whatever becomes of the sender."""

    def __init__(self, store: StoreServer) -> None:
        self._to = (urlsplit(store.url).hostname, urlsplit(store.url).port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = Target(f"http://127.0.0.1:{self._listener.getsockname()[1]}", store.credentials)
        self.keeps_back: dict[str, int] = {}
        """By key, how many of its last bytes."""
        self.held, self.free = threading.Semaphore(0), threading.Event()
        self.answers: list[bytes] = []
        """The status lines that the store has answered late requests with, and later ones."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=self._relay, args=(far, near), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                for key in list(self.keeps_back):
                    if data.startswith(b"PUT /") and f"/{key} ".encode() in data[:200]:
                        data = self._hold(near, far, data, self.keeps_back.pop(key))
                far.sendall(data)

    def _hold(self, near: socket.socket, far: socket.socket, data: bytes, kept: int) -> bytes:
        """Receive the whole request, pass all but the last bytes on, wait; what is left."""
        while b"\r\n\r\n" not in data:
            data += near.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += near.recv(65536)
        data = head + b"\r\n\r\n" + body
        if kept < len(body):
            far.sendall(data[:-kept])
            data = data[-kept:]
        self.held.release()
        assert self.free.wait(60)
        return data

    def _relay(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                if self.free.is_set() and data.startswith(b"HTTP/1.1 "):
                    self.answers.append(data[9:12])
                near.sendall(data)

    def wait_for(self, status: bytes, times: int) -> None:
        """Until the store has answered so that often: who sent it may have cut it off, and been told nothing."""
        end = time.monotonic() + 20
        while self.answers.count(status) < times:
            assert time.monotonic() < end, self.answers
            time.sleep(0.05)

    def close(self) -> None:
        self.free.set()
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def hold(store_server: StoreServer) -> Iterator[Hold]:
    made = Hold(store_server)
    yield made
    made.close()


def client(gateway: GatewayProcess) -> Any:
    return s3_client(gateway.url, CLIENT)


def put(gateway: GatewayProcess, bucket: str, token: int, body: bytes, key: str = KEY) -> str:
    """Write under the job's token; `OK`, or the reason of the refusal."""
    s3 = client(gateway)
    try:
        s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"fencing-token": str(token)})
    except ClientError as error:
        return str(error.response["Error"].get("FencingReason", error.response["Error"]["Code"]))
    finally:
        s3.close()
    return "OK"


def rebuild(gateway: GatewayProcess, bucket: str) -> dict[str, Any]:
    result = gateway.ask("fence", "rebuild", "--bucket", bucket, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_what_a_stopped_gateway_has_sent_does_not_replace_what_came_after(
    tmp_path: Path, store_server: StoreServer, hold: Hold, bucket: str
) -> None:
    """SIGSTOP in the middle of two commits, the one delivered but for its last byte, the other not yet; an operator
    makes another gateway the bucket's authority; the first goes on, its bytes arrive and are refused by the store: the
    new ones stay, and it has nothing to say there any more."""

    def stored() -> list[bytes]:
        return [store_server.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in (KEY, OTHER)]

    with two_gateways(tmp_path, hold.target, store_server) as (first, second), ThreadPoolExecutor(2) as pool:
        for key in (KEY, OTHER):
            assert put(first, bucket, 34, b"first", key) == "OK"
        hold.keeps_back = {KEY: 1, OTHER: 10**9}
        stale = [
            pool.submit(put, first, bucket, 34, b"s" * 300_000, KEY),
            pool.submit(put, first, bucket, 34, b"s" * 1000, OTHER),
        ]
        assert all(hold.held.acquire(timeout=20) for _ in stale)
        os.kill(first.process.pid, signal.SIGSTOP)
        for token in (33, 35):
            assert put(second, bucket, token, b"too early") == "Superseded"
        assert rebuild(second, bucket)["raised"] == 2
        assert put(second, bucket, 33, b"stale") == "StaleToken"
        for key in (KEY, OTHER):
            assert put(second, bucket, 35, b"fresh", key) == "OK"
        hold.free.set()
        os.kill(first.process.pid, signal.SIGCONT)
        assert all(answer.result(60) != "OK" for answer in stale)
        hold.wait_for(b"412", 2)
        assert stored() == [b"fresh", b"fresh"]
        assert put(first, bucket, 36, b"s" * 1000) == "Superseded"
        assert stored() == [b"fresh", b"fresh"]


@contextmanager
def two_gateways(
    directory: Path, store_of_first: StoreServer | Target, store: StoreServer
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """Two with a database each, before the same store; the first may be stopped and is ended all the same."""
    with ExitStack() as stack:
        made = []
        for name, behind in (("first", store_of_first), ("second", store)):
            (directory / name).mkdir()
            made.append(gateway_over(directory / name, *QUICK, **before(behind)).start())
            stack.callback(made[-1].kill)
        stack.callback(made[0].process.send_signal, signal.SIGCONT)
        yield made[0], made[1]


def test_a_gateway_stopped_before_its_commit_sends_nothing_after_it(
    tmp_path: Path, store_server: StoreServer, bucket: str
) -> None:
    """Its withheld tail goes nowhere: when it wakes it has not seen its record for longer than it may."""
    body = _Slow(300_000)
    with two_gateways(tmp_path, store_server, store_server) as (first, second), ThreadPoolExecutor(1) as pool:
        try:
            assert put(first, bucket, 34, b"first") == "OK"
            stale = pool.submit(put, first, bucket, 34, body)  # type: ignore[arg-type]
            assert body.almost.wait(20)
            os.kill(first.process.pid, signal.SIGSTOP)
            rebuild(second, bucket)
            assert put(second, bucket, 35, b"fresh") == "OK"
            body.go_on.set()
            os.kill(first.process.pid, signal.SIGCONT)
            assert stale.result(60) == "Superseded"
            assert store_server.client.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"fresh"
        finally:
            body.go_on.set()


class _Slow:
    """A body for botocore whose last byte comes when it is told to."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0
        self.almost, self.go_on = threading.Event(), threading.Event()
        self._signed = False

    def read(self, amount: int = -1) -> bytes:
        if self._signed and self._at >= self._size - 1:
            self.almost.set()
            assert self.go_on.wait(60)
        most = self._size - self._at if not self._signed or self._at >= self._size - 1 else self._size - 1 - self._at
        count = most if amount < 0 else min(amount, most)
        self._at += count
        return b"s" * count

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and self._at == self._size:
            self._signed = True
        self._at = {0: 0, 1: self._at, 2: self._size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return self._size


def test_with_the_database_deleted_the_lower_token_is_still_refused(tmp_path: Path) -> None:
    """Between two tokens on one object, on the embedded store: the start names the bucket and what to do before
    anything fenced is served; then the floor is back."""
    bucket = "lost-database"
    gateway = gateway_over(tmp_path).start()
    try:
        s3 = client(gateway)
        s3.create_bucket(Bucket=bucket)
        assert put(gateway, bucket, 34, b"new") == "OK"
        assert gateway.stop() == 0
        for file in tmp_path.glob("gateway.db*"):
            file.unlink()
        gateway.start()
        gateway.wait_for("Nothing fenced is served in:")
        gateway.wait_for(f"  {bucket}:")
        gateway.wait_for(f"    fencing-gateway fence rebuild --bucket {bucket}")
        told = [json.loads(line) for line in gateway.log().splitlines() if '"superseded"' in line]
        assert [line["bucket"] for line in told] == [bucket]
        for token in (33, 34, 35):
            assert put(gateway, bucket, token, b"stale") == "Superseded"
        status = gateway.ask("status")
        assert f"Nothing fenced is served in {bucket}" in status.stdout
        s3 = client(gateway)
        assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"new"
        assert rebuild(gateway, bucket)["raised_keys"] == [{"key": "j", "before": 0, "floor": 34}]
        assert put(gateway, bucket, 33, b"stale") == "StaleToken"
        assert put(gateway, bucket, 34, b"again") == "OK"
        assert "1 ruled, 0 refused" in gateway.ask("status").stdout
        assert gateway.stop() == 0
        gateway.start()
        assert put(gateway, bucket, 34, b"and again") == "OK"
    finally:
        gateway.kill()


def test_a_restored_database_gives_nothing_away(tmp_path: Path) -> None:
    """A backup of a running gateway, put back after more has been written: refused until rebuilt, then at the floor
    that the objects tell; a database in use is never replaced."""
    bucket, file = "restored-database", tmp_path / "backup.db"
    gateway = gateway_over(tmp_path).start()
    restore = ("restore", str(file), "--set", f"store.url=sqlite:{tmp_path}/gateway.db")
    try:
        client(gateway).create_bucket(Bucket=bucket)
        assert put(gateway, bucket, 34, b"old") == "OK"
        made = gateway.ask("backup", str(file))
        assert made.exit_code == 0, made.output
        assert "1 keys as of" in made.stdout
        assert gateway.ask("backup", str(file)).exit_code == 1
        assert put(gateway, bucket, 40, b"new") == "OK"
        refused = command(*restore, "--force")
        assert refused.exit_code == 1
        assert "in use by process" in refused.output
        gateway.kill()
        assert command(*restore).exit_code == 1
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"gateway.db{suffix}").unlink(missing_ok=True)
        done = command(*restore)
        assert done.exit_code == 0, done.output
        assert f"fencing-gateway fence rebuild --bucket {bucket}" in done.stdout
        gateway.start()
        gateway.wait_for("Nothing fenced is served in:")
        assert put(gateway, bucket, 39, b"stale") == "Superseded"
        shown = gateway.ask("fence", "rebuild", "--bucket", bucket)
        assert shown.exit_code == 0, shown.output
        assert re.search(r"^Generation +2$", shown.stdout, re.MULTILINE)
        assert re.search(r"^j +34 -> 40$", shown.stdout, re.MULTILINE)
        assert put(gateway, bucket, 39, b"stale") == "StaleToken"
        assert put(gateway, bucket, 40, b"again") == "OK"
    finally:
        gateway.kill()


def test_commands_tell_what_does_not_go(tmp_path: Path, store_server: StoreServer, bucket: str) -> None:
    """A bucket that is not there, a file that is no backup, a directory that is not writable: told, with status 1."""
    gateway = gateway_over(tmp_path, *QUICK, **before(store_server)).start()
    try:
        missing = gateway.ask("fence", "rebuild", "--bucket", f"{bucket}-not-there")
        assert missing.exit_code == 1
        assert "no bucket" in missing.output
        gone = gateway.ask("backup", str(tmp_path / "no" / "directory.db"))
        assert gone.exit_code == 1
        assert "cannot be written" in gone.output
        (tmp_path / "junk").write_bytes(b"junk")
        junk = command("restore", str(tmp_path / "junk"), "--set", f"store.url=sqlite:{tmp_path}/other.db")
        assert junk.exit_code == 1
        assert "junk" in junk.output
        assert not (tmp_path / "other.db").exists()
        assert put(gateway, bucket, 34, b"x") == "OK"
        assert rebuild(gateway, bucket)["adopted"] is None
        assert RECORD_KEY in [o["Key"] for o in store_server.client.list_objects_v2(Bucket=bucket)["Contents"]]
        assert not list(tmp_path.glob(".backup-*"))
    finally:
        gateway.kill()
