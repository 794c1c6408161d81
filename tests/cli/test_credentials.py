"""`fencing-gateway credentials`, as AWS SDKs run it: `credential_process` for the lease that is held, and no other."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, CredentialRetrievalError

from gateway.s3.fencing import key_in_header
from gateway.s3.sigv4 import Credentials
from tests.conftest import REGION, StoreServer, s3_client
from tests.gateway_process import ROOT, GatewayProcess, before, command

FIVE = ["Version", "AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"]


def acquired(gateway: GatewayProcess, key: str) -> dict[str, str]:
    """The two variables of a new lease."""
    request = urllib.request.Request(
        f"{gateway.control_url}/v1/leases/{quote(key, safe='')}",
        json.dumps({"holder": "a test", "ttl_s": 60}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {"FENCING_KEY": key, "FENCING_TOKEN": str(json.load(answer)["token"])}


def test_the_document_is_awss(gateway: GatewayProcess, key: str) -> None:
    """Version 1, the three that sign, and the end; by the variables, or by options that win over them."""
    lease = acquired(gateway, key)
    for arguments, environ in (
        ((), lease),
        (("--key", key, "--token", lease["FENCING_TOKEN"]), {"FENCING_KEY": "other", "FENCING_TOKEN": "1"}),
    ):
        done = gateway.ask("credentials", *arguments, **environ)
        assert (done.exit_code, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert list(told) == FIVE
        assert told["Version"] == 1
        assert told["Expiration"].endswith("Z")


def test_a_lost_lease_gets_none(gateway: GatewayProcess, key: str) -> None:
    """Exit status 1, a word on standard error, nothing that an SDK could take for credentials; nothing is granted."""
    lease = acquired(gateway, key)
    gateway.raise_floor(key, 40)
    done = gateway.ask("credentials", **lease)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "token 40 holds the key" in done.stderr
    assert gateway.fence(key)["floor"] == 40


@pytest.mark.parametrize(
    ("environ", "status", "told"),
    [
        ({"FENCING_KEY": "k"}, 2, "no lease is named: FENCING_TOKEN is not set"),
        ({"FENCING_TOKEN": "1"}, 2, "no lease is named: FENCING_KEY is not set"),
        ({"FENCING_KEY": "k", "FENCING_TOKEN": "-1"}, 2, "decimal digits"),
        ({"FENCING_KEY": "never", "FENCING_TOKEN": "7"}, 1, "No lease of 'never' has been granted with token 7"),
        (
            {"FENCING_KEY": "k", "FENCING_TOKEN": "1", "FENCING_GATEWAY_URL": "http://127.0.0.1:9"},
            3,
            "no gateway answers",
        ),
    ],
)
def test_what_is_no_lease(gateway: GatewayProcess, environ: dict[str, str], status: int, told: str) -> None:
    """Wrong usage, a token that was never granted, nobody there: three exit statuses, and no document."""
    done = command("credentials", **{"FENCING_GATEWAY_URL": gateway.control_url, **environ})
    assert (done.exit_code, done.stdout) == (status, "")
    assert told in done.stderr.replace("\n", " ")


class Worker:
    """An SDK whose only credentials are a profile with the command as its `credential_process`."""

    def __init__(self, gateway: GatewayProcess, home: Path, monkeypatch: pytest.MonkeyPatch, lease: dict[str, str]):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("FENCING_GATEWAY_URL", gateway.control_url)
        for name, value in lease.items():
            monkeypatch.setenv(name, value)
        (home / "config").write_text(f"[default]\ncredential_process = {sys.executable} -m gateway credentials\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "none"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        self.url = gateway.url

    def s3(self) -> Any:
        return botocore.session.Session().create_client(
            "s3", endpoint_url=self.url, region_name=REGION, config=Config(retries={"total_max_attempts": 1})
        )


def test_an_sdk_is_fenced_and_its_refresh_makes_no_holder_of_a_zombie(
    gateway: GatewayProcess, key: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore runs the command by itself and writes under the lease. Overtaken, it is stale with the credentials that
    it has, and a new process of it is given none."""
    worker = Worker(gateway, tmp_path, monkeypatch, lease := acquired(gateway, key))
    client = worker.s3()
    answer = client.put_object(Bucket=bucket, Key="out", Body=b"of the holder")["ResponseMetadata"]["HTTPHeaders"]
    assert (answer["x-fencing-token"], answer["x-fencing-key"]) == (lease["FENCING_TOKEN"], key_in_header(key))
    gateway.raise_floor(key, int(lease["FENCING_TOKEN"]) + 1)
    with pytest.raises(ClientError, match=r"PreconditionFailed.* is stale"):
        client.put_object(Bucket=bucket, Key="out", Body=b"late")
    with pytest.raises(CredentialRetrievalError, match="token 2 holds the key"):
        worker.s3().put_object(Bucket=bucket, Key="out", Body=b"late")
    assert gateway.s3.get_object(Bucket=bucket, Key="out")["Body"].read() == b"of the holder"
    client.close()


def test_one_of_several_clients(key: str, tmp_path: Path, store_server: StoreServer) -> None:
    """With several clients an API token names whose rights they are; without, the command says what to set."""
    text = """
[[client]]
access_key = "ONE"
secret_key = "one-secret"
buckets = ["none"]
[[client]]
access_key = "OTHER"
secret_key = "other-secret"
[[api_token]]
token = "named"
role = "worker"
client = "ONE"
[[api_token]]
token = "unnamed"
role = "worker"
"""
    with GatewayProcess(tmp_path, configuration=text, **before(store_server)) as gateway:
        request = urllib.request.Request(
            f"{gateway.control_url}/v1/leases/{quote(key, safe='')}",
            json.dumps({"holder": "a test", "ttl_s": 60}).encode(),
            {"Authorization": "Bearer unnamed"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            granted = json.load(answer)
        assert "credentials" not in granted
        lease = {"FENCING_KEY": key, "FENCING_TOKEN": str(granted["token"])}
        done = gateway.ask("credentials", **lease, FENCING_GATEWAY_API_TOKEN="unnamed")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "name one as `client`" in done.stderr
        told = json.loads(gateway.ask("credentials", **lease, FENCING_GATEWAY_API_TOKEN="named").stdout)
        pair = Credentials(told["AccessKeyId"], told["SecretAccessKey"], told["SessionToken"])
        client = s3_client(gateway.url, pair)
        with pytest.raises(ClientError, match="may not use the bucket"):
            client.put_object(Bucket="elsewhere", Key="k", Body=b"")
        client.close()
