"""The processes that are measured: the gateway as `serve` runs it, and the bare pass-through, before one store."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.load import Door, NotMeasured
from gateway.core.names import RECORD_KEY
from gateway.s3.sigv4 import Credentials
from gateway.upstream.base import EMPTY_SHA256, UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.embedded import EmbeddedStore

CLIENT = Credentials("BENCH", "bench-secret")
TOKEN = 7
START_S, STOP_S = 30.0, 20.0

_CONFIG = """
[s3]
listen = "127.0.0.1:0"
[control]
listen = "127.0.0.1:0"
[upstream]
url = "{url}"
region = "us-east-1"
access_key = "{upstream.access_key}"
secret_key = "{upstream.secret_key}"
[store]
url = "sqlite:{directory}/gateway.db"
[[client]]
access_key = "{client.access_key}"
secret_key = "{client.secret_key}"
[[rule]]
match = "renders/{{job}}/**"
key = "{{job}}"
"""


@dataclass(frozen=True)
class Bench:
    """One store, and the three ways to it."""

    direct: Door
    bare: Door
    gateway: Door
    control_port: int
    store: UpstreamClient

    @property
    def doors(self) -> tuple[Door, Door, Door]:
        return self.direct, self.bare, self.gateway

    async def create_bucket(self, name: str) -> None:
        await self._send("PUT", name, "")

    async def remove(self, bucket: str, keys: list[str]) -> None:
        """Take a bucket's objects, the gateway's record among them, and then itself away: its disk space is free
        again."""
        for key in [*keys, RECORD_KEY]:
            await self._send("DELETE", bucket, key)
        await self._send("DELETE", bucket, "")

    async def _send(self, method: str, bucket: str, key: str) -> None:
        response = await self.store.send(UpstreamRequest(method, bucket, key, "", (), EMPTY_SHA256), b"", 60)
        told = await response.read(65536)
        if response.status >= 300:
            raise NotMeasured(f"{method} {bucket}/{key} was answered {response.status}: {told[:300]!r}")

    async def body_bytes_read(self) -> int:
        """How many bytes of bodies the gateway has read so far, by its own metrics."""
        async with aiohttp.request("GET", f"http://127.0.0.1:{self.control_port}/metrics") as answer:
            text = await answer.text()
        found = re.search(r'^fencing_bytes_total\{direction="in"\} (\S+)$', text, re.MULTILINE)
        if found is None:
            raise NotMeasured("the gateway's metrics do not tell the bytes of bodies")
        return int(float(found[1]))


@dataclass(frozen=True)
class Served:
    """A gateway that runs, and the ports of its listeners."""

    pid: int
    s3_port: int
    control_port: int


async def serve(stack: contextlib.AsyncExitStack, directory: Path, url: str, upstream: Credentials) -> Served:
    """Start a gateway over the database in `directory`, ended with the stack. Raises `NotMeasured`."""
    config = directory / "gateway.toml"
    config.write_text(_CONFIG.format(url=url, upstream=upstream, directory=directory, client=CLIENT))
    pid, (s3_port, control_port) = await _child(
        stack,
        directory / "gateway.log",
        r"(?s)S3 endpoint +http://127.0.0.1:(\d+)\nControl API +http://127.0.0.1:(\d+)\n",
        "gateway",
        "serve",
        "--config",
        str(config),
    )
    return Served(pid, s3_port, control_port)


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Bench]:
    """Store, pass-through and gateway, ended on leaving. Raises `NotMeasured`, `EmbeddedStoreError`."""
    store = EmbeddedStore(directory / "store")
    await store.start()
    client = UpstreamClient(store.url, region="us-east-1", credentials=StaticCredentials(store.credentials))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.stop)
        stack.push_async_callback(client.close)
        bare, (bare_port,) = await _child(stack, directory / "bare.log", r"(\d+)\n", "bench.passthrough", store.url)
        served = await serve(stack, directory, store.url, store.credentials)
        store_port = int(store.url.rpartition(":")[2])
        yield Bench(
            direct=Door("direct", store_port, store.credentials),
            bare=Door("bare", bare_port, store.credentials, bare),
            gateway=Door("gateway", served.s3_port, CLIENT, served.pid, TOKEN),
            control_port=served.control_port,
            store=client,
        )


async def _child(
    stack: contextlib.AsyncExitStack, log_path: Path, announcement: str, module: str, *arguments: str
) -> tuple[int, list[int]]:
    """Start a module; its pid, and the ports that it announces on standard output."""
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    stack.push_async_callback(_end, process)
    assert process.stdout is not None
    read: Callable[[], Awaitable[bytes]] = process.stdout.readline
    said = ""
    try:
        async with asyncio.timeout(START_S):
            while (found := re.search(announcement, said)) is None:
                line = await read()
                if not line:
                    raise NotMeasured(f"{module} ended: {log_path.read_text(errors='replace')[-2000:]}")
                said += line.decode()
    except TimeoutError:
        raise NotMeasured(f"{module} did not start within {START_S:g} s") from None
    return process.pid, [int(port) for port in found.groups()]


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def forget_peak(door: Door) -> None:
    """Let the peak of a process's memory begin at what it uses now (proc(5), `clear_refs`)."""
    if door.pid is not None:
        Path(f"/proc/{door.pid}/clear_refs").write_text("5")


def peak_mb(door: Door) -> float | None:
    """The peak since then, in MB of 10^6 bytes."""
    if door.pid is None:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{door.pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else None
