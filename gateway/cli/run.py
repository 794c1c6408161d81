"""`fencing-gateway run`: a command that works under a lease, and ends when the lease does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import FrameType

import click
import orjson

from gateway.cli.control_client import ControlClient, connected
from gateway.cli.credentials import KEY_VARIABLE, TOKEN_VARIABLE
from gateway.cli.settings import REFUSED, UNREACHABLE, Seconds, fail
from gateway.cli.show import printable, tell
from gateway.cli.supervise import awaiting, follow
from gateway.cli.terminal import Terminal
from gateway.cli.ward import Ward
from gateway.client.blocking import SyncLease
from gateway.client.calls import output_of
from gateway.client.engine import PATIENCE_S
from gateway.client.errors import Refused, Unreachable
from gateway.client.guarded import Guarded
from gateway.core.job import MAX_RESULT_BYTES

OUTPUT_VARIABLE = "FENCING_OUTPUT"
DEFAULT_REGION = "us-east-1"
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
"""Of AWS's SDKs and tools; the last one is s5cmd's."""
GRACE_OF_TERM = 0.25
"""A grace that is longer than this part of the lease would end the command between two heartbeats."""
TELL_AFTER_S = 2.0
"""Who waits for longer is told for what."""

_TAKEN_OUT = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
"""With one of these set, some SDK would use other credentials, or another endpoint, than it is given."""


def worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--holder`, `--patience`, `--grace` and `--endpoint`, for commands that work under leases."""
    for option in (
        click.option(
            "--endpoint",
            envvar=ENDPOINT_VARIABLES,
            show_envvar=True,
            help="The S3 endpoint for the command's environment, if not the one that the gateway names.",
        ),
        click.option(
            "--grace",
            "grace_s",
            type=Seconds(min=0),
            default=5.0,
            show_default=True,
            help="Seconds between SIGTERM and SIGKILL; at most a quarter of the lease.",
        ),
        click.option(
            "--patience",
            "patience_s",
            type=Seconds(min=0),
            default=PATIENCE_S,
            show_default=True,
            help="Seconds to go on trying where no gateway answers, or one that restarts.",
        ),
        click.option("--holder", help="Who others are told holds the lease; by default this host and process."),
    ):
        command = option(command)
    return command


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
        fail(printable(str(refused)), REFUSED)
    except Unreachable as error:
        fail(printable(f"{error}. The command has run; whether its job is completed is not known"), UNREACHABLE)


def require_process_groups() -> None:
    """An exit with status 2 where there are none."""
    if os.name != "posix":
        fail("this command needs the process groups of POSIX")


def guarded(
    command: Sequence[str], environ: Mapping[str, str], lease: SyncLease, grace_s: float, terminal: Terminal | None
) -> int:
    """Run it, on our own terminal if we have one; its exit status. Raises `LeaseLost` if it was ended for that."""
    with awaiting() as mask:
        ward = Ward(
            command,
            environ,
            lease.deadline,
            grace_s,
            terminal=terminal.descriptor if terminal is not None and terminal.is_ours else -1,
            mask=sorted(mask),
        )
        guard_with(ward, lease)
        status = follow(ward, terminal)
    judge(ward, lease)
    return status


def guard_with(ward: Ward, lease: Guarded) -> None:
    """Tie the program to the lease."""
    lease.on_renewed(ward.keep_until)
    ward.keep_until(lease.deadline)
    lease.on_lost(lambda _: ward.stop())


def judge(ward: Ward, lease: Guarded, *, told_to_end: bool = False) -> bool:
    """The program has ended; whether its guard has ended it, told to by us. Raises `LeaseLost` if that was for its
    lease, or should have been."""
    ended_by_guard = ward.finish()
    lease.check()
    if ended_by_guard and not told_to_end:
        raise lease.run_out()
    return ended_by_guard


def environment_of(
    lease: Guarded, gateway: Mapping[str, str], endpoint: str | None, base: Mapping[str, str]
) -> dict[str, str]:
    """What the program finds in its environment; `gateway` is how it finds that."""
    environ = {name: value for name, value in base.items() if name not in _TAKEN_OUT}
    environ |= {**gateway, KEY_VARIABLE: lease.key, TOKEN_VARIABLE: str(lease.token)}
    if lease.output is not None:
        environ[OUTPUT_VARIABLE] = lease.output
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    environ |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    pair = lease.credentials
    if endpoint := endpoint or (pair.endpoint_url if pair else None):
        environ |= dict.fromkeys(ENDPOINT_VARIABLES, endpoint)
    if pair is not None:
        environ |= {
            "AWS_ACCESS_KEY_ID": pair.access_key_id,
            "AWS_SECRET_ACCESS_KEY": pair.secret_access_key,
            "AWS_SESSION_TOKEN": pair.session_token,
        }
    return environ


def check_outputs(outputs: Sequence[str]) -> None:
    """An exit with status 2 where one is no object."""
    for name in outputs:
        try:
            output_of(name)
        except ValueError as error:
            fail(printable(f"--output: {error}"))


class NoResult(Exception):
    """The file has none to be told; the message says why."""


def result_of(file: Path | None) -> object:
    """The result in a file, as `json_or_text`. Raises `NoResult`."""
    if file is None:
        return None
    try:
        data = file.read_bytes()
    except OSError as error:
        raise NoResult(f"--result {file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_RESULT_BYTES:
        raise NoResult(f"--result {file} is larger than {MAX_RESULT_BYTES} bytes")
    return json_or_text(data.decode("utf-8", "replace"))


def json_or_text(text: str) -> orjson.Fragment | str:
    """JSON, to be sent as it was written; else the text."""
    try:
        json.loads(text, parse_constant=_none_such, parse_int=str)  # of whatever length
    except ValueError:
        return text
    except RecursionError:
        pass  # JSON, too deep for this parser: for the gateway to judge
    return orjson.Fragment(text)


def _none_such(name: str) -> None:
    """What Python takes for a number and JSON does not."""
    raise ValueError(name)


def _leave(signum: int, _: FrameType | None) -> None:
    sys.exit(128 + signum)
