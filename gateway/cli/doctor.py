"""`fencing-gateway doctor`."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import uvloop

from gateway.cli.guarantees import Guarantee, Holds, Standing, guarantees, unfenced, unmet
from gateway.cli.lent_bucket import LentBucket
from gateway.cli.options import Seconds
from gateway.cli.settings import REFUSED, UNREACHABLE, USAGE, config_options, fail, settings_of
from gateway.cli.show import print_facts, print_json
from gateway.cli.table import print_table
from gateway.clock import SystemClock
from gateway.config.settings import Settings
from gateway.core.errors import FenceError
from gateway.server.assemble import store_path
from gateway.server.behind import store_beside
from gateway.server.tls import Tls, tls_faults
from gateway.service.record import NoBucket, RecordObjects
from gateway.service.rulings import fault_of, remedy
from gateway.stores.base import StoreUnavailable
from gateway.stores.sqlite.glance import Glance
from gateway.stores.values import Authority
from gateway.tls import CertificateError
from gateway.upstream.credentials import AwsFault
from gateway.upstream.embedded import EmbeddedStoreError
from gateway.upstream.examination import Report, examine
from gateway.upstream.probe import FixedCapabilities
from gateway.upstream.scratch import CannotProbe, NotReached

SILENCE_S = 20.0
STYLES = {Holds.YES: "green", Holds.IN_PART: "yellow", Holds.NO: "red"}

TITLES = {
    "plain": "what is written is read, byte for byte",
    "metadata": "metadata is kept",
    "withheld": "an upload without its last byte is invisible",
    "cut": "an upload that is cut leaves nothing",
    "silence": "an upload may fall silent",
    "ranges": "parts of objects are answered as such",
    "copy-metadata": "a copy takes along its source's metadata",
    "put-absent": "PUT: If-None-Match: *",
    "put-match": "PUT: If-Match",
    "put-moment": "PUT: judged when the last byte comes",
    "put-race": "PUT: one winner of a race",
    "copy": "CopyObject: conditions",
    "delete": "DELETE: If-Match",
    "complete": "CompleteMultipartUpload: conditions",
    "complete-race": "CompleteMultipartUpload: one winner of a race",
    "abort": "an aborted upload takes no parts",
    "versions": "no versions are kept",
    "trailers": "trailing checksums are kept",
    "signed-chunks": "bodies in signed chunks are understood",
    "expect": "Expect: 100-continue",
    "paths": "keys are no paths",
    "subresources": "unknown operations change no object",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What is told."""

    store: str
    bucket: str
    report: Report
    guarantees: list[Guarantee]
    unfenced: list[str]
    """What rules leave out."""
    fault: str | None
    """What the store lacks that it has to give; None: nothing."""


@click.command()
@config_options
@click.option(
    "--bucket",
    metavar="TEXT",
    help="A bucket to try things in. Nothing is left there. For the embedded store by default one of its own.",
)
@click.option(
    "--silence",
    "silence_s",
    type=Seconds(0.1, 3600),
    default=SILENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to hold an upload without a byte.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    config: Path | None, assignments: tuple[str, ...], bucket: str | None, silence_s: float, as_json: bool
) -> None:
    """Try out what the store behind the gateway does, and say which guarantees hold with it. Exit status 1 if it lacks
    what every store has to give, or what the configuration requires."""
    settings = settings_of(config, assignments, tls_faults, as_json=as_json)
    lend = bucket is None
    if bucket is None:
        if settings.upstream.url != "embedded":
            fail(
                f"say by --bucket in which bucket of {settings.upstream.url} to try things; nothing is left there",
                as_json=as_json,
            )
        bucket = f"fencing-gateway-doctor-{SystemClock().nonce()}"
    if not as_json:
        click.echo(f"Trying out bucket {bucket} for some {silence_s + 5:.0f} s …", err=True)
    try:
        report, standing = uvloop.run(_examine(settings, bucket, silence_s, lend=lend))
    except CertificateError as error:
        fail(str(error), USAGE, as_json=as_json)
    except (NotReached, EmbeddedStoreError, AwsFault, OSError) as error:
        fail(f"the store cannot be reached: {error}", UNREACHABLE, as_json=as_json)
    except CannotProbe as error:
        fail(f"bucket {bucket} cannot be tried out: {error}", REFUSED, as_json=as_json)
    except asyncio.CancelledError:
        fail("interrupted", REFUSED, as_json=as_json)
    found = Found(
        settings.upstream.url,
        bucket,
        report,
        guarantees(report, settings, standing),
        unfenced(settings, None if lend else bucket),
        unmet(report, settings),
    )
    if as_json:
        print_json(_document(found))
    else:
        _print(found)
    sys.exit(REFUSED if found.fault else 0)


async def _examine(settings: Settings, bucket: str, silence_s: float, *, lend: bool) -> tuple[Report, Standing]:
    """The report, and how our database stands to the bucket. SIGTERM ends the examination as Ctrl-C does, leaving
    nothing in the bucket."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    clock = SystemClock()
    behind = await store_beside(settings, Tls(settings, clock.wall))
    upstream = behind.client
    try:
        async with AsyncExitStack() as lent:
            own = await lent.enter_async_context(LentBucket(upstream, bucket)) if lend else None
            signed = upstream.send_in_signed_chunk
            report = await examine(upstream, bucket, clock.nonce(), silence_s=silence_s, signed_chunks=signed)
            records = RecordObjects(upstream, FixedCapabilities(report.capabilities))
            standing = await standing_of(settings, bucket, records)
        if own is not None and own.left:
            report = replace(report, left=(*report.left, bucket))
        return report, standing
    finally:
        await upstream.close()
        if behind.stop is not None:
            await behind.stop()


async def standing_of(settings: Settings, bucket: str, records: RecordObjects) -> Standing:
    """What the bucket's record says of the database that the settings name, which may be in use."""
    if settings.store.fenced_before is False:
        return Standing(False)
    file = store_path(settings)
    try:
        seen = await records.read(bucket)
        database = Glance(file) if file.exists() else _NoDatabase()
        fault = await fault_of(database, bucket, seen, known_alone=settings.store.fenced_before is True)
    except FenceError as error:
        return Standing(False, error.message)
    except (NoBucket, StoreUnavailable) as error:
        return Standing(False, str(error))
    return Standing(seen is not None, f"{fault}. Take it over by: {remedy(bucket)}" if fault else "")


class _NoDatabase:
    """One that the first start will make."""

    authority = Authority("(none yet)", 0, "")

    async def knows_run(self, run: str) -> bool:
        return False

    async def ruling(self, bucket: str) -> None:
        return None


def _document(found: Found) -> dict[str, Any]:
    report = found.report
    capabilities = asdict(report.capabilities) | {"trailers": sorted(report.capabilities.trailers)}
    return {
        "ok": found.fault is None,
        "error": found.fault,
        "store": found.store,
        "bucket": found.bucket,
        "guarantees": {g.name: {"holds": g.holds, "why": g.why} for g in found.guarantees},
        "unfenced": found.unfenced,
        "experiments": {name: asdict(finding) for name, finding in report.findings.items()},
        "capabilities": capabilities,
        "left_behind": report.left,
        "sqlite": sqlite3.sqlite_version,
    }


def _print(found: Found) -> None:
    report = found.report
    print_facts([("Store", f"{found.store}, bucket {found.bucket}"), ("SQLite", sqlite3.sqlite_version)])
    click.echo()
    rows = [(guarantee.name, guarantee.holds.value, guarantee.why) for guarantee in found.guarantees]
    styles = [STYLES[guarantee.holds] for guarantee in found.guarantees]
    print_table(("guarantee", "holds", "since, or why not"), rows, styles)
    for line in found.unfenced:
        click.echo(f"Not covered: {line}")
    click.echo()
    seen = [(TITLES[name], "yes" if f.holds else "no", f.seen) for name, f in report.findings.items()]
    print_table(("tried out", "", "seen"), seen)
    if report.left:
        click.echo(f"\nLeft behind, to be deleted: {', '.join(report.left)}")
    if found.fault is not None:
        click.echo(f"\nNot good enough: {found.fault}")
