"""One gateway that has seen a little of everything, for the examples to run against and the tables to be held to."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.conftest import StoreServer
from tests.gateway_process import ROOT, GatewayProcess, before, environment

SECRETS = {
    "UPSTREAM_ACCESS_KEY": "upstream",
    "UPSTREAM_SECRET_KEY": "upstream-secret",
    "RENDERER_ACCESS_KEY": "renderer",
    "RENDERER_SECRET_KEY": "renderer-secret",
    "OPERATOR_TOKEN": "operator-token",
    "WORKER_TOKEN": "worker-token",
    "WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}
CONFIGURATION = """
[[api_token]]
token = { env = "OPERATOR_TOKEN" }
role = "operator"

[[webhook]]
url = "http://127.0.0.1:1/"
secret = { env = "WEBHOOK_SECRET" }
events = ["fencing.completed"]

[[rule]]
match = "renders/{job}/**"
key = "{job}"

[[rule]]
match = "observed/{job}/**"
key = "observed:{job}"
mode = "observe"
"""


@dataclass(frozen=True, slots=True)
class Shell:
    """Where examples run: a gateway, its directory, and the variables by which they find it."""

    gateway: GatewayProcess
    variables: dict[str, str]

    @property
    def directory(self) -> Path:
        return self.gateway.directory

    def run(self, script: str) -> str:
        """What the script prints. It has to end with status 0."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=environment(**self.variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def shell(store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A gateway with the bucket `studio`: in it token 34 holds job-1, and 33 has been refused."""
    directory = tmp_path_factory.mktemp("docs")
    child = GatewayProcess(directory, configuration=CONFIGURATION, **before(store_server), **SECRETS).start()
    try:
        store_server.client.create_bucket(Bucket="studio")
        for key in ("renders/job-1/out.exr", "observed/job-1/out.exr"):
            for token in ("34", "33"):
                with suppress(ClientError):
                    child.s3.put_object(Bucket="studio", Key=key, Body=b"x", Metadata={"fencing-token": token})
        yield Shell(
            child,
            {
                **SECRETS,
                "PATH": f"{_programs(directory)}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "AWS_ACCESS_KEY_ID": child.credentials.access_key,
                "AWS_SECRET_ACCESS_KEY": child.credentials.secret_key,
                "AWS_ENDPOINT_URL_S3": child.url,
                "FENCING_GATEWAY_URL": child.control_url,
                "FENCING_GATEWAY_API_TOKEN": SECRETS["OPERATOR_TOKEN"],
            },
        )
    finally:
        child.kill()


def _programs(directory: Path) -> Path:
    """A directory with the command `fencing-gateway`, of this very Python, and that itself."""
    programs = directory / "bin"
    programs.mkdir()
    for name, module in (("fencing-gateway", "-m gateway "), ("python3", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        program.chmod(0o755)
    return programs
