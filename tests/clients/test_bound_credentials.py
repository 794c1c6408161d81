"""Every client with nothing but a lease's credentials, unmodified: what it writes is fenced, and late it is refused."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.core.keys import FencingKey, Token
from gateway.credentials_file import read_session_keys
from gateway.s3.session import Session
from gateway.s3.sigv4 import Credentials
from tests.clients.drivers import Driver, Failed, environment
from tests.clients.gateway import BUCKET, STRICT, WatchedGateway
from tests.clients.libraries import Boto3
from tests.clients.programs import AwsCli, AwsCli2, LibStorage, PyArrow, Rclone, S3cmd, S5cmd
from tests.clients.test_every_client import CLIENTS, content, new_job, raise_floor, shown_token
from tests.conftest import s3_client

TELLING = [*CLIENTS, pytest.param(PyArrow, id="PyArrow", marks=pytest.mark.services)]
"""The AWS CLI's version 2 tells nobody of a 412 (`test_peculiarities.py`)."""
every_telling_client = pytest.mark.parametrize("client", TELLING)
every_client = pytest.mark.parametrize(
    "client", [*TELLING, pytest.param(AwsCli2, id="AwsCli2", marks=pytest.mark.services)]
)


def bound(gateway: WatchedGateway, job: str, token: int = 34, lives_s: float = 3600) -> Credentials:
    """Credentials for a lease, sealed with the gateway's own key."""
    keys = read_session_keys(gateway.directory / "session-keys")
    session = Session(FencingKey(job), Token(token), STRICT.access_key, int(time.time() + lives_s))
    return keys.issue(session, f"{job} {token} {lives_s}")


def driver(client: type[Any], gateway: WatchedGateway, home: Path, job: str, token: int = 34) -> Driver:
    return client(gateway.target(bound(gateway, job, token)), home)  # type: ignore[no-any-return]


@every_client
def test_what_it_writes_bears_the_leases_token(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """Uploads, copies and deletes, wherever the client could say a token or not; reads and lists as ever."""
    job = new_job()
    calls, place = driver(client, gateway, tmp_path, job), f"renders/{job}"
    with gateway.recorded() as requests:
        calls.upload(small_file, f"{place}/a")
        calls.copy(f"{place}/a", f"{place}/b")
        assert calls.names(f"{place}/") == {f"{place}/a", f"{place}/b"}
        calls.download(f"{place}/b", tmp_path / "received")
    assert (tmp_path / "received").read_bytes() == small_file.read_bytes()
    assert (shown_token(s3, f"{place}/a"), shown_token(s3, f"{place}/b")) == ("34", "34")
    calls.delete(f"{place}/a")
    assert content(s3, f"{place}/a") is None
    writes = [line for line in requests if line["decision"] == "admitted"]
    assert writes
    assert {(line["client"], line["fence_key"], line["token"]) for line in writes} == {(STRICT.access_key, job, 34)}


@every_telling_client
def test_after_the_hand_over_it_is_refused(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """A higher token holds the job: each call fails and says so, is asked once, and nothing has changed."""
    job = new_job()
    calls, place = driver(client, gateway, tmp_path, job), f"renders/{job}/a"
    calls.upload(small_file, place)
    raise_floor(s3, job, 35)
    s3.put_object(Bucket=BUCKET, Key=place, Body=b"of token 35", Metadata={"fencing-token": "35"})
    s3.put_object(Bucket=BUCKET, Key="source", Body=b"another")
    for call in (
        lambda: calls.upload(small_file, place),
        lambda: calls.copy("source", place),
        lambda: calls.delete(place),
    ):
        with (
            gateway.recorded() as requests,
            pytest.raises(Failed, match=f"Token 34 is stale: token 35 now holds '{job}'"),
        ):
            call()
        told = Counter(line["status"] for line in requests if line["decision"] == "refused")
        assert told in ({412: 1}, {200: 1})  # a batch is 200, and each object has its own answer
        assert content(s3, place) == b"of token 35"


IN_PARTS = (
    Boto3,
    *(
        pytest.param(one, marks=pytest.mark.services)
        for one in (AwsCli, AwsCli2, Rclone, S3cmd, S5cmd, LibStorage, PyArrow)
    ),
)


@pytest.mark.parametrize("client", IN_PARTS)
def test_an_upload_in_parts(
    client: type[Any], gateway: WatchedGateway, s3: Any, large_file: Path, tmp_path: Path
) -> None:
    """100 MB: the upload, its parts and its end are signed with the derived secret, and bear the lease's token."""
    job = new_job()
    calls, place = driver(client, gateway, tmp_path, job), f"renders/{job}/large"
    with gateway.recorded() as requests:
        calls.upload(large_file, place)
    assert {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"} <= {
        line["operation"] for line in requests
    }
    assert shown_token(s3, place) == "34"
    assert s3.head_object(Bucket=BUCKET, Key=place)["ContentLength"] == large_file.stat().st_size


@every_client
@pytest.mark.parametrize("what", ["expired", "of another job"])
def test_what_is_refused_for_good(
    client: type[Any], what: str, gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """Credentials past their end, or over an object of another job: asked once, an error that says which, and nothing
    is stored."""
    job, place = new_job(), f"renders/{new_job()}/a"
    pair = bound(gateway, job, lives_s=-1) if what == "expired" else bound(gateway, job)
    with gateway.recorded() as requests, pytest.raises(Failed) as caught:
        client(gateway.target(pair), tmp_path).upload(small_file, place)
    asked = [line for line in requests if line.get("object") == place and line["method"] in ("PUT", "POST")]
    # s3cmd takes InvalidArgument for a server of Signature V2, as everywhere.
    assert len(asked) <= (3 if client is S3cmd else 1), asked
    # rclone asks by HEAD first, whose answer has no words.
    told = (
        ("ExpiredToken", "token has expired", "status code: 400") if what == "expired" else ("different fencing keys",)
    )
    assert any(words in caught.value.text for words in told), caught.value.text
    assert content(s3, place) is None


@every_client
def test_past_their_end_while_the_lease_is_held(
    client: type[Any], gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path
) -> None:
    """The end of a work that took longer than its credentials are good: no client minds, and what it writes is fenced;
    with the lease they end."""
    job = new_job()
    place = f"renders/{job}/a"
    token = gateway.lease(job)["token"]
    calls: Driver = client(gateway.target(bound(gateway, job, token, lives_s=-1)), tmp_path)
    calls.upload(small_file, place)
    assert shown_token(s3, place) == str(token)
    gateway.raise_floor(job, token + 1)
    with pytest.raises(Failed):
        calls.upload(small_file, place)
    assert shown_token(s3, place) == str(token)


# --- presigned URLs


def curl(*arguments: str) -> tuple[int, str]:
    """Status and body of what curl is told to send."""
    command = ["curl", "-sS", "--noproxy", "*", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.mark.services
def test_a_plain_upload_to_a_presigned_url(gateway: WatchedGateway, s3: Any, small_file: Path) -> None:
    """PUT with no header of anybody's, fenced by the URL alone. In chunks, whose length nobody knows, it is 411 as on
    S3: so ffmpeg sends."""
    job = new_job()
    signer = s3_client(gateway.url, bound(gateway, job), signature_version="s3v4")
    place = {"Bucket": BUCKET, "Key": f"renders/{job}/a"}
    url = signer.generate_presigned_url("put_object", place)
    assert curl("-T", str(small_file), url)[0] == 200
    assert shown_token(s3, place["Key"]) == "34"
    status, body = curl("-T", str(small_file), "-H", "Transfer-Encoding: chunked", url)
    assert (status, "MissingContentLength" in body) == (411, True)
    raise_floor(s3, job, 35)
    status, body = curl("-T", str(small_file), url)
    assert status == 412
    assert f"Token 34 is stale: token 35 now holds '{job}'" in body
    assert curl("-X", "DELETE", signer.generate_presigned_url("delete_object", place))[0] == 412
    assert content(s3, place["Key"]) == small_file.read_bytes()
    signer.close()


@pytest.mark.services
def test_the_aws_cli_presigns(gateway: WatchedGateway, s3: Any, small_file: Path, tmp_path: Path) -> None:
    """`aws s3 presign` under bound credentials: the URL reads. Left alone, it presigns by Signature Version 2."""
    job = new_job()
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]\ns3 =\n  signature_version = s3v4\n")
    cli = AwsCli(gateway.target(bound(gateway, job)), tmp_path)
    cli.upload(small_file, f"renders/{job}/a")
    url = cli.run("aws", "s3", "presign", f"s3://{BUCKET}/renders/{job}/a").strip()
    assert "X-Amz-Security-Token=" in url
    status, _ = curl("-o", str(tmp_path / "received"), url)
    assert (status, (tmp_path / "received").read_bytes()) == (200, small_file.read_bytes())


def test_credentials_go_by_their_environment_variables(gateway: WatchedGateway, tmp_path: Path) -> None:
    """The three that every AWS tool reads, and nothing else that speaks of a fence."""
    told = environment(gateway.target(bound(gateway, "job-1")), tmp_path)
    assert {name for name in told if name.startswith("AWS_S") or "KEY" in name} == {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
    }  # fmt: skip
