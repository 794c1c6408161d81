"""etcd, ZooKeeper, PostgreSQL and Redis of the distribution, each over a directory of its own, on loopback."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import redis
from kazoo.client import KazooClient

from tests.contract.servers import LOOK_S, READY_S, found, free_port, process

Service = Callable[[Path], AbstractContextManager[str]]
"""Starts a server over what is in a directory, and ends it at once, as a crash does; its address."""

JAVA = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ZOOKEEPER = "/usr/share/java/zookeeper.jar"
ZOOKEEPER_SETTINGS = """
dataDir={directory}/data
clientPortAddress=127.0.0.1
clientPort={port}
admin.enableServer=false
tickTime=100
"""
LOG4J = """
log4j.rootLogger=WARN, CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d %p %m%n
"""


@contextmanager
def etcd(directory: Path) -> Iterator[str]:
    """One member. Its short elections let leases be as short as a second."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    listen = ("--listen-client-urls", client, "--listen-peer-urls", peer)
    told = ("--advertise-client-urls", client, "--initial-advertise-peer-urls", peer)
    cluster = ("--initial-cluster", f"default={peer}", "--heartbeat-interval", "20", "--election-timeout", "200")
    data = ("--data-dir", str(directory / "data"), "--log-level", "warn")
    with process(directory, found("etcd"), *data, *listen, *told, *cluster) as child:
        answering(child, lambda: urllib.request.urlopen(f"{client}/health", timeout=READY_S).close())
        yield client


@contextmanager
def zookeeper(directory: Path) -> Iterator[str]:
    """One server. Its short ticks let sessions be as short as a fifth of a second."""
    port = free_port()
    settings = directory / "zoo.cfg"
    settings.write_text(ZOOKEEPER_SETTINGS.format(directory=directory, port=port))
    (directory / "log4j.properties").write_text(LOG4J)
    main = ("-cp", f"{directory}:{ZOOKEEPER}", "org.apache.zookeeper.server.ZooKeeperServerMain", str(settings))
    address = f"127.0.0.1:{port}"

    def look() -> None:
        client = KazooClient(address)
        try:
            client.start(timeout=READY_S)
        finally:
            client.stop()
            client.close()

    with process(directory, found("java"), *JAVA, *main) as child:
        answering(child, look)
        yield address


@contextmanager
def redis_server(directory: Path, *settings: str) -> Iterator[str]:
    """One server, as durable as it can be; or with other settings."""
    port = free_port()
    durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    place = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory))
    address = f"redis://127.0.0.1:{port}"

    def look() -> None:
        with redis.Redis.from_url(address) as client:
            client.ping()

    with process(directory, found("redis-server"), *place, *(settings or durable)) as child:
        answering(child, look)
        yield address


@contextmanager
def postgresql(directory: Path) -> Iterator[str]:
    """One server. It refuses to run as root, and then runs as the user that its package has made."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert programs, "PostgreSQL is not installed: make test-services does it"
    data, port = directory / "data", free_port()
    become = ["setpriv", "--pdeathsig", "KILL"]
    if not data.exists():
        data.mkdir()
        (directory / "password").write_text(secrets.token_hex(16))
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        become += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        os.chown(data, user.pw_uid, user.pw_gid)
    with (directory / "postgres.log").open("ab") as log:
        if not (data / "PG_VERSION").exists():
            made = (
                "-U",
                "recipes",
                "-A",
                "scram-sha-256",
                "--pwfile=/dev/stdin",
                "--no-sync",
                "--locale=C",
                "--encoding=UTF8",
            )
            with (directory / "password").open() as asked:
                subprocess.run(
                    [*become, str(programs[-1] / "initdb"), "-D", str(data), *made],
                    cwd=data, check=True, timeout=READY_S, stdin=asked, stdout=log, stderr=log,
                )  # fmt: skip
        quick = ("-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "unix_socket_directories=")
        listen = ("-c", "listen_addresses=127.0.0.1", "-p", str(port))
        child = subprocess.Popen(
            [*become, str(programs[-1] / "postgres"), "-D", str(data), *listen, *quick],
            cwd=data, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    password = (directory / "password").read_text()
    address = f"host=127.0.0.1 port={port} user=recipes dbname=postgres password={password}"
    try:
        answering(child, lambda: psycopg.connect(address, connect_timeout=int(READY_S)).close())
        yield address
    finally:
        child.send_signal(signal.SIGQUIT)  # at once and without a checkpoint, its children too
        child.wait(READY_S)


def wait_until_blocked(database: psycopg.Connection, pid: int) -> None:
    """Until the connection of that process waits for another's lock."""
    until = time.monotonic() + READY_S
    while not database.execute("SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone():
        assert time.monotonic() < until, "it does not wait"
        time.sleep(LOOK_S)


def answering(child: subprocess.Popen[bytes], look: Callable[[], None]) -> None:
    """Wait until a look at the server succeeds."""
    until = time.monotonic() + READY_S
    while True:
        assert child.poll() is None, f"ended with status {child.returncode}: {child.args!r}"
        try:
            look()
        except (OSError, psycopg.OperationalError, redis.ConnectionError, redis.BusyLoadingError):
            assert time.monotonic() < until, f"did not answer: {child.args!r}"
            time.sleep(LOOK_S)
        else:
            return
