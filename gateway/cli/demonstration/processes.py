"""The processes of the demonstration: they end with it, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

from gateway.cli.demonstration.task import Task, line_of
from gateway.s3.sigv4 import Credentials
from gateway.upstream import tied_exec


class DemoFault(Exception):
    """The story cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the workers write."""

    url: str
    credentials: Credentials
    bucket: str


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
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FENCING_"))}
    return kept | {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@asynccontextmanager
async def workers(*names: str) -> AsyncIterator[list[WorkerProcess]]:
    """Workers that are ready for their tasks."""
    async with AsyncExitStack() as stack:
        crew = [WorkerProcess(name, await stack.enter_async_context(_worker(name))) for name in names]
        for worker in crew:
            await worker.report("ready")
        yield crew


@asynccontextmanager
async def _worker(name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ("-m", "gateway.cli.demonstration.worker", name)
    async with tied_process(*command, environ={}, stdin=asyncio.subprocess.PIPE) as process:
        yield process


class WorkerProcess:
    """A worker, from outside."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    def begin(self, task: Task) -> None:
        self._write(line_of(task))

    def go_on(self) -> None:
        """With the second half of its upload. Said to one that is frozen it waits in the pipe."""
        self._write(b"\n")

    async def report(self, what: str) -> dict[str, Any]:
        """What it says next, which must be that. Raises `DemoFault`."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DemoFault(f"worker {self.name} ended before its report of {what!r}")
        told: dict[str, Any] = json.loads(line)
        if told.pop("report") != what:
            raise DemoFault(f"worker {self.name} should have reported {what!r}, and said {line.decode().strip()}")
        return told

    async def freeze(self) -> None:
        """Returns when it stands still. Raises `DemoFault` if it has ended."""
        self._send(signal.SIGSTOP)
        pid, flags = self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):  # it has ended, and has been waited for
            seen = await asyncio.to_thread(os.waitid, os.P_PID, pid, flags)
            if seen is not None and seen.si_code == os.CLD_STOPPED:
                return
        raise DemoFault(f"worker {self.name} had ended when it was to be sent SIGSTOP")

    def wake(self) -> None:
        """Raises `DemoFault` if it has ended."""
        self._send(signal.SIGCONT)

    async def kill(self) -> None:
        """Returns when it has ended. Raises `DemoFault` if it had before."""
        self._send(signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        """Its exit status."""
        return await self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            raise DemoFault(f"worker {self.name} had ended when it was to be sent {number.name}") from None

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
