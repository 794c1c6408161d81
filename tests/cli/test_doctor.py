"""`doctor`: tries out a store, says what holds with it, and leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.doctor import TITLES
from gateway.upstream.examination import TOLD
from tests.conftest import StoreServer
from tests.gateway_process import BOUND_S, GatewayProcess, before, command, environment

QUICK = ("--silence", "0.1")


def keys(store: StoreServer, bucket: str) -> list[str]:
    return [found["Key"] for found in store.client.list_objects_v2(Bucket=bucket).get("Contents", [])]


@pytest.fixture(scope="module")
def document(store_server: StoreServer) -> dict[str, Any]:
    """What programs are told of the embedded store."""
    store_server.client.create_bucket(Bucket="doctor")
    result = command("doctor", "--bucket", "doctor", *QUICK, "--json", **before(store_server))
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_every_experiment_has_its_title() -> None:
    """What is tried out is told to people in words."""
    assert tuple(TITLES) == TOLD


def test_json_says_what_holds(document: dict[str, Any]) -> None:
    """Guarantees with reasons, experiments with what was seen, the capabilities that the gateway goes by."""
    assert document["ok"] is True
    assert document["error"] is None
    assert {name: told["holds"] for name, told in document["guarantees"].items()} == dict.fromkeys(
        ("G0", "G1", "G2", "G3", "G4", "G5"), "yes"
    )
    assert tuple(document["experiments"]) == TOLD
    assert document["experiments"]["put-race"]["seen"].startswith("1 of 20 won")
    assert document["capabilities"]["conditional_put"] is True
    assert "crc32" in document["capabilities"]["trailers"]
    assert document["left_behind"] == []
    assert re.fullmatch(r"3\.\d+\.\d+", document["sqlite"])


def test_nothing_is_left_in_the_bucket(document: dict[str, Any], store_server: StoreServer) -> None:
    """No object, no upload."""
    assert keys(store_server, document["bucket"]) == []
    assert "Uploads" not in store_server.client.list_multipart_uploads(Bucket=document["bucket"])


def test_people_get_tables(store_server: StoreServer, bucket: str) -> None:
    """Each guarantee and each experiment on a line; no secret among them."""
    result = command("doctor", "--bucket", bucket, *QUICK, **before(store_server))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines if re.match(r"G\d", line)] == [[f"G{n}", "yes"] for n in range(6)]
    assert all(any(line.startswith(title) for line in lines) for title in TITLES.values())
    assert store_server.credentials.secret_key not in result.output


def test_a_bucket_that_is_not_there_is_refused(store_server: StoreServer) -> None:
    """Exit status 1, and why, also for programs."""
    result = command("doctor", "--bucket", "no-such-bucket-here", **before(store_server))
    assert result.exit_code == 1
    assert "404 NoSuchBucket" in result.stderr
    result = command("doctor", "--bucket", "no-such-bucket-here", "--json", **before(store_server))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False


@pytest.mark.parametrize("bucket", ["no/bucket", "ü"])
def test_what_is_no_bucket_is_refused(store_server: StoreServer, bucket: str) -> None:
    """A name that cannot be a bucket's is no fault of the program."""
    result = command("doctor", "--bucket", bucket, **before(store_server))
    assert result.exit_code == 1
    assert "not the name of a bucket" in result.stderr


def test_wrong_credentials_are_refused(store_server: StoreServer, bucket: str) -> None:
    """Exit status 1, with the store's own word for it."""
    wrong = before(store_server) | {"FENCING_GATEWAY_UPSTREAM__SECRET_KEY": "wrong-secret"}
    result = command("doctor", "--bucket", bucket, **wrong)
    assert result.exit_code == 1
    assert "SignatureDoesNotMatch" in result.stderr
    assert "wrong-secret" not in result.output


def test_a_store_that_is_not_there() -> None:
    """Exit status 3."""
    result = command("doctor", "--bucket", "b", "--set", "upstream.url=http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr


def test_wrong_usage() -> None:
    """Without a bucket in a store that is somebody's, and with a bad configuration: exit status 2."""
    unsaid = command("doctor", "--set", "upstream.url=http://127.0.0.1:1")
    assert unsaid.exit_code == 2
    assert "--bucket" in unsaid.stderr
    assert command("doctor", "--bucket", "b", "--set", "upstream.conditional=perhaps").exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_leaves_nothing(store_server: StoreServer, bucket: str, number: signal.Signals) -> None:
    """Ended while it waits in mid-upload, it cleans up first; exit status 1."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "doctor", "--bucket", bucket, "--silence", "60"],
        env=environment(**before(store_server)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not keys(store_server, bucket):
            assert process.poll() is None
        process.send_signal(number)
        _, told = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "interrupted" in told
    assert keys(store_server, bucket) == []


def test_the_embedded_store_of_a_running_gateway_and_of_none(tmp_path: Path) -> None:
    """The same command works beside a gateway that holds the store, and starts it where none does; without a bucket it
    has one of its own there for as long as it takes, and tells what rules leave out in all others."""
    sets = (f"upstream.directory={tmp_path}/store", f"store.url=sqlite:{tmp_path}/gateway.db")
    flags = [part for one in sets for part in ("--set", one)]
    with GatewayProcess(tmp_path) as gateway:
        gateway.s3.create_bucket(Bucket="renders")
        assert command("doctor", "--bucket", "renders", *QUICK, *flags).exit_code == 0
        ruled = tmp_path / "ruled.toml"
        ruled.write_text("[[rule]]\nbuckets = ['renders']\nmatch = 'plain/**'\nmode = 'off'\n")
        lent = command("doctor", *QUICK, *flags, "--config", str(ruled))
        assert lent.exit_code == 0, lent.output
        assert "embedded, bucket fencing-gateway-doctor-" in lent.stdout
        assert "Not covered: rule 1, plain/**: mode off" in lent.stdout
        assert [bucket["Name"] for bucket in gateway.s3.list_buckets()["Buckets"]] == ["renders"]
    assert command("doctor", "--bucket", "renders", *QUICK, *flags).exit_code == 0
