"""The incident: a worker is frozen in the middle of its upload, another takes over, the first one wakes up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

from gateway.cli import demo_worker
from gateway.cli.demo_worker import FENCE_KEY, OBJECT, SIZE_BYTES, content
from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials

A, B = 33, 34
"""The tokens of the workers: B was given the lease after A's had run out."""
ANSWER_TIMEOUT_S = 10
MIB = 1024 * 1024

Tell = Callable[[str, str], None]
"""Takes who did something, and what."""


class DemoFault(Exception):
    """Something did not go as the story tells; the message says what."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the workers write."""

    url: str
    credentials: Credentials
    bucket: str


async def play(endpoint: Endpoint, tell: Tell, *, fenced: bool) -> None:
    """Play the incident. Raises `DemoFault` unless the late write is refused as stale (`fenced`), or wins."""
    await _make_bucket(endpoint)
    async with _worker(endpoint, A, "--report-halfway") as worker_a, _worker(endpoint, B) as worker_b:
        _go_on(worker_a)
        tell("worker A", f"begins to upload {OBJECT}, {SIZE_BYTES // MIB} MiB, with token {A}")
        halfway = await _report(worker_a)
        if "halfway" not in halfway:
            raise DemoFault(f"worker A was answered before it was frozen: {_told(halfway)}")
        worker_a.send_signal(signal.SIGSTOP)
        # Waits in the pipe until worker A runs again.
        _go_on(worker_a)
        tell("worker A", f"is frozen (SIGSTOP) with {halfway['halfway'] // MIB} MiB sent; its lease runs out")
        tell("worker B", f"takes over job {FENCE_KEY} with token {B}, and uploads its own")
        _go_on(worker_b)
        outcome_b = await _report(worker_b)
        tell("worker B", f"is answered {_told(outcome_b)}")
        worker_a.send_signal(signal.SIGCONT)
        tell("worker A", "wakes up (SIGCONT), knows of nothing, and sends the rest")
        outcome_a = await _report(worker_a)
    tell("worker A", f"is answered {_told(outcome_a)}")
    winner = await _whose(endpoint)
    tell("object", f"holds what worker {winner} rendered, byte for byte")
    _judge(outcome_a, outcome_b, winner, fenced=fenced)


def _judge(outcome_a: dict[str, Any], outcome_b: dict[str, Any], winner: str, *, fenced: bool) -> None:
    if outcome_b["status"] != 200:
        raise DemoFault("worker B's write should have been accepted")
    if fenced:
        refusal = (outcome_a["status"], outcome_a.get("Code"), outcome_a.get("FencingReason"))
        if refusal != (412, "PreconditionFailed", "StaleToken"):
            raise DemoFault("worker A's write should have been refused: 412 PreconditionFailed, StaleToken")
        if winner != "B":
            raise DemoFault("the object should be worker B's")
    elif (outcome_a["status"], winner) != (200, "A"):
        raise DemoFault("worker A's late write should have won")


def _told(outcome: dict[str, Any]) -> str:
    if outcome.get("status") == 200:
        return "200 OK"
    told = f"{outcome.get('status')} {outcome.get('Code')}"
    if reason := outcome.get("FencingReason"):
        return f"{told}, {reason}: token {outcome.get('FencingToken')}, floor {outcome.get('FencingFloor')}"
    return f"{told}: {outcome.get('Message')}"


# --- the workers


@asynccontextmanager
async def tied_process(
    *arguments: str, environ: dict[str, str], stdin: int | None = None, stderr: IO[bytes] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python with its standard output in a pipe. It is killed when the context ends, and when we die."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", tied_exec.__file__, str(os.getpid()), sys.executable),
        *arguments,
        env=_environment() | environ,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is ours; we end what we started
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    """Ours, without what would turn the demonstration into somebody's own set-up."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FENCING_GATEWAY_"))}
    return kept | {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@asynccontextmanager
async def _worker(endpoint: Endpoint, token: int, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pair = endpoint.credentials
    async with tied_process(
        *("-P", demo_worker.__file__, endpoint.url, endpoint.bucket, str(token), *flags),
        environ={"AWS_ACCESS_KEY_ID": pair.access_key, "AWS_SECRET_ACCESS_KEY": pair.secret_key},
        stdin=asyncio.subprocess.PIPE,
    ) as process:
        yield process


def _go_on(process: asyncio.subprocess.Process) -> None:
    """Let a worker begin, or go on."""
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def _report(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise DemoFault("a worker ended without saying how its upload went")
    told: dict[str, Any] = json.loads(line)
    return told


# --- the object


@asynccontextmanager
async def _client(endpoint: Endpoint) -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(
        endpoint.url,
        region="us-east-1",
        credentials=StaticCredentials(endpoint.credentials),
        addressing="path",
        settle_timeout_s=30,
    )
    try:
        yield client
    finally:
        await client.close()


async def _make_bucket(endpoint: Endpoint) -> None:
    async with _client(endpoint) as client:
        answer = await client.send(UpstreamRequest("PUT", endpoint.bucket, "", "", ()), b"", ANSWER_TIMEOUT_S)
        answer.close()
        if answer.status != 200:
            raise DemoFault(f"the bucket {endpoint.bucket} could not be made: {answer.status}")


async def _whose(endpoint: Endpoint) -> str:
    """The worker whose bytes the object holds."""
    async with _client(endpoint) as client:
        answer = await client.read(UpstreamRequest("GET", endpoint.bucket, OBJECT, "", ()))
        body = await answer.read(2 * SIZE_BYTES)
    for name, token in (("A", A), ("B", B)):
        if body == content(token):
            return name
    raise DemoFault(f"the object is neither worker's: {answer.status}, {len(body)} bytes")
