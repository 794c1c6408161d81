"""`serve`: how it begins, how it ends, what is kept."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from gateway.cli.serve import _welcome
from gateway.config.settings import Settings
from gateway.credentials_file import ready_made_credentials
from tests.conftest import StoreServer
from tests.gateway_process import BOUND_S, ROOT, GatewayProcess, before, command, environment, serve

BODY = b"frame " * 50_000
TOKEN_HEADER = "x-amz-meta-fencing-token"

Start = Callable[[], GatewayProcess]


@pytest.fixture
def start(store_server: StoreServer, tmp_path: Path) -> Iterator[Start]:
    """Starts gateways, one after another, over the same data."""
    started: list[GatewayProcess] = []

    def run() -> GatewayProcess:
        started.append(GatewayProcess(tmp_path, **before(store_server)).start())
        return started[-1]

    yield run
    for child in started:
        if child.process.poll() is None:
            child.kill()


def begin_put(gateway: GatewayProcess, bucket: str, key: str) -> http.client.HTTPConnection:
    """A PUT whose first half is sent."""
    url = urlsplit(
        gateway.s3.generate_presigned_url(
            "put_object", {"Bucket": bucket, "Key": key, "Metadata": {"fencing-token": "5"}}
        )
    )
    connection = http.client.HTTPConnection(url.netloc, timeout=BOUND_S)
    connection.putrequest("PUT", f"{url.path}?{url.query}")
    connection.putheader("content-length", str(len(BODY)))
    connection.putheader(TOKEN_HEADER, "5")
    connection.endheaders(BODY[: len(BODY) // 2])
    return connection


def test_sigterm_lets_a_running_upload_end(start: Start, store_server: StoreServer, bucket: str) -> None:
    """An upload under way when SIGTERM comes is finished and answered 200; meanwhile the gateway lives, is not ready,
    and takes no new connections; then it ends with status 0, and cleanly."""
    gateway = start()
    upload = begin_put(gateway, bucket, "slow")
    # Answered only after the upload's head has been read: both are on the same listener, one after the other.
    gateway.s3.list_objects_v2(Bucket=bucket)
    gateway.process.send_signal(signal.SIGTERM)
    gateway.wait_for("Draining")
    until_refused(gateway)
    assert told_by(gateway, "/readyz") == (503, {"status": "unavailable", "reason": "draining"})
    assert told_by(gateway, "/healthz") == (200, {"status": "ok"})
    upload.send(BODY[len(BODY) // 2 :])
    answer = upload.getresponse()
    told = answer.read()
    upload.close()
    assert answer.status == 200, told
    assert gateway.end() == 0
    assert store_server.client.get_object(Bucket=bucket, Key="slow")["Body"].read() == BODY
    last = json.loads(gateway.log().splitlines()[-1])
    assert (last["event"], last["clean"]) == ("stopped", True)


def told_by(gateway: GatewayProcess, path: str) -> tuple[int, dict[str, str]]:
    """What the control listener answers."""
    control = http.client.HTTPConnection(urlsplit(gateway.control_url).netloc, timeout=BOUND_S)
    control.request("GET", path)
    answer = control.getresponse()
    told = answer.status, json.loads(answer.read())
    control.close()
    return told


def until_refused(gateway: GatewayProcess) -> None:
    """Wait until the gateway takes no new S3 connection."""
    url = urlsplit(gateway.url)
    while True:
        probe = http.client.HTTPConnection(url.netloc, timeout=BOUND_S)
        try:
            probe.request("GET", "/")
            probe.getresponse().read()
        except OSError:
            return
        finally:
            probe.close()


def test_a_second_sigterm_ends_it_at_once(start: Start, bucket: str) -> None:
    """Asked twice, the gateway does not wait for an upload that goes nowhere; nothing of it is stored."""
    gateway = start()
    upload = begin_put(gateway, bucket, "stalled")
    gateway.s3.list_objects_v2(Bucket=bucket)
    gateway.process.send_signal(signal.SIGTERM)
    gateway.wait_for("Draining")
    until_refused(gateway)
    assert gateway.stop() == 0
    upload.close()
    after = start()
    assert after.s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_second_gateway_on_the_same_data_is_refused(start: Start) -> None:
    """Two gateways with one database would both accept: the second says who has it and ends with status 3."""
    gateway = start()
    with serve(gateway.directory) as second:
        assert second.wait(BOUND_S) == 3
    message = gateway.log().splitlines()[-1]
    assert "is in use by process" in message
    assert str(gateway.process.pid) in message
    assert "Traceback" not in gateway.log()


def test_a_bad_configuration_is_status_2(tmp_path: Path) -> None:
    """Nothing is started on a configuration that has a fault; the message names it."""
    with serve(tmp_path, "s3.listen=nowhere") as process:
        assert process.wait(BOUND_S) == 2
    assert "s3.listen: must be host:port" in (tmp_path / "gateway.log").read_text()
    assert not (tmp_path / "gateway.db").exists()


def test_a_port_in_use_is_status_3_and_leaves_the_data_free(start: Start, tmp_path: Path) -> None:
    """A listener that cannot be had ends the start with a message, not a traceback."""
    gateway = start()
    other = tmp_path / "other"
    other.mkdir()
    taken = urlsplit(gateway.url).netloc
    with serve(other, f"s3.listen={taken}", "upstream.url=http://127.0.0.1:9") as process:
        assert process.wait(BOUND_S) == 3
    log = (other / "gateway.log").read_text()
    assert f"[s3] listen, {taken}: address already in use" in log
    assert "--set s3.listen=127.0.0.1:9000, or FENCING_GATEWAY_S3__LISTEN=127.0.0.1:9000" in log
    taken = urlsplit(gateway.control_url).netloc
    with serve(other, f"control.listen={taken}", "upstream.url=http://127.0.0.1:9") as process:
        assert process.wait(BOUND_S) == 3
    log = (other / "gateway.log").read_text()
    assert f"[control] listen, {taken}: address already in use" in log
    assert "FENCING_GATEWAY_CONTROL__LISTEN=127.0.0.1:9001" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("section", ["s3", "control"])
@pytest.mark.parametrize(
    ("listen", "why"),
    [("192.0.2.1:8080", "cannot assign requested address"), ("nowhere.invalid:8080", "name ")],
    ids=["of another machine", "a name that nobody knows"],
)
def test_an_address_that_cannot_be_had_is_told_with_its_setting(
    section: str, listen: str, why: str, tmp_path: Path
) -> None:
    """Which of the two listeners it is, and why, in words: the system's error names neither."""
    others = ['[[client]]\naccess_key = "RENDERER"\nsecret_key = "a secret of its own"']
    others.append('[[api_token]]\ntoken = "operators-own-token-0123456789"\nrole = "operator"')
    file = tmp_path / "gateway.toml"
    file.write_text("\n".join(others))
    sets = (f"{section}.listen={listen}", "upstream.url=http://127.0.0.1:9")
    with serve(tmp_path, *sets, FENCING_GATEWAY_CONFIG=str(file)) as process:
        assert process.wait(BOUND_S) == 3
    last = (tmp_path / "gateway.log").read_text().splitlines()[-1]
    assert last.startswith(f"fencing-gateway: [{section}] listen, {listen}: ")
    assert why in last.lower()


def test_floors_outlive_kill_9(start: Start, bucket: str) -> None:
    """After `kill -9`, the next start knows the floor: a lower token is refused, over S3 and the control API."""
    gateway = start()
    assert gateway.ask("fence", "raise", "job-1", "34", "--reason", "test").exit_code == 0
    gateway.s3.put_object(Bucket=bucket, Key="o", Body=b"34", Metadata={"fencing-token": "34", "fencing-key": "job-1"})
    gateway.kill()
    again = start()
    assert json.loads(again.ask("fence", "show", "job-1", "--json").stdout)["floor"] == 34
    with pytest.raises(ClientError) as raised:
        again.s3.put_object(
            Bucket=bucket, Key="o", Body=b"33", Metadata={"fencing-token": "33", "fencing-key": "job-1"}
        )
    assert raised.value.response["Error"]["FencingReason"] == "StaleToken"
    assert again.s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"34"
    assert '"event":"unclean-start"' in again.log()


@pytest.mark.parametrize(("url", "tried"), [("embedded", True), ("http://127.0.0.1:9", False), ("aws", False)])
def test_only_the_embedded_store_is_to_be_tried_out(url: str, tried: bool, tmp_path: Path) -> None:
    """The lines to try make a bucket and write into it: they are shown for the embedded store alone, with what they
    need; the ready-made credentials for every store."""
    settings = Settings.model_validate({"upstream": {"url": url}, "store": {"url": f"sqlite:{tmp_path}/gateway.db"}})
    banner = _welcome(settings, Mock(s3_port=8080, control_port=8081))
    assert "export AWS_ACCESS_KEY_ID=" in banner
    assert ("aws s3 mb" in banner) == ("pip install awscli" in banner) == tried


def test_programs_are_told_in_json(tmp_path: Path) -> None:
    """One document on standard output and nothing else, also when it ends: where both listeners are, and the ready-made
    credentials."""
    given = ["s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", "upstream.url=http://127.0.0.1:9"]
    given.append(f"store.url=sqlite:{tmp_path}/gateway.db")
    sets = [word for one in given for word in ("--set", one)]
    arguments = [sys.executable, "-m", "gateway", "serve", "--json", *sets]
    with subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        begin = "".join(iter(process.stdout.readline, "}\n"))
        process.terminate()
        rest, _ = process.communicate(timeout=BOUND_S)
    assert (process.returncode, rest) == (0, "")
    told = json.loads(begin + "}")
    pair = ready_made_credentials(tmp_path / "s3-credentials.json")
    assert told.keys() == {"s3_endpoint", "control_api", "region", "access_key_id", "secret_access_key"}
    assert (told["access_key_id"], told["secret_access_key"]) == (pair.access_key, pair.secret_key)
    assert urlsplit(told["s3_endpoint"]).port != urlsplit(told["control_api"]).port


@pytest.mark.parametrize("gone", [False, True], ids=["a full disk", "a reader that has gone"])
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["for people", "for programs"])
def test_nobody_need_take_what_it_prints(how: tuple[str, ...], gone: bool, tmp_path: Path) -> None:
    """Standard output that takes nothing keeps the gateway neither from serving nor from stopping as it should."""
    given = ["s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", "upstream.url=http://127.0.0.1:9"]
    given.append(f"store.url=sqlite:{tmp_path}/gateway.db")
    sets = [word for one in given for word in ("--set", one)]
    reader, output = os.pipe()
    os.close(reader)
    with (
        os.fdopen(output, "wb") as pipe,
        open("/dev/full", "wb") as full,
        subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", *how, *sets],
            env=environment(),
            stdout=pipe if gone else full,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        bound = threading.Timer(BOUND_S, process.kill)
        bound.start()
        assert process.stderr is not None
        # The first look comes after what is printed at the start, and finds no store.
        for line in process.stderr:
            if "upstream-unusable" in line:
                break
        process.terminate()
        log = process.stderr.readlines()
        assert process.wait(BOUND_S) == 0, log
        bound.cancel()
    last = json.loads(log[-1])
    assert (last["event"], last["clean"]) == ("stopped", True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_standard_streams_are_no_connections(closed: str, store_server: StoreServer, tmp_path: Path) -> None:
    """Whoever starts the gateway without one of its standard streams has it serve and stop as with them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        control = f"127.0.0.1:{free.getsockname()[1]}"
    given = ["s3.listen=127.0.0.1:0", f"control.listen={control}", f"store.url=sqlite:{tmp_path}/gateway.db"]
    sets = [word for one in given for word in ("--set", one)]
    with subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "gateway", "serve", *sets],
        env=environment(**before(store_server)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        bound = threading.Timer(BOUND_S, process.kill)
        bound.start()
        while command("healthcheck", FENCING_GATEWAY_URL=f"http://{control}").exit_code:
            assert process.poll() is None, process.returncode
        process.terminate()
        assert process.wait(BOUND_S) == 0
        bound.cancel()


def test_sighup_during_the_start_ends_nothing(tmp_path: Path) -> None:
    """A reload that comes while the gateway still waits for its store is made up for when it has started."""
    store = tmp_path / "store"
    store.mkdir()
    with (store / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        gateway = GatewayProcess(tmp_path)
        process = gateway._serve()
        while "waiting for an earlier embedded store" not in gateway.log():
            assert process.poll() is None, gateway.log()
        process.send_signal(signal.SIGHUP)
        fcntl.flock(lock, fcntl.LOCK_UN)
        gateway.process = process
        gateway.wait_for("Control API")
        assert gateway.stop() == 0
    assert gateway.log().count('"event":"session-keys-loaded"') == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("held", [True, False], ids=["waiting for an earlier store", "while its own store starts"])
def test_told_to_stop_during_the_start(held: bool, number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C end a start that waits for the embedded store at once, cleanly, and leave nothing running; a
    second one changes nothing."""
    store = tmp_path / "store"
    store.mkdir()
    with (store / "lock").open("w") as lock:
        if held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        gateway = GatewayProcess(tmp_path)
        gateway.process = process = gateway._serve()
        while not ("waiting for an earlier embedded store" in gateway.log() if held else (store / "volumes").exists()):
            assert process.poll() is None, gateway.log()
        process.send_signal(number)
        process.send_signal(number)
        try:
            assert process.wait(5) == 0, gateway.log()
        finally:
            gateway.kill()
        # A store of its own would hold the lock as long as it runs.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    events = [json.loads(line)["event"] for line in gateway.log().splitlines()]
    assert events[-1] == "start-given-up"
    assert "started" not in events
    with contextlib.closing(sqlite3.connect(tmp_path / "gateway.db")) as database:
        assert database.execute("SELECT count(*) FROM meta WHERE name = 'clean'").fetchall() == [(1,)]


def test_the_version_is_told() -> None:
    """`--version` names program and version."""
    result = command("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("fencing-gateway, version ")


def test_as_many_files_as_a_process_may_have() -> None:
    """The gateway takes all the open files that it may have, and tells if they are too few for its connections."""
    script = (
        "import resource\n"
        "from gateway.cli.serve import _open_files\n"
        "from gateway.config.settings import Settings\n"
        "for hard in (8192, 4096):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "    print(_open_files(Settings()), resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert told.splitlines() == ["{} (8192, 8192)", "{'limit': 4096, 'needed': 4480} (4096, 4096)"]


def test_a_plain_gateway_loads_no_cryptography() -> None:
    """Without TLS and bound credentials nothing of `cryptography` is in memory: a tenth of what a gateway may take."""
    told = "import sys, gateway.cli.serve; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], check=False).returncode == 0
