"""`fencing-gateway serve`."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import structlog
import uvloop

from gateway.cli.settings import UNREACHABLE, config_options, fail, settings_of
from gateway.cli.show import json_text
from gateway.config.settings import ControlSettings, S3Settings, Settings
from gateway.config.values import split_listen
from gateway.credentials_file import CredentialsFileError
from gateway.server.app import Gateway
from gateway.server.assemble import clients, file_faults, start_gateway
from gateway.service.rulings import remedy
from gateway.stores.base import StoreUnavailable
from gateway.telemetry import configure_logging
from gateway.tls import CertificateError
from gateway.upstream.credentials import AwsFault
from gateway.upstream.embedded import EmbeddedStoreError

OWN_FILES = 128
"""Files beside connections: the database, the embedded store's pipes, the control API's callers."""

_log = structlog.get_logger(__name__)


@click.command()
@config_options
@click.option("--quiet", is_flag=True, help="Say nothing on standard output; the log goes to standard error anyway.")
@click.option("--json", "as_json", is_flag=True, help="Say on standard output, as JSON, where the gateway listens.")
def serve(config: Path | None, assignments: tuple[str, ...], quiet: bool, as_json: bool) -> None:
    """Run the gateway. SIGTERM or Ctrl-C drains and stops it; a second one stops it at once, and so does the first
    while it starts. SIGHUP has it read the files of TLS, and the keys of session tokens, again."""
    _open_standard_streams()
    settings = settings_of(config, assignments, file_faults, as_json=as_json)
    configure_logging(settings.server.log_level)
    try:
        uvloop.run(_serve(settings, quiet=quiet or as_json, as_json=as_json))
    except CertificateError as error:
        fail(str(error), as_json=as_json)
    except OSError as error:
        fail(_start_fault(settings, error), UNREACHABLE, as_json=as_json)
    except (StoreUnavailable, EmbeddedStoreError, AwsFault, CredentialsFileError) as error:
        fail(str(error), UNREACHABLE, as_json=as_json)


async def _serve(settings: Settings, *, quiet: bool, as_json: bool) -> None:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = loop.create_task(start_gateway(settings))

    def stop() -> None:
        if not told_to_stop.is_set():  # what ends a start halfway is quick, and must come to its end
            told_to_stop.set()
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    on_terminal, hung_up = os.isatty(0), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    too_few = _open_files(settings)
    try:
        gateway = await starting
    except asyncio.CancelledError:
        _log.info("start-given-up")
        return
    if too_few:
        gateway.telemetry.warning("few-files", **too_few)
    reload = _hang_up(gateway, on_terminal=on_terminal)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if hung_up.is_set():  # while it was starting: what it read then may have been replaced since
        reload()
    gc.collect()
    # What is there now stays, and each request leaves hundreds of objects that die by their counts: looking for cycles
    # as often as Python does by default costs a twentieth of a small PUT.
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)
    if as_json:
        _say(json_text(_whereabouts(settings, gateway)))
    if not quiet:
        _say(_welcome(settings, gateway))
    telling = asyncio.create_task(_tell_refused(gateway, quiet=quiet))
    await told_to_stop.wait()
    telling.cancel()
    stopping = asyncio.create_task(gateway.stop())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, gateway.stop_waiting)
    if not quiet:
        _say("Draining; once more to stop at once.")
    await stopping


def _open_standard_streams() -> None:
    """Standard streams that whoever started this has closed lead to /dev/null. Else the first connections would be
    taken for them: libuv ends the process that closes one, and what is printed would go to a client."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process


def _say(text: str) -> None:
    """On standard output. Where it goes to may be full, or gone: the gateway lives, and stops as it should, without."""
    with suppress(OSError):
        click.echo(text)


async def _tell_refused(gateway: Gateway, *, quiet: bool) -> None:
    """Say what has to be rebuilt before anything fenced is served; the log says it, too, or that it cannot be said."""
    try:
        refused = await gateway.refused_buckets()
    except StoreUnavailable:
        return
    if refused and not quiet:
        _say("\nNothing fenced is served in:")
        for bucket, why in refused.items():
            _say(f"  {bucket}: {why}\n    {remedy(bucket)}")


def _open_files(settings: Settings) -> dict[str, int]:
    """Have as many open files as this process may: each connection is one. Tells of it if they are too few."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    needed = settings.s3.max_connections + settings.upstream.max_connections + OWN_FILES
    return {"limit": limit, "needed": needed} if limit != resource.RLIM_INFINITY and limit < needed else {}


def _hang_up(gateway: Gateway, *, on_terminal: bool) -> Callable[[], None]:
    """What SIGHUP does: files are read again. But where the terminal has gone that the gateway was started on, the
    signal means what it always did."""

    def reload() -> None:
        if on_terminal and not os.isatty(0):
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGHUP)
        gateway.reload()

    return reload


def _start_fault(settings: Settings, error: OSError) -> str:
    """Which listener's address cannot be had, and how to choose another; else what the system says."""
    for section, listen, port in (("s3", settings.s3.listen, 9000), ("control", settings.control.listen, 9001)):
        fault = _listen_fault(listen)
        if fault is not None and fault.errno == errno.EADDRINUSE:
            other = f"{listen.rpartition(':')[0]}:{port}"
            return (
                f"[{section}] listen, {listen}: address already in use. Choose another: --set {section}.listen={other}"
                f", or FENCING_GATEWAY_{section.upper()}__LISTEN={other}"
            )
        if fault is not None:
            return f"[{section}] listen, {listen}: {fault.strerror}"
    in_use = "an address to listen at was in use, and is free again: start once more"
    return in_use if error.errno == errno.EADDRINUSE else str(error)


def _listen_fault(listen: str) -> OSError | None:
    """Why nobody can listen there. The listeners of this process are closed by now."""
    host, port = split_listen(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


def _whereabouts(settings: Settings, gateway: Gateway) -> dict[str, str]:
    """Where the gateway listens, and the ready-made credentials where no client is configured."""
    host, control_host = (listen.rpartition(":")[0] for listen in (settings.s3.listen, settings.control.listen))
    told = {
        "s3_endpoint": f"{_scheme(settings.s3)}://{host}:{gateway.s3_port}",
        "control_api": f"{_scheme(settings.control)}://{control_host}:{gateway.control_port}",
        "region": settings.s3.region,
    }
    if not settings.client:
        pair = clients(settings)[0].credentials
        told |= {"access_key_id": pair.access_key, "secret_access_key": pair.secret_key}
    return told


def _welcome(settings: Settings, gateway: Gateway) -> str:
    told = _whereabouts(settings, gateway)
    endpoint = told["s3_endpoint"]
    lines = [f"S3 endpoint  {endpoint}", f"Control API  {told['control_api']}"]
    if not settings.client:
        lines += [
            "",
            f"export AWS_ACCESS_KEY_ID={told['access_key_id']} AWS_SECRET_ACCESS_KEY={told['secret_access_key']}",
            f"export AWS_DEFAULT_REGION={told['region']} AWS_ENDPOINT_URL_S3={endpoint}",
        ]
    if not settings.client and settings.upstream.url == "embedded":  # no other store is to be tried out unasked
        lines += [
            "",
            "Try, with the AWS CLI (pip install awscli):",
            "  aws s3 mb s3://renders",
            "  aws s3api put-object --bucket renders --key job-1/out.mp4 --body README.md --metadata fencing-token=34",
            "  aws s3api put-object --bucket renders --key job-1/out.mp4 --body README.md --metadata fencing-token=33",
            "",
            "The last one is refused: token 34 holds the job.",
        ]
    return "\n".join(lines)


def _scheme(listener: S3Settings | ControlSettings) -> str:
    return "https" if listener.tls_cert is not None else "http"
