"""`fencing-gateway job work`: a command for each job of a queue, so many at a time, each under its own lease."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import connected
from gateway.cli.options import Seconds
from gateway.cli.program.environment import environment_of
from gateway.cli.program.leased import GRACE_OF_TERM, guard_with, judge
from gateway.cli.program.options import require_process_groups, worker_options
from gateway.cli.program.supervise import status_of
from gateway.cli.program.ward import Ward
from gateway.cli.settings import REFUSED, fail
from gateway.cli.show import json_line, printable, tell
from gateway.client.blocking import SyncJob
from gateway.client.engine import Engine
from gateway.client.errors import GatewayError, Unreachable
from gateway.client.hold import JobHold

PAYLOAD_VARIABLE = "FENCING_PAYLOAD"
POLL_S = 60.0
PAUSE_S = 2.0
"""After a gateway that cannot be reached, however little patience there is with it."""
_WORD = re.compile(r"\{(payload|key|token)\}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--queue", required=True, help="The queue to take jobs from.")
@click.option(
    "-n", "--jobs", "count", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many at a time."
)
@click.option(
    "--visibility",
    "visibility_s",
    type=Seconds(min=0.5),
    help="Seconds until a job is delivered again whose worker is not heard of any more; by default the queue's.",
)
@worker_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connected
def work(
    client: ControlClient,
    queue: str,
    count: int,
    visibility_s: float | None,
    holder: str | None,
    patience_s: float,
    grace_s: float,
    endpoint: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND for each job of a queue, as `fencing-gateway run` does for one.

    In COMMAND's words {payload}, {key} and {token} stand for the job's; FENCING_PAYLOAD holds the payload, too. Exit
    status 0 completes the job, any other is a failed attempt. SIGTERM and SIGINT let the running ones end, a second one
    ends them and gives their jobs back; so does SIGHUP at once."""
    require_process_groups()
    with client.worker(holder, patience_s) as worker:
        task = Task(command, grace_s, lambda job: environment_of(job, client.variables(), endpoint, os.environ))
        try:
            task.require_program()
            asyncio.run(Crew(worker.engine, queue, visibility_s, task).serve(count))
        except OSError as error:
            which = f"{error.filename}: " if error.filename else ""
            fail(printable(f"no command can be started: {which}{error.strerror}"), REFUSED)


class Task:
    """What is done for each job. Its methods may be called from any thread."""

    def __init__(self, command: Sequence[str], grace_s: float, environ: Callable[[SyncJob], Mapping[str, str]]) -> None:
        self._command = command
        self._grace_s = grace_s
        self._environ = environ
        self._wards: set[Ward] = set()
        self._hurried = False

    def require_program(self) -> None:
        """Raises `OSError` where there is no such program on this machine, whatever the job: it is no job's fault."""
        program = self._command[0]
        if not _WORD.search(program) and shutil.which(program) is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such program", program)

    def do(self, job: SyncJob) -> None:
        """Run the command for it, and tell how it went. Raises `GatewayError`, and `OSError` where nothing can be
        started here; the job has been given back then."""
        with job:
            words, payload = filled(self._command, job)
            environ = {**self._environ(job), PAYLOAD_VARIABLE: payload}
            grace_s = min(self._grace_s, GRACE_OF_TERM * job.left_s)
            try:
                self.require_program()
                ward = Ward(words, environ, job.deadline, grace_s, stdin=subprocess.DEVNULL)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno != errno.E2BIG:
                    job.release()
                    raise
                job.fail(f"this payload cannot be given to a command: {error}")
                return
            self._wards.add(ward)
            try:
                guard_with(ward, job)
                if self._hurried:
                    ward.stop()
                status = status_of(ward.wait())
                ended = judge(ward, job, told_to_end=self._hurried)
            finally:
                self._wards.discard(ward)
            if ended or (status and self._hurried):
                job.release()
            elif status:
                job.fail(f"exit status {status}")
                tell(printable(f"{job.key}: attempt {job.attempts} has failed with exit status {status}"))

    def hurry(self) -> None:
        """End all that runs; their jobs go back to the queue."""
        self._hurried = True
        for ward in tuple(self._wards):
            ward.stop()


class Crew:
    """Those who work on a queue's jobs in this process."""

    def __init__(self, engine: Engine, queue: str, visibility_s: float | None, task: Task) -> None:
        self._engine = engine
        self._queue = queue
        self._visibility_s = visibility_s
        self._task = task
        self._reached = False
        self._draining = asyncio.Event()
        self._fault: GatewayError | OSError | None = None
        self._receiving: set[asyncio.Task[list[JobHold]]] = set()

    async def serve(self, count: int) -> None:
        """Until told to stop. Raises `Refused` where the queue may not be worked on, `Unreachable` where no gateway
        has ever answered, `OSError` where no command can be started."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._told_to_stop)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup would have it ignored
            loop.add_signal_handler(signal.SIGHUP, self._left_alone)
        with ThreadPoolExecutor(count) as pool:
            await asyncio.gather(*(self._one_after_another(pool) for _ in range(count)))
        if self._fault is not None:
            raise self._fault

    async def _one_after_another(self, pool: ThreadPoolExecutor) -> None:
        while not self._draining.is_set():
            for hold in await self._received():
                job = SyncJob(hold, self._engine.background)
                try:
                    await asyncio.get_running_loop().run_in_executor(pool, self._task.do, job)
                except GatewayError as error:
                    tell(printable(f"{job.key}: {error}"))
                except OSError as error:
                    self._give_up(error)

    async def _received(self) -> list[JobHold]:
        """At most one job, so that none waits here while others are free; none when draining."""
        # The first is answered at once: who has never been heard of may be no gateway, and is not waited for.
        asked = self._engine.receiving(self._queue, self._visibility_s, POLL_S if self._reached else 0.0, 1)
        receiving = asyncio.ensure_future(self._engine.background.run(asked.jobs(), asked.give_back))
        self._receiving.add(receiving)
        try:
            holds = await receiving
            self._reached = True
        except asyncio.CancelledError:
            return []
        except Unreachable as error:
            if not self._reached:
                self._give_up(error)
            else:
                tell(printable(str(error)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._draining.wait(), PAUSE_S)
            return []
        except GatewayError as error:
            self._give_up(error)
            return []
        finally:
            self._receiving.discard(receiving)
        return holds

    def _give_up(self, error: GatewayError | OSError) -> None:
        self._fault = self._fault or error
        self._drain()

    def _told_to_stop(self) -> None:
        if self._draining.is_set():
            self._task.hurry()
            return
        self._drain()
        tell("waiting for what runs; once more ends it")

    def _left_alone(self) -> None:
        self._drain()
        self._task.hurry()

    def _drain(self) -> None:
        self._draining.set()
        for receiving in self._receiving:
            receiving.cancel()


def filled(command: Sequence[str], job: SyncJob) -> tuple[list[str], str]:
    """The command's words for this job, and its payload as text."""
    payload = job.payload if isinstance(job.payload, str) else "" if job.payload is None else json_line(job.payload)
    values = {"payload": payload, "key": job.key, "token": str(job.token)}
    return [_WORD.sub(lambda found: values[found[1]], word) for word in command], payload
