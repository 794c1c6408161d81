"""kill -9 at any moment, then start again: no floor has fallen, no lower token gets through."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

import pytest

from tests.conftest import StoreServer
from tests.end_to_end.process import CLIENT, gateway_over, wait_until
from tests.end_to_end.wire import Answer, Request, exchange, request
from tests.gateway_process import GatewayProcess, before

JOBS = ("j1", "j2", "j3")


def put(gateway: GatewayProcess, bucket: str, job: str, token: int, payload: bytes) -> Request:
    host = "{}:{}".format(*gateway.address)
    headers = (("x-fencing-token", str(token)),)
    return request("PUT", host, f"/{bucket}/renders/{job}/out", payload, CLIENT, headers=headers)


async def send(gateway: GatewayProcess, bucket: str, job: str, token: int, payload: bytes) -> Answer:
    return await exchange(gateway.address, put(gateway, bucket, job, token, payload))


async def write_until_killed(
    gateway: GatewayProcess, bucket: str, after_s: float, acknowledged: dict[str, int]
) -> None:
    """Workers with ever higher tokens write all jobs; some time after each has succeeded, the gateway is killed."""

    async def work(job: str) -> None:
        token = acknowledged[job]
        while True:
            token += 1
            answer = await send(gateway, bucket, job, token, f"{job} {token} ".encode() * 10)
            if answer.status == 200:
                acknowledged[job] = max(acknowledged[job], token)

    begun = dict(acknowledged)
    tasks = [asyncio.create_task(work(job)) for job in JOBS for _ in range(2)]
    async with asyncio.timeout(15):
        while any(acknowledged[job] == begun[job] for job in JOBS):
            await asyncio.sleep(0.01)
    await asyncio.sleep(after_s)
    await asyncio.to_thread(gateway.kill)
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_killed_at_random_moments_no_floor_falls(tmp_path: Path) -> None:
    """Four rounds over the embedded store: after each the floors and the objects are those acknowledged, or later."""
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    bucket = "crash-bucket"
    gateway = gateway_over(tmp_path)
    acknowledged = dict.fromkeys(JOBS, 0)
    try:
        gateway.start()
        host = "{}:{}".format(*gateway.address)
        assert (await exchange(gateway.address, request("PUT", host, f"/{bucket}", b"", CLIENT))).status == 200
        for _ in range(4):
            await write_until_killed(gateway, bucket, chance.uniform(0.05, 0.6), acknowledged)
            await asyncio.to_thread(gateway.start)
            for job in JOBS:
                floor = gateway.fence(job)["floor"]
                assert floor >= acknowledged[job]
                stale = await send(gateway, bucket, job, floor - 1, b"zombie")
                assert stale.status == 412, stale.body
                host = "{}:{}".format(*gateway.address)
                found = await exchange(
                    gateway.address, request("GET", host, f"/{bucket}/renders/{job}/out", b"", CLIENT)
                )
                token = int(found.headers["x-fencing-object-token"])
                assert acknowledged[job] <= token <= floor
                assert found.body == f"{job} {token} ".encode() * 10
    finally:
        gateway.kill()


async def test_after_a_kill_before_a_store_of_others_a_higher_token_waits_out_the_settle_timeout(
    tmp_path: Path, store_server: StoreServer, bucket: str
) -> None:
    """R5 on real processes: what the killed gateway sent may still land, so 34 waits; 33 goes on at once."""
    quick = ("fencing.settle_timeout_s=6", "fencing.settle_timeout_assembly_s=6")
    gateway = gateway_over(tmp_path, *quick, **before(store_server))
    try:
        gateway.start()
        for job in JOBS:
            assert (await send(gateway, bucket, job, 33, b"A")).status == 200
        await asyncio.to_thread(wait_until, lambda: completed_floors(tmp_path / "gateway.db") == [33, 33, 33])
        gateway.kill()
        gateway.start()
        higher = asyncio.create_task(send(gateway, bucket, "j2", 34, b"B"))
        assert (await send(gateway, bucket, "j1", 33, b"A2")).status == 200
        assert not higher.done()
        await asyncio.to_thread(wait_until, lambda: gateway.fence("j2")["floor"] == 34)
        assert gateway.fence("j2")["completed_floor"] == 33
        assert (await higher).status == 200
    finally:
        gateway.kill()


def completed_floors(database: Path) -> list[int]:
    """What the disk says."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [floor for (floor,) in connection.execute("SELECT completed_floor FROM fence")]


def test_a_second_gateway_on_the_same_database_is_refused(tmp_path: Path) -> None:
    """The file is locked to one gateway; the message says so and names the other."""
    with gateway_over(tmp_path) as first:
        second = gateway_over(tmp_path)
        with pytest.raises(AssertionError, match="the gateway has ended"):
            second.start()
        assert second.process.wait(20) == 3
        assert str(first.process.pid) in second.log()
