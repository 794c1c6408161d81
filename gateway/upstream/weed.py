"""SeaweedFS's program: how it is called, and whether it answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import aiohttp

from gateway.upstream.embedded_ports import Ports


def arguments(ports: Ports) -> list[str]:
    """For `weed` 4.48 (`weed server -h`). Measured with these: ready 3.2 to 4.8 s after the first start in a directory,
    2.2 s after each later one."""
    return [
        "-logtostderr=true",
        "server",
        "-dir=.",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={ports.master}",
        "-master.telemetry=false",  # by default it calls home
        # By default the first write waits for seconds, and a restart takes 15 to 20 s.
        "-master.electionTimeout=200ms",
        "-master.heartbeatInterval=100ms",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={ports.volume}",
        "-volume.max=10000",  # each bucket takes volumes of its own; none is preallocated
        "-filer",
        f"-filer.port={ports.filer}",
        "-filer.localSocket=filer.sock",
        "-s3",
        f"-s3.port={ports.s3}",
        "-s3.localSocket=s3.sock",
        "-s3.config=../s3.json",
        # By default it opens more ports than it is given.
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.allowedOrigins=",  # as on S3: which pages may use a bucket, it says itself. By default all might
        # As on S3: a bucket is not made by an upload, nor deleted with what is in it.
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
    ]


def environment(directory: Path) -> dict[str, str]:
    """Nothing of ours: SeaweedFS takes AWS_ACCESS_KEY_ID for one of its administrators, and WEED_* for options."""
    return {
        "PATH": os.defpath,
        "HOME": str(directory),
        "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",  # volumes that a bucket takes at a time, instead of 7
    }


async def knows_volumes(ports: Ports) -> bool:
    """The master has heard from the volume server: before, reads and writes fail."""
    status, body = await _get(f"http://127.0.0.1:{ports.master}/dir/status")
    try:
        return status == 200 and bool(json.loads(body)["Topology"]["Max"] > 0)
    except (ValueError, LookupError, TypeError):  # somebody else's port by now
        return False


async def answers(ports: Ports) -> bool:
    """S3 is there and knows its credentials: it refuses a request that has none."""
    status, _ = await _get(f"http://127.0.0.1:{ports.s3}/")
    return status == 403


async def _get(url: str) -> tuple[int, bytes]:
    try:
        async with aiohttp.request("GET", url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
            return answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        return 0, b""
