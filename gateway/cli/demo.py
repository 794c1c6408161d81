"""`fencing-gateway demo`: the incident that the gateway prevents, with it and without it, against real parts."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path

import click

from gateway.cli.demonstration.gateway import DemoGateway, start_gateway
from gateway.cli.demonstration.incident import WITH, WITHOUT, play_with_gateway, play_without_gateway
from gateway.cli.demonstration.processes import DemoFault, Endpoint
from gateway.cli.demonstration.receiver import Receiver
from gateway.cli.demonstration.verdict import WithGateway, WithoutGateway
from gateway.cli.settings import REFUSED, UNREACHABLE, fail
from gateway.cli.show import print_json
from gateway.client.errors import Refused, Unreachable
from gateway.clock import SystemClock
from gateway.upstream.base import UpstreamLost, UpstreamNotReached
from gateway.upstream.embedded import EmbeddedStore, EmbeddedStoreError

BOUND_S = 90
"""The longest a demonstration may take, on however slow a machine; it usually takes 15 s."""
BUCKET_PAST_THE_GATEWAY = "renders-unfenced"
STYLES = {"worker X": "red", "worker A": "yellow", "worker B": "cyan", "object": "green", "job": "green"}

GatewayStarter = Callable[[Path, Endpoint, Receiver], AbstractAsyncContextManager[DemoGateway]]
"""Starts a gateway with its data in a directory, before a store, that tells a receiver."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def demo(as_json: bool) -> None:
    """Play the incident that the gateway prevents, and the same without it.

    Starts an object store, a gateway, a receiver of webhooks and workers, all its own, and ends them. Exit status 0
    only if both went as told.
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
        """One thing that has just happened."""
        at_s = round(self._monotonic() - self._start, 2)
        self.entries.append({"at_s": at_s, "part": self._part, "who": who, "what": what})
        if not self._silent:
            click.echo(f"{at_s:7.2f} s  {click.style(who.ljust(8), fg=STYLES.get(who))}  {what}")


class Outcomes:
    """What has come of both parts."""

    def __init__(self) -> None:
        self.all: dict[str, WithGateway | WithoutGateway] = {}
        self.faults: list[str] = []

    async def of(self, part: str, playing: Awaitable[WithGateway | WithoutGateway]) -> None:
        """Of this part; one that could not be played to its end leaves nothing but a fault."""
        try:
            outcome = await playing
        except (DemoFault, UpstreamLost, UpstreamNotReached, Refused, Unreachable) as fault:
            self.faults.append(f"{part}: {fault}")
            return
        self.all[part] = outcome
        self.faults += [f"{part}: {fault}" for fault in outcome.faults()]


def run(timeline: Timeline, starter: GatewayStarter, *, as_json: bool) -> int:
    """Play both parts within `BOUND_S`, and say how they went. Answers the exit status."""
    outcomes = Outcomes()
    try:
        asyncio.run(_bounded(timeline, starter, outcomes))
    except EmbeddedStoreError as error:
        fail(str(error), UNREACHABLE)
    except asyncio.CancelledError:
        fail("told to stop", REFUSED)
    faults = outcomes.faults
    if as_json:
        both = {"with_gateway": outcomes.all.get(WITH), "without_gateway": outcomes.all.get(WITHOUT)}
        shown = {name: None if one is None else asdict(one) for name, one in both.items()}
        print_json({"as_told": not faults, "faults": faults, **shown, "timeline": timeline.entries})
    elif not faults:
        click.echo(
            "\nAs told: the gateway refused the late write, and the job was done once. Without it, the late write won."
        )
    for fault in faults:
        click.echo(f"fencing-gateway: not as told: {fault}", err=True)
    return REFUSED if faults else 0


async def _bounded(timeline: Timeline, starter: GatewayStarter, outcomes: Outcomes) -> None:
    task = asyncio.current_task()
    assert task is not None
    # Like Ctrl-C: what was started is ended and removed.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(BOUND_S):
            await _both_parts(timeline, starter, outcomes)
    except TimeoutError:
        outcomes.faults.append(f"it was not over within {BOUND_S} s")
    except DemoFault as fault:
        outcomes.faults.append(str(fault))


async def _both_parts(timeline: Timeline, starter: GatewayStarter, outcomes: Outcomes) -> None:
    tell = timeline.tell
    with tempfile.TemporaryDirectory(prefix="fencing-gateway-demo-") as name:
        directory = Path(name)
        timeline.begin("Preparation")
        store = EmbeddedStore(directory / "store")
        await store.start()
        try:
            tell("store", "runs: SeaweedFS, an S3 store of its own for this demonstration")
            behind = Endpoint(store.url, store.credentials, BUCKET_PAST_THE_GATEWAY)
            async with Receiver() as receiver, starter(directory, behind, receiver) as gateway:
                tell(
                    "gateway", f"runs at {gateway.s3.url}, before that store; its control API at {gateway.control_url}"
                )
                tell("receiver", f"listens at {receiver.url} for what the gateway announces")
                await outcomes.of(WITH, play_with_gateway(gateway, receiver, timeline.begin, tell))
            await outcomes.of(WITHOUT, play_without_gateway(behind, timeline.begin, tell))
        finally:
            await store.stop()
