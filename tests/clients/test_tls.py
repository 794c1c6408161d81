"""Programs that speak to a gateway over TLS, each told of its authority in its own way (docs/deploying.md, "TLS")."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.conftest import REGION, StoreServer
from tests.gateway_process import GatewayProcess, before

pytestmark = pytest.mark.services
BOUND_S = 60
BUCKET = "tls-clients"


@pytest.fixture(scope="module")
def gateway(
    store_server: StoreServer, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway under the name localhost."""
    pair = authority.issue("localhost", "127.0.0.1")
    configuration = f'[s3]\nlisten = "localhost:0"\ntls_cert = "{pair.cert}"\ntls_key = "{pair.key}"\n'
    store_server.client.create_bucket(Bucket=BUCKET)
    directory = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(directory, configuration=configuration, **before(store_server)) as process:
        yield process


def programs(gateway: GatewayProcess, ca: Path) -> dict[str, tuple[list[str], list[str]]]:
    """For each program: how it uploads the file `up` as `NAME`, and downloads it as `down`."""
    place, host = f"{gateway.url}/{BUCKET}/NAME", gateway.url.removeprefix("https://")
    pair = f"{gateway.credentials.access_key}:{gateway.credentials.secret_key}"
    unsigned = "x-amz-content-sha256: UNSIGNED-PAYLOAD"
    curl = ["curl", "-sS", "--fail", "--noproxy", "*", "--cacert", str(ca), "-H", unsigned, place]
    curl += ["--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", pair]
    aws = ["aws", "--ca-bundle", str(ca), "--endpoint-url", gateway.url, "s3", "cp", "--no-progress"]
    rclone = ["rclone", "copyto", "--ca-cert", str(ca), "--retries", "1"]
    s3cmd = ["s3cmd", "--ssl", f"--ca-certs={ca}", f"--host={host}", f"--host-bucket={host}", f"--region={REGION}"]
    return {
        "curl": ([*curl, "-T", "up"], [*curl, "-o", "down"]),
        "aws": ([*aws, "up", f"s3://{BUCKET}/NAME"], [*aws, f"s3://{BUCKET}/NAME", "down"]),
        "rclone": ([*rclone, "up", f"gateway:{BUCKET}/NAME"], [*rclone, f"gateway:{BUCKET}/NAME", "down"]),
        "s3cmd": ([*s3cmd, "put", "up", f"s3://{BUCKET}/NAME"], [*s3cmd, "get", f"s3://{BUCKET}/NAME", "down"]),
    }


@pytest.mark.parametrize("size", [0, 20, 20_000_000])
@pytest.mark.parametrize("name", ["curl", "aws", "rclone", "s3cmd"])
def test_a_program_with_the_authority(
    gateway: GatewayProcess, authority: Authority, tmp_path: Path, name: str, size: int
) -> None:
    """An object goes up and comes down as it was, in one piece or in parts; with another authority the program does
    not connect."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": gateway.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": gateway.credentials.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_MAX_ATTEMPTS": "1",
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_CONFIG_GATEWAY_TYPE": "s3",
        "RCLONE_CONFIG_GATEWAY_PROVIDER": "Other",
        "RCLONE_CONFIG_GATEWAY_ENV_AUTH": "true",
        "RCLONE_CONFIG_GATEWAY_ENDPOINT": gateway.url,
        "RCLONE_LOW_LEVEL_RETRIES": "1",
    }

    def run(command: list[str]) -> int:
        command = [part.replace("NAME", f"{name}-{size}") for part in command]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, timeout=BOUND_S, stdin=subprocess.DEVNULL
        )
        print(done.stderr.decode(), done.stdout.decode())
        return done.returncode

    body = os.urandom(size)
    (tmp_path / "up").write_bytes(body)
    up, down = programs(gateway, authority.file)[name]
    assert run(up) == 0
    assert run(down) == 0
    assert (tmp_path / "down").read_bytes() == body
    if size == 20:
        _, strangers = programs(gateway, Authority(tmp_path).file)[name]
        (tmp_path / "down").unlink()
        assert run(strangers) != 0
        assert not (tmp_path / "down").exists()
