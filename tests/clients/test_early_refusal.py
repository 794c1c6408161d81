"""Large uploads without Expect that are refused by their head: the clients read the refusal, not a broken pipe."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header

from gateway.s3.sigv4 import Credentials
from tests.clients.gateway import BUCKET, STRICT, WatchedGateway
from tests.conftest import s3_client

SIZE = 1 << 28
PAIRS = {
    "InvalidAccessKeyId": Credentials("AKIDNOBODY", "secret-of-nobody"),
    "SignatureDoesNotMatch": Credentials(STRICT.access_key, "not-the-secret"),
}


@pytest.fixture(scope="module")
def hollow_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than all buffers on the way hold, and nothing on the disk."""
    path = tmp_path_factory.mktemp("hollow") / "hollow.bin"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


@pytest.mark.parametrize("code", PAIRS)
def test_boto3(gateway: WatchedGateway, hollow_file: Path, code: str) -> None:
    """boto3 sends to the end and reads then; it raises the refusal, once."""
    client = s3_client(gateway.url, PAIRS[code])
    client.meta.events.unregister("before-call.s3", add_expect_header)
    with gateway.recorded() as requests, hollow_file.open("rb") as body, pytest.raises(ClientError) as caught:
        client.put_object(Bucket=BUCKET, Key="early", Body=body)
    client.close()
    assert caught.value.response["Error"]["Code"] == code
    assert [(line["reason"], line["bytes_in"]) for line in requests] == [(code, 0)]


@pytest.mark.services
@pytest.mark.parametrize("code", PAIRS)
def test_curl(gateway: WatchedGateway, hollow_file: Path, code: str) -> None:
    """curl stops when it is answered, and shows the refusal."""
    pair = PAIRS[code]
    command = [
        "curl",
        "--silent",
        "--show-error",
        "--user",
        f"{pair.access_key}:{pair.secret_key}",
        "--aws-sigv4",
        "aws:amz:us-east-1:s3",
    ]
    command += ["--header", "Expect:", "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    command += ["--upload-file", str(hollow_file), f"{gateway.url}/{BUCKET}/early"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"<Code>{code}</Code>" in told.stdout
    assert told.stderr == ""
