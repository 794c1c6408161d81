"""The demonstration's gateway: `fencing-gateway serve`, a process of its own with a configuration of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.demonstration.processes import DemoFault, Endpoint, tied_process
from gateway.cli.demonstration.receiver import Receiver
from gateway.credentials_file import CREDENTIALS_FILE, ready_made_credentials

BUCKET, QUEUE = "renders", "renders"
CONFIGURATION = """\
[[rule]]
match = "{job}/**"
key = "{job}"
output = "{job}/out.mp4"

[[webhook]]
url = "RECEIVER"
secret = { env = "WEBHOOK_SECRET" }
events = ["fencing.completed"]
"""


@dataclass(frozen=True, slots=True)
class DemoGateway:
    """One that runs."""

    s3: Endpoint
    control_url: str


@asynccontextmanager
async def start_gateway(directory: Path, behind: Endpoint, receiver: Receiver) -> AsyncIterator[DemoGateway]:
    """On free ports, before a store, its data in `directory`. Raises `DemoFault` if it does not start."""
    async with serving(directory, behind, receiver, CONFIGURATION) as gateway:
        yield gateway


@asynccontextmanager
async def serving(
    directory: Path, behind: Endpoint, receiver: Receiver, configuration: str
) -> AsyncIterator[DemoGateway]:
    """As `start_gateway`, with another configuration; RECEIVER in it is where the receiver listens."""
    database, file = directory / "gateway.db", directory / "gateway.toml"
    file.write_text(configuration.replace("RECEIVER", receiver.url))
    environ = {
        "FENCING_GATEWAY_CONFIG": str(file),
        "FENCING_GATEWAY_S3__LISTEN": "127.0.0.1:0",
        "FENCING_GATEWAY_CONTROL__LISTEN": "127.0.0.1:0",
        "FENCING_GATEWAY_STORE__URL": f"sqlite:{database}",
        "FENCING_GATEWAY_UPSTREAM__URL": behind.url,
        "FENCING_GATEWAY_UPSTREAM__ACCESS_KEY": behind.credentials.access_key,
        "FENCING_GATEWAY_UPSTREAM__SECRET_KEY": behind.credentials.secret_key,
        "WEBHOOK_SECRET": receiver.secret,
    }
    log = directory / "gateway.log"
    with log.open("wb") as stderr:
        async with tied_process("-m", "gateway", "serve", environ=environ, stderr=stderr) as process:
            assert process.stdout is not None
            lines = [(await process.stdout.readline()).decode().split() for _ in ("S3 endpoint", "Control API")]
            if not all(lines):
                raise DemoFault(f"the gateway did not start: {log.read_text()[-2000:]}")
            url, control_url = (line[-1] for line in lines)
            pair = ready_made_credentials(database.with_name(CREDENTIALS_FILE))
            yield DemoGateway(Endpoint(url, pair, BUCKET), control_url)
