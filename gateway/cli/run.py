"""`fencing-gateway run`: a command that works under a lease, and ends when the lease does."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import FrameType

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.control_command import connected
from gateway.cli.options import Seconds
from gateway.cli.program.environment import environment_of
from gateway.cli.program.leased import GRACE_OF_TERM, guarded
from gateway.cli.program.options import require_process_groups, worker_options
from gateway.cli.program.terminal import Terminal
from gateway.cli.result import NoResult, check_outputs, result_of
from gateway.cli.settings import REFUSED, UNREACHABLE, fail
from gateway.cli.show import printable, tell
from gateway.client.blocking import SyncLease
from gateway.client.errors import Refused, Unreachable

TELL_AFTER_S = 2.0
"""Who waits for longer is told for what."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--key", required=True, help="The fence key to hold a lease on.")
@click.option(
    "--ttl",
    "ttl_s",
    type=Seconds(min=0.5),
    default=30.0,
    show_default=True,
    help="Seconds until the lease runs out, if the gateway hears of nobody any more.",
)
@click.option(
    "--wait",
    "wait_s",
    type=Seconds(min=0),
    default=0.0,
    show_default=True,
    help="Wait in line for so many seconds.",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="BUCKET/KEY",
    help="An object that must have been written under this lease for the job to be complete. May be repeated.",
)
@click.option(
    "--result",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the job's result, read when the command has ended: JSON if it is any, else text.",
)
@worker_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connected
def run(
    client: ControlClient,
    key: str,
    ttl_s: float,
    wait_s: float,
    holder: str | None,
    patience_s: float,
    grace_s: float,
    outputs: tuple[str, ...],
    result: Path | None,
    endpoint: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND under a lease on KEY, and end it when the lease is lost.

    COMMAND gets FENCING_KEY, FENCING_TOKEN and AWS credentials that are bound to them. Exits with its status; 0
    completes the job, everything else gives the lease back. If the lease is lost, COMMAND and its process group are
    sent SIGTERM, and SIGKILL before anybody else can have the lease; the status is then 1."""
    require_process_groups()
    check_outputs(outputs)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, _leave)
    grace_s = min(grace_s, GRACE_OF_TERM * ttl_s)
    terminal = Terminal.of_stdin()
    with (
        client.worker(holder, patience_s) as worker,
        _told_of_waiting(key) as waiting,
        worker.lease(key, ttl_s=ttl_s, wait_s=wait_s) as lease,
    ):
        waiting.cancel()
        environ = environment_of(lease, client.variables(), endpoint, os.environ)
        status = guarded(command, environ, lease, grace_s, terminal)
        if status == 0:
            _complete(lease, result, outputs)
    if terminal is not None and terminal.is_ours and status == 128 + signal.SIGINT:
        # Ctrl-C was the command's alone. What is in our group, as a script that we are part of, is to have it, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGINT)
    sys.exit(status)


@contextmanager
def _told_of_waiting(key: str) -> Iterator[Timer]:
    """Says that the lease is waited for, unless it is cancelled before, or that is over."""
    told = f"waiting for a lease on {key!r}; fencing-gateway fence show {shlex.quote(key)} tells of whom, or of what"
    timer = Timer(TELL_AFTER_S, tell, (printable(told),))
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _complete(lease: SyncLease, result: Path | None, outputs: Sequence[str]) -> None:
    """Refused for whatever reason, or without the result that was asked for, it is an exit with status 1, and with 3
    where nobody tells: the command has run."""
    try:
        lease.complete(result_of(result), outputs)
    except NoResult as error:
        fail(f"{error}. The command has run, and its job is not completed.", REFUSED)
    except Refused as refused:
        fail(printable(f"The command has run. {refused}"), REFUSED)
    except Unreachable as error:
        fail(printable(f"{error}. The command has run; whether its job is completed is not known"), UNREACHABLE)


def _leave(signum: int, _: FrameType | None) -> None:
    sys.exit(128 + signum)
