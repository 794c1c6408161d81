"""Other S3 stores, started as processes on loopback, each over a directory of its own, with one pair of credentials."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec

READY_S = 60.0
LOOK_S = 0.05
STORES = Path(__file__).parents[2] / ".services/stores/bin"
"""Where `make test-services` installs programs that are not to be found by other tests."""


@dataclass(frozen=True, slots=True)
class Server:
    """A store that answers."""

    url: str
    credentials: Credentials


@contextmanager
def moto(directory: Path) -> Iterator[Server]:
    """moto's server, which checks no signatures."""
    program = Path(sys.executable).with_name("moto_server")
    port = free_port()
    with process(directory, str(program), "-H", "127.0.0.1", "-p", str(port)) as child:
        yield answering(child, port, Credentials("ACCESSKEY", "secret-key"))


@contextmanager
def ministack(directory: Path) -> Iterator[Server]:
    """MiniStack with S3 alone."""
    port = free_port()
    environ = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "IOT_MTLS_ENABLED": "0",  # it would listen on all interfaces
    }
    with process(directory, found("ministack"), **environ) as child:
        yield answering(child, port, Credentials("ACCESSKEY", "secret-key"))


@contextmanager
def rclone(directory: Path) -> Iterator[Server]:
    """`rclone serve s3` over a directory."""
    pair = Credentials("ACCESSKEY", "secret-key")
    port = free_port()
    (directory / "data").mkdir()
    address = ("--addr", f"127.0.0.1:{port}", "--auth-key", f"{pair.access_key},{pair.secret_key}")
    cache = ("--config", "/dev/null", "--vfs-cache-mode", "off")
    with process(directory, found("rclone"), "serve", "s3", *address, *cache, str(directory / "data")) as child:
        yield answering(child, port, pair)


@contextmanager
def radosgw(directory: Path) -> Iterator[Server]:
    """Ceph RGW over one monitor and one OSD in memory. Up in some 3 s: the monitor's pace is set for that."""
    pair = Credentials("ACCESSKEY", "secret-key")
    port, identity = free_port(), str(uuid.uuid4())
    conf, keyring = directory / "ceph.conf", directory / "keyring"
    monitor = f"[v2:127.0.0.1:{free_port()}]"
    (directory / "osd").mkdir()
    conf.write_text(_CEPH_CONF.format(fsid=uuid.uuid4(), monitor=monitor, directory=directory, port=port))

    def run(program: str, *arguments: str) -> None:
        log = (directory / "setup.log").open("ab")
        with log:
            subprocess.run([found(program), *arguments], check=True, timeout=READY_S, stdout=log, stderr=log)

    for number, name in enumerate(("mon.", "client.admin", "client.rgw", "osd.0")):
        caps = ("--cap", "mon", "allow *") if name == "mon." else _ALL_CAPS
        run("ceph-authtool", *(() if number else ("--create-keyring",)), str(keyring), "--gen-key", "-n", name, *caps)
    run("monmaptool", "--create", "--addv", "a", monitor, str(directory / "monmap"), "-c", str(conf))
    run(
        "ceph-mon",
        "--mkfs",
        "-i",
        "a",
        "--keyring",
        str(keyring),
        "--monmap",
        str(directory / "monmap"),
        "-c",
        str(conf),
    )
    with ExitStack() as running:

        def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
            return running.enter_context(process(directory, found(program), "-f", *arguments, "-c", str(conf)))

        start("ceph-mon", "-i", "a")
        run("ceph", "-c", str(conf), "osd", "new", identity)
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity, "-c", str(conf))
        start("ceph-osd", "-i", "0")
        user = ("--uid", "gateway", "--display-name", "gateway", "--access-key", pair.access_key)
        admin = ("-c", str(conf), "-n", "client.rgw", "user", "create")
        run("radosgw-admin", *admin, *user, "--secret-key", pair.secret_key)
        yield answering(start("radosgw", "-n", "client.rgw"), port, pair)


_ALL_CAPS = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
# A monitor proposes at most once a second by default, and each pool that RGW makes takes it several rounds.
_CEPH_CONF = """
[global]
fsid = {fsid}
mon_host = {monitor}
keyring = {directory}/keyring
run_dir = {directory}
admin_socket = {directory}/$name.asok
log_file = {directory}/$name.log
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
osd_crush_chooseleaf_type = 0
[mon]
mon_data = {directory}/mon
mon_data_avail_crit = 1
mon_data_avail_warn = 1
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
[osd]
osd_data = {directory}/osd
osd_objectstore = memstore
[client.rgw]
rgw_data = {directory}
rgw_frontends = beast endpoint=127.0.0.1:{port}
rgw_thread_pool_size = 64
rgw_enable_gc_threads = false
rgw_enable_lc_threads = false
"""


def found(program: str) -> str:
    """A program of `make test-services`, else of the system."""
    path = shutil.which(program, path=f"{STORES}{os.pathsep}{os.environ['PATH']}")
    assert path is not None, f"{program} is not installed: make test-services does it"
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def process(directory: Path, program: str, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with the test, its output in `<program>.log`."""
    tied = (sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()))
    with (directory / f"{Path(program).name}.log").open("ab") as log:
        child = subprocess.Popen(
            [*tied, program, *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONWARNINGS": "", **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def answering(child: subprocess.Popen[bytes], port: int, credentials: Credentials) -> Server:
    """The server, once it answers HTTP at all."""
    until = time.monotonic() + READY_S
    while True:
        assert child.poll() is None, f"ended with status {child.returncode}: {child.args!r}"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            assert time.monotonic() < until, f"did not answer: {child.args!r}"
            time.sleep(LOOK_S)
        else:
            return Server(f"http://127.0.0.1:{port}", credentials)
        finally:
            connection.close()
