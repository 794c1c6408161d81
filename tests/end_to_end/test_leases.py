"""Leases of real processes: killed at every step, stopped, started again, restored from a backup."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.end_to_end.process import CONFIGURATION, gateway_over
from tests.gateway_process import BOUND_S, GatewayProcess, command

JOBS = ("j1", "j2")


def call(gateway: GatewayProcess, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Status and document. OSError, HTTPException: no answer has come."""
    request = Request(
        f"{gateway.control_url}/v1/leases/{path}",
        None if body is None else json.dumps(body).encode(),
        {name.replace("_", "-"): value for name, value in headers.items()},
        method=method,
    )
    try:
        with urlopen(request, timeout=BOUND_S) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def acquire(gateway: GatewayProcess, job: str, holder: str = "A", **asked: Any) -> tuple[int, Any]:
    once = asked.pop("once", None)
    headers = {} if once is None else {"Idempotency_Key": once}
    return call(gateway, "POST", job, {"holder": holder, "ttl_s": 30} | asked, **headers)


def renew(gateway: GatewayProcess, job: str, token: int) -> tuple[int, Any]:
    return call(gateway, "POST", f"{job}/renew", {"token": token})


def release(gateway: GatewayProcess, job: str, token: int) -> tuple[int, Any]:
    return call(gateway, "DELETE", f"{job}?token={token}")


def test_killed_between_the_write_and_the_answer_nothing_is_lost(tmp_path: Path) -> None:
    """A grant, asked again with the same Idempotency-Key after the restart, is the very grant, and nobody else gets the
    key before; a release, repeated, is answered as if it had come once."""
    armed = tmp_path / "armed"
    program = ("tests.end_to_end.dying", str(armed))
    gateway = GatewayProcess(tmp_path, configuration=CONFIGURATION, program=program).start()

    def killed_after(method: str, called: Callable[[], object]) -> None:
        armed.write_text(method)
        with pytest.raises((OSError, HTTPException)):
            called()
        gateway.end()
        gateway.start()

    try:
        killed_after("grant", lambda: acquire(gateway, "j", once="request-1"))
        status, problem = acquire(gateway, "j", "B")
        assert (status, problem["reason"], problem["holder"]) == (409, "held", "A")
        status, lease = acquire(gateway, "j", once="request-1")
        assert (status, lease["token"]) == (201, 1)
        assert renew(gateway, "j", 1)[0] == 200
        killed_after("seal", lambda: release(gateway, "j", 1))
        assert release(gateway, "j", 1)[0] == 204
        assert renew(gateway, "j", 1)[1]["reason"] == "lost"
        assert acquire(gateway, "j", "B")[1]["token"] == 2
    finally:
        gateway.kill()


def without_store(directory: Path) -> GatewayProcess:
    """A gateway before a store that is not there: it starts at once, and leases need none."""
    quick = ("fencing.settle_timeout_s=3", "fencing.settle_timeout_assembly_s=3")
    return gateway_over(directory, "upstream.url=http://127.0.0.1:9", *quick)


def test_after_a_restart_a_holder_has_its_full_time(tmp_path: Path) -> None:
    """However little was left: the gateway knows who holds the key, and not how long he has been silent."""
    gateway = without_store(tmp_path).start()
    try:
        assert acquire(gateway, "j", ttl_s=5)[0] == 201
        gateway.stop()
        before = time.monotonic()
        gateway.start()
        status, problem = acquire(gateway, "j", "B")
        assert (status, problem["reason"]) == (409, "held")
        assert 5 - (time.monotonic() - before) <= problem["expires_in_s"] <= 5
        assert gateway.fence("j")["lease"]["holder"] == "A"
        status, lease = renew(gateway, "j", 1)
        assert (status, lease["token"]) == (200, 1)
        status, lease = acquire(gateway, "j", "B", wait_s=20)
        assert (status, lease["token"], lease["holder"]) == (201, 2, "B")
    finally:
        gateway.kill()


def test_a_restored_database_repeats_no_token_and_holds_no_lease_of_its_backup(tmp_path: Path) -> None:
    """It cannot know what has been granted since: the backup's holder has lost, a later one was never granted here, and
    the next token is above all that the old database can have issued."""
    backup = tmp_path / "backup.db"
    gateway = without_store(tmp_path).start()
    try:
        assert acquire(gateway, "j", "A")[1]["token"] == 1
        result = gateway.ask("backup", str(backup))
        assert result.exit_code == 0, result.output
        assert release(gateway, "j", 1)[0] == 204
        assert acquire(gateway, "j", "B")[1]["token"] == 2
        gateway.stop()
        for file in tmp_path.glob("gateway.db*"):
            file.unlink()
        result = command("restore", str(backup), "--config", str(tmp_path / "gateway.toml"), "--set",
                         f"store.url=sqlite:{tmp_path}/gateway.db")  # fmt: skip
        assert result.exit_code == 0, result.output
        gateway.start()
        assert renew(gateway, "j", 1)[1]["reason"] == "lost"
        assert renew(gateway, "j", 2)[1]["reason"] == "TokenNotIssued"
        status, lease = acquire(gateway, "j", "C")
        assert (status, lease["token"]) == (201, 2**40 + 1)
    finally:
        gateway.kill()


async def test_killed_at_random_moments_no_token_goes_to_two(tmp_path: Path) -> None:
    """Workers acquire and release, each request repeated until it is answered; twice the gateway is killed
    meanwhile. Each token belongs to one request, and the tokens of a job rise in the order of its grants."""
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = gateway_over(tmp_path)
    owners: dict[tuple[str, int], str] = {}
    grants: dict[str, list[int]] = {job: [] for job in JOBS}
    over = False

    async def ask(*given: Any, **named: Any) -> tuple[int, Any]:
        """An answer, however many gateways it takes."""
        while True:
            try:
                status, told = await asyncio.to_thread(*given, **named)
                if status < 500:
                    return status, told
            except (OSError, HTTPException):
                await asyncio.sleep(0.02)

    async def worker(name: str, job: str) -> None:
        turn = 0
        while not over:
            turn += 1
            once = f"{name}-{turn}"
            status, told = await ask(acquire, gateway, job, name, wait_s=5, once=once)
            if status != 201:
                assert told["reason"] == "held", told
                continue
            token = told["token"]
            assert owners.setdefault((job, token), once) == once
            grants[job].append(token)
            status, told = await ask(release, gateway, job, token)
            assert status == 204, told

    try:
        gateway.start()
        workers = [asyncio.create_task(worker(f"w{n}-{job}", job)) for job in JOBS for n in range(3)]
        for _ in range(2):
            seen = {job: len(found) for job, found in grants.items()}
            async with asyncio.timeout(30):
                while any(len(grants[job]) < seen[job] + 5 for job in JOBS):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.2))
            await asyncio.to_thread(gateway.kill)
            await asyncio.to_thread(gateway.start)
        over = True
        async with asyncio.timeout(60):
            await asyncio.gather(*workers)
    finally:
        gateway.kill()
    for found in grants.values():
        assert found == sorted(set(found))
