"""`fencing-gateway demo`: the incident that the gateway prevents, with it and without it, against real parts."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import click

from gateway.cli.demo_incident import DemoFault, Endpoint, play, tied_process
from gateway.cli.settings import REFUSED, UNREACHABLE, fail
from gateway.cli.show import print_json
from gateway.clock import SystemClock
from gateway.credentials_file import ready_made_credentials
from gateway.server.assemble import CREDENTIALS_FILE
from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.embedded import EmbeddedStore, EmbeddedStoreError

BOUND_S = 35
"""The longest a demonstration may take; it usually takes 10 s."""
BUCKET, BUCKET_PAST_THE_GATEWAY = "renders", "renders-unfenced"
STYLES = {"worker A": "yellow", "worker B": "cyan", "object": "green"}

GatewayStarter = Callable[[Path, Endpoint], AbstractAsyncContextManager[Endpoint]]
"""Starts a gateway with its data in a directory, before a store."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def demo(as_json: bool) -> None:
    """Play the incident that the gateway prevents, and the same without it.

    Starts an object store, a gateway and workers, all its own, and ends them. Exit status 0 only if both went as told.
    """
    sys.exit(run(Timeline(silent=as_json), start_gateway, as_json=as_json))


class Timeline:
    """What has happened, with the seconds since the beginning; told line by line unless `silent`."""

    def __init__(self, *, silent: bool) -> None:
        self.entries: list[dict[str, object]] = []
        self._silent = silent
        self._monotonic = SystemClock().monotonic
        self._start = self._monotonic()
        self._part = ""

    def begin(self, part: str) -> None:
        """Head what follows."""
        self._part = part
        if not self._silent:
            click.echo(f"\n{click.style(part, bold=True)}")

    def tell(self, who: str, what: str) -> None:
        at_s = round(self._monotonic() - self._start, 2)
        self.entries.append({"at_s": at_s, "part": self._part, "who": who, "what": what})
        if not self._silent:
            click.echo(f"{at_s:7.2f} s  {click.style(who.ljust(8), fg=STYLES.get(who))}  {what}")


def run(timeline: Timeline, starter: GatewayStarter, *, as_json: bool) -> int:
    """Play both parts within `BOUND_S`, and say how they went. Answers the exit status."""
    try:
        faults = asyncio.run(_bounded(timeline, starter))
    except EmbeddedStoreError as error:
        fail(str(error), UNREACHABLE)
    except asyncio.CancelledError:
        fail("told to stop", REFUSED)
    if as_json:
        print_json({"as_told": not faults, "faults": faults, "timeline": timeline.entries})
    elif not faults:
        click.echo("\nAs told: the gateway refused the late write. Without it, the late write won.")
    for fault in faults:
        click.echo(f"fencing-gateway: not as told: {fault}", err=True)
    return REFUSED if faults else 0


async def _bounded(timeline: Timeline, starter: GatewayStarter) -> list[str]:
    task = asyncio.current_task()
    assert task is not None
    # Like Ctrl-C: what was started is ended and removed.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(BOUND_S):
            return await _both_parts(timeline, starter)
    except TimeoutError:
        return [f"it was not over within {BOUND_S} s"]
    except DemoFault as fault:
        return [str(fault)]


async def _both_parts(timeline: Timeline, starter: GatewayStarter) -> list[str]:
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fencing-gateway-demo-") as name:
        directory = Path(name)
        timeline.begin("Preparation")
        store = EmbeddedStore(directory / "store")
        await store.start()
        try:
            timeline.tell("store", "runs: SeaweedFS, an S3 store of its own for this demonstration")
            behind = Endpoint(store.url, store.credentials, BUCKET_PAST_THE_GATEWAY)
            async with starter(directory, behind) as gateway:
                timeline.tell("gateway", f"runs at {gateway.url}, before that store")
                faults += await _part(timeline, "With the gateway", gateway, fenced=True)
            faults += await _part(
                timeline, "Without the gateway: the same, straight to the store", behind, fenced=False
            )
        finally:
            await store.stop()
    return faults


async def _part(timeline: Timeline, title: str, endpoint: Endpoint, *, fenced: bool) -> list[str]:
    timeline.begin(title)
    try:
        await play(endpoint, timeline.tell, fenced=fenced)
    except (DemoFault, UpstreamLost, UpstreamNotReached) as fault:
        return [f"{title}: {fault}"]
    return []


@asynccontextmanager
async def start_gateway(directory: Path, behind: Endpoint) -> AsyncIterator[Endpoint]:
    """`fencing-gateway serve` as a process of its own, on free ports. Raises `DemoFault` if it does not start."""
    database = directory / "gateway.db"
    environ = {
        "FENCING_GATEWAY_S3__LISTEN": "127.0.0.1:0",
        "FENCING_GATEWAY_CONTROL__LISTEN": "127.0.0.1:0",
        "FENCING_GATEWAY_STORE__URL": f"sqlite:{database}",
        "FENCING_GATEWAY_UPSTREAM__URL": behind.url,
        "FENCING_GATEWAY_UPSTREAM__ACCESS_KEY": behind.credentials.access_key,
        "FENCING_GATEWAY_UPSTREAM__SECRET_KEY": behind.credentials.secret_key,
    }
    log = directory / "gateway.log"
    with log.open("wb") as stderr:
        async with tied_process("-m", "gateway", "serve", environ=environ, stderr=stderr) as process:
            assert process.stdout is not None
            label, _, url = (await process.stdout.readline()).decode().strip().rpartition(" ")
            if not label:
                raise DemoFault(f"the gateway did not start: {log.read_text()[-2000:]}")
            yield Endpoint(url, ready_made_credentials(database.with_name(CREDENTIALS_FILE)), BUCKET)
