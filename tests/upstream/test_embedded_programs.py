"""Other programs against the embedded store itself: what they cannot do here is not the gateway's fault."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REGION, StoreServer

pytestmark = pytest.mark.services


def run(store: StoreServer, home: Path, *command: str) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": store.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": store.credentials.secret_key,
        "AWS_DEFAULT_REGION": REGION,
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["aws", "rclone", "s3cmd"])
def test_a_program_writes_and_reads_back(store_server: StoreServer, bucket: str, tmp_path: Path, program: str) -> None:
    """Each program stores 12 MiB (in parts) and gets the same bytes back."""
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_bytes(os.urandom(12 * 1024 * 1024))
    host = store_server.url.removeprefix("http://")
    match program:
        case "aws":
            copy = ["aws", "--endpoint-url", store_server.url, "s3", "cp"]
            place = f"s3://{bucket}/a b/k"
            commands = [[*copy, str(sent), place], [*copy, place, str(received)]]
        case "rclone":
            copy = ["rclone", "copyto", "--s3-provider=Other", "--s3-env-auth", f"--s3-endpoint={store_server.url}"]
            place = f":s3:{bucket}/a b/k"
            commands = [[*copy, str(sent), place], [*copy, place, str(received)]]
        case _:
            s3cmd = ["s3cmd", "--no-ssl", f"--host={host}", f"--host-bucket={host}", f"--region={REGION}"]
            place = f"s3://{bucket}/a b/k"
            commands = [[*s3cmd, "put", str(sent), place], [*s3cmd, "get", place, str(received)]]
    for command in commands:
        run(store_server, tmp_path, *command)
    assert received.read_bytes() == sent.read_bytes()
