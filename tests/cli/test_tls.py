"""TLS on the command line: faults of the configuration, a running gateway's reload, commands that ask over TLS."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, SSLError

from tests.authority import Authority, Pair
from tests.conftest import REGION, StoreServer
from tests.gateway_process import BOUND_S, ROOT, GatewayProcess, before, command, environment, serve


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1")


def configuration(pair: Pair) -> str:
    files = f'tls_cert = "{pair.cert}"\ntls_key = "{pair.key}"\n'
    return f"[s3]\n{files}\n[control]\n{files}"


@pytest.fixture(scope="module")
def gateway(
    store_server: StoreServer, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway whose listeners speak TLS."""
    directory = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(directory, configuration=configuration(pair), **before(store_server)) as process:
        yield process


def client(gateway: GatewayProcess, verify: Path | None) -> Any:
    """botocore's own client, which sends checksums behind the body as it does over https."""
    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=gateway.url,
        region_name=REGION,
        aws_access_key_id=gateway.credentials.access_key,
        aws_secret_access_key=gateway.credentials.secret_key,
        verify=str(verify) if verify else None,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


# --- faults of the configuration


def test_a_bad_certificate_is_told_with_file_line_and_key(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    """`check-config` opens the files: each fault names the place in the configuration, the file, and what to do."""
    expired = authority.issue("a", from_days=-2, to_days=-1)
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[s3]\ntls_cert = "{expired.cert}"\ntls_key = "{expired.key}"\n'
        f'[control]\ntls_cert = "{pair.cert}"\ntls_key = "{expired.key}"\n'
        f'[upstream]\nurl = "https://s3.example.com"\ntls_ca = "{tmp_path}/none.pem"\n'
    )
    told = command("check-config", "--config", str(file))
    assert told.exit_code == 2
    lines = told.stderr.removeprefix("fencing-gateway: ").splitlines()
    assert lines[0].startswith(f"{file}:2: [s3] tls_cert: {expired.cert}: expired on 20")
    assert lines[1].startswith(f"{file}:6: [control] tls_key: {expired.key}: is not the key of the certificate in")
    assert lines[2] == f"{file}:9: [upstream] tls_ca: {tmp_path}/none.pem: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[s3]\ntls_cert = 'a.pem'", ":2: [s3] tls_cert: tls_cert and tls_key go together"),
        ("[control]\ntls_key = 'a.key'", ":2: [control] tls_key: tls_cert and tls_key go together"),
        ("[upstream]\nurl = 'http://a'\ntls_ca = 'a.pem'", ":3: [upstream] tls_ca: is for a store at https://"),
        (
            "[upstream]\ntls_cert = 'a'\ntls_key = 'a'",
            ":2: [upstream] tls_cert: is for a store at https://; url is emb",
        ),
        ("[upstream]\ntls_verify = false", ":2: [upstream] tls_verify: no such key"),
    ],
)
def test_settings_that_do_not_go_together(text: str, fault: str, tmp_path: Path) -> None:
    """Half a pair, and TLS for a store that is not reached by it, are faults; that verification could be switched off
    is no setting."""
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    told = command("check-config", "--config", str(file))
    assert (told.exit_code, f"{file}{fault}" in told.stderr) == (2, True), told.stderr


def test_a_bad_certificate_ends_the_start(authority: Authority, tmp_path: Path) -> None:
    """`serve` ends with status 2 before anything is made."""
    expired = authority.issue("127.0.0.1", from_days=-2, to_days=-1)
    with serve(tmp_path, f"s3.tls_cert={expired.cert}", f"s3.tls_key={expired.key}") as process:
        assert process.wait(BOUND_S) == 2
    assert "s3.tls_cert: " in (tmp_path / "gateway.log").read_text()
    assert "expired on 20" in (tmp_path / "gateway.log").read_text()
    assert not (tmp_path / "gateway.db").exists()


# --- clients and commands


def test_a_client_with_the_authority(gateway: GatewayProcess, authority: Authority, bucket: str) -> None:
    """botocore with `verify`: a body with its checksum behind it, a stale token's refusal, a download; without `verify`
    it does not connect."""
    s3 = client(gateway, authority.file)
    body = os.urandom(1 << 20)
    s3.put_object(Bucket=bucket, Key="k", Body=body, Metadata={"fencing-token": "34"})
    with pytest.raises(ClientError) as refused:
        s3.put_object(Bucket=bucket, Key="k", Body=b"stale", Metadata={"fencing-token": "33"})
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["x-fencing-reason"] == "StaleToken"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
    s3.close()
    wary = client(gateway, None)
    with pytest.raises(SSLError):
        wary.list_buckets()
    wary.close()


def test_commands_believe_the_authority_that_is_named(gateway: GatewayProcess, authority: Authority) -> None:
    """With `--ca-bundle` or its variable; without it a strange authority is named as what is missing, and nothing is
    sent; `http://` gets a hint."""
    assert gateway.ask("status", FENCING_GATEWAY_CA_BUNDLE=str(authority.file)).exit_code == 0
    assert gateway.ask("fence", "list", "--ca-bundle", str(authority.file)).exit_code == 0
    unknown = gateway.ask("status")
    assert unknown.exit_code == 3
    assert "no authority that is known here" in unknown.stderr
    assert "--ca-bundle, or FENCING_GATEWAY_CA_BUNDLE" in unknown.stderr
    plain = command("status", FENCING_GATEWAY_URL=gateway.control_url.replace("https:", "http:"))
    assert (plain.exit_code, "(does it speak https:// there?)" in plain.stderr) == (3, True), plain.stderr
    missing = gateway.ask("status", "--ca-bundle", "/nowhere.pem")
    assert (missing.exit_code, "/nowhere.pem cannot be used" in missing.stderr) == (2, True)
    name = command(
        "status", FENCING_GATEWAY_URL=gateway.control_url.replace("127.0.0.1", "localhost"),
        FENCING_GATEWAY_CA_BUNDLE=str(authority.file),
    )  # fmt: skip
    assert (name.exit_code, "is for another name" in name.stderr) == (3, True)


@pytest.mark.parametrize("by", ["options", "configuration"])
def test_what_runs_under_a_lease_believes_whom_its_command_was_told_to(
    gateway: GatewayProcess, authority: Authority, pair: Pair, tmp_path: Path, by: str
) -> None:
    """It finds the gateway without further ado, wherever it goes: `--url` and `--ca-bundle`, or what the configuration
    says instead, become variables."""
    file = tmp_path / "gateway.toml"
    listen = f"127.0.0.1:{urlsplit(gateway.control_url).port}"
    file.write_text(
        f'[control]\nlisten = "{listen}"\ntls_cert = "{os.path.relpath(pair.cert)}"\ntls_key = "/not/for/this/user"\n'
    )
    named = {
        "options": ("--url", gateway.control_url, "--ca-bundle", os.path.relpath(authority.file)),
        "configuration": ("--config", str(file)),
    }[by]
    shows = (sys.executable, "-m", "gateway", "fence", "show", f"film-{by}")
    program = ("sh", "-c", 'cd / && "$@"', "-", *shows)
    told = subprocess.run(
        [sys.executable, "-m", "gateway", "run", "--key", f"film-{by}", *named, "--", *program],
        env=environment(PYTHONPATH=str(ROOT)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "Held by" in told.stdout


@pytest.mark.parametrize("asked", [("status",), ("fence", "list")])
def test_commands_believe_the_certificate_of_their_own_configuration(
    gateway: GatewayProcess, authority: Authority, pair: Pair, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    """Where the configuration says where the gateway is, it says its certificate too: no other setting is needed, and
    its name need not be that of this host. Another certificate, even of the same authority, is not believed."""
    port = urlsplit(gateway.control_url).port
    file = tmp_path / "gateway.toml"
    listen = f'[control]\nlisten = "0.0.0.0:{port}"\n'
    tokens = '[[api_token]]\ntoken = "t"\nrole = "operator"\n'
    for own, status in ((pair, 0), (authority.issue("127.0.0.1"), 3)):
        file.write_text(f'{listen}tls_cert = "{own.cert}"\ntls_key = "/not/for/this/user"\n{tokens}')
        told = command(*asked, FENCING_GATEWAY_CONFIG=str(file))
        assert told.exit_code == status, told.output
    unreadable = file.read_text().replace(str(own.cert), str(tmp_path / "none.pem"))
    file.write_text(unreadable)
    told = command(*asked, FENCING_GATEWAY_CONFIG=str(file))
    assert (told.exit_code, "--ca-bundle names" in told.stderr) == (2, True)


def test_the_health_check_asks_for_nothing_else(gateway: GatewayProcess, authority: Authority) -> None:
    """`healthcheck` says `ok`; status 3 if nobody answers. A gateway is not to be ended for its certificate: one that
    is not believed is told, and is status 0."""
    told = gateway.ask("healthcheck", FENCING_GATEWAY_CA_BUNDLE=str(authority.file))
    assert (told.exit_code, told.stdout) == (0, "ok\n")
    told = gateway.ask("healthcheck")
    assert (told.exit_code, told.stdout) == (0, "not believed\n")
    assert "no authority that is known here" in told.stderr
    assert command("healthcheck", FENCING_GATEWAY_URL="http://127.0.0.1:1").exit_code == 3


# --- SIGHUP


def logged(gateway: GatewayProcess, event: str, count: int) -> None:
    """Wait until that event has been logged so often."""
    deadline_s = time.monotonic() + BOUND_S
    while gateway.log().count(f'"event":"{event}"') < count:
        assert time.monotonic() < deadline_s, gateway.log()
        time.sleep(0.01)


def serial(url: str, authority: Authority) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    with (
        socket.create_connection((parts.hostname, parts.port or 443), timeout=BOUND_S) as plain,
        authority.trusted.wrap_socket(plain, server_hostname=parts.hostname) as tls,
    ):
        found = tls.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_sighup_reads_the_files_again(store_server: StoreServer, authority: Authority, tmp_path: Path) -> None:
    """After SIGHUP new connections get the new certificate; with files that cannot be used the old one stays, and the
    log says why."""
    pair = authority.issue("127.0.0.1")
    with GatewayProcess(tmp_path, configuration=configuration(pair), **before(store_server)) as gateway:
        first = serial(gateway.url, authority), serial(gateway.control_url, authority)
        new = authority.issue("127.0.0.1")
        pair.cert.write_bytes(new.cert.read_bytes())
        gateway.process.send_signal(signal.SIGHUP)
        logged(gateway, "tls-refused", 2)
        assert "is not the key of the certificate" in gateway.log()
        assert (serial(gateway.url, authority), serial(gateway.control_url, authority)) == first
        pair.key.write_bytes(new.key.read_bytes())
        gateway.process.send_signal(signal.SIGHUP)
        logged(gateway, "tls-loaded", 4)
        second = serial(gateway.url, authority), serial(gateway.control_url, authority)
        assert first[0] != second[0] == second[1]
        assert gateway.stop() == 0


def test_without_tls_sighup_changes_nothing(store_server: StoreServer, tmp_path: Path) -> None:
    """A supervisor may say `reload` to any gateway."""
    with GatewayProcess(tmp_path, **before(store_server)) as gateway:
        gateway.process.send_signal(signal.SIGHUP)
        assert gateway.ask("status").exit_code == 0
        assert gateway.stop() == 0


def test_a_closed_terminal_ends_it(store_server: StoreServer, tmp_path: Path) -> None:
    """On a terminal SIGHUP is for the files too, until that terminal has gone: then it ends the gateway, as it ends
    every program."""
    master, terminal = pty.openpty()
    listen = ("--set", "s3.listen=127.0.0.1:0", "--set", "control.listen=127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", *listen, "--set", f"store.url=sqlite:{tmp_path}/gateway.db"],
        env=environment(**before(store_server)),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.close(terminal)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("S3 endpoint")
        url = process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGHUP)
        assert command("status", FENCING_GATEWAY_URL=url).exit_code == 0
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert process.wait(BOUND_S) == -signal.SIGHUP
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
