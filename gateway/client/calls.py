"""The calls of the control API that workers make (docs/api.md), once each; and how they are repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

import orjson

from gateway.client.errors import Distrusted, Json, Unreachable
from gateway.client.records import Grant, JobRecord
from gateway.client.transport import TIMEOUT_S, Transport, no_gateway
from gateway.clock import Clock

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
LONGEST_WAIT_S = 3600.0
"""Of one call. Who waits for longer, or for ever, asks again; so he does after whatever the gateway allows."""


def patience(clock: Clock, patience_s: float) -> Callable[[], float]:
    """Until when `patiently` goes on: so long from the first failure on, however long the call has waited before."""
    first: list[float] = []

    def until() -> float:
        first.append(clock.monotonic())
        return first[0] + patience_s

    return until


async def patiently(attempt: Callable[[], Awaitable[T]], until: Callable[[], float], clock: Clock) -> T:
    """Repeat what a lost answer, a restart or a 503 has kept from being done, until that moment of the clock."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except Distrusted:
            raise
        except Unreachable as error:
            left_s = until() - clock.monotonic()
            if left_s <= 0:
                raise
            await asyncio.sleep(min(max(pause_s, error.retry_after_s or 0) * (0.5 + clock.chance()), left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Calls:
    """Each sends one request. All raise `Refused` and `Unreachable`."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self.transport = transport
        self._clock = clock

    # --- leases

    async def acquire(self, key: str, holder: str, ttl_s: float, wait_s: float, repeat_key: str) -> Grant:
        """A lease, after waiting in line for at most `wait_s`. Under one `repeat_key` there is one grant."""
        wait_s = min(wait_s, LONGEST_WAIT_S)
        body: Json = {"holder": holder, "ttl_s": ttl_s, "wait_s": wait_s}
        sent_at = self._clock.monotonic()
        answer = await self._repeatable(lease_path(key), body, repeat_key, wait_s)
        return self._read(answer, lambda told: Grant.of(told, sent_at))

    async def renew(self, key: str, token: int, timeout_s: float = TIMEOUT_S) -> float:
        """For how long the lease now lasts."""
        answer = await self.transport.json(
            "POST", lease_path(key) + "/renew", {"token": said(token)}, timeout_s=timeout_s
        )
        return self._read(answer, _time_left)

    async def release(self, key: str, token: int, timeout_s: float = TIMEOUT_S) -> None:
        """Give a lease back."""
        await self.transport.json("DELETE", f"{lease_path(key)}?token={token}", timeout_s=timeout_s)

    # --- jobs

    async def submit(
        self, queue: str, key: str, payload: object, priority: int | None, delay_s: float | None, repeat_key: str
    ) -> JobRecord:
        """Enqueue a job; the same key again changes nothing. Under one `repeat_key` it is the same submission."""
        body: Json = {"key": key}
        if payload is not None:
            body["payload"] = as_json(payload)
        body |= {name: value for name, value in (("priority", priority), ("delay_s", delay_s)) if value is not None}
        return self._read(await self._repeatable(f"{queue_path(queue)}/jobs", body, repeat_key), JobRecord.of)

    async def receive(
        self, queue: str, holder: str, visibility_s: float | None, wait_s: float, max_jobs: int, repeat_key: str
    ) -> list[Grant]:
        """Jobs to work on, none if there are none for `wait_s`. Under one `repeat_key` they are the same."""
        wait_s = min(wait_s, LONGEST_WAIT_S)
        body: Json = {"holder": holder, "wait_s": wait_s, "max": max_jobs}
        if visibility_s is not None:
            body["visibility_s"] = visibility_s
        sent_at = self._clock.monotonic()
        answer = await self._repeatable(f"{queue_path(queue)}/receive", body, repeat_key, wait_s)
        return self._read(answer, lambda told: [Grant.of(job, sent_at) for job in told["jobs"]])

    async def extend(self, key: str, token: int, timeout_s: float = TIMEOUT_S) -> float:
        """For how long the delivery now lasts."""
        answer = await self.transport.json(
            "POST", f"{job_path(key)}/extend", {"token": said(token)}, timeout_s=timeout_s
        )
        return self._read(answer, _time_left)

    async def give_back(self, key: str, token: int, timeout_s: float = TIMEOUT_S) -> None:
        """The job is to be delivered again, at once."""
        await self.transport.json("POST", f"{job_path(key)}/release", {"token": said(token)}, timeout_s=timeout_s)

    async def fail(self, key: str, token: int, error: str, *, retry: bool, delay_s: float | None = None) -> None:
        """The attempt has failed. Whether and when another is made is the queue's to say, unless it is said here."""
        body: Json = {"token": said(token), "error": error, "retry": retry}
        if delay_s is not None:
            body["delay_s"] = delay_s
        await self.transport.json("POST", f"{job_path(key)}/fail", body)

    async def complete(self, key: str, token: int, result: object, outputs: Sequence[str]) -> JobRecord:
        """Record that the job is done."""
        body: Json = {"token": said(token)}
        if result is not None:
            body["result"] = as_json(result)
        if outputs:
            body["outputs"] = [output_of(name) for name in outputs]
        return self._read(await self.transport.json("POST", f"{job_path(key)}/complete", body), JobRecord.of)

    async def job(self, key: str) -> JobRecord:
        return self._read(await self.transport.json("GET", job_path(key)), JobRecord.of)

    async def check(self, key: str, token: int) -> None:
        """Whether the token may have an effect outside S3 at this moment."""
        await self.transport.json("POST", f"{fence_path(key)}/check", {"token": said(token)})

    async def _repeatable(self, target: str, body: Json, repeat_key: str, wait_s: float = 0.0) -> Json:
        headers = {"Idempotency-Key": repeat_key}
        return await self.transport.json("POST", target, body, timeout_s=TIMEOUT_S + wait_s, headers=headers)

    def _read(self, answer: Json, of: Callable[[Json], T]) -> T:
        """Raises `Unreachable` for JSON of somebody else."""
        try:
            return of(answer)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise no_gateway(self.transport.url) from None


def _time_left(answer: Json) -> float:
    return float(answer["expires_in_s"])


def said(token: int) -> str:
    """A token in JSON, exact for every reader."""
    return str(token)


def as_json(value: object) -> orjson.Fragment:
    """A payload or a result on its way; a fragment is JSON already, and goes as it is. Raises `TypeError` or
    `ValueError` for what JSON has no word for: orjson would make null of a NaN, and has no long whole numbers."""
    return value if isinstance(value, orjson.Fragment) else orjson.Fragment(json.dumps(value, allow_nan=False))


def output_of(name: str) -> Json:
    """An object from `bucket/key` or `s3://bucket/key`. Raises `ValueError`."""
    bucket, slash, key = name.removeprefix("s3://").partition("/")
    if not bucket or not slash or not key:
        raise ValueError(f"an output is BUCKET/KEY, not {name!r}")
    return {"bucket": bucket, "key": key}


# --- where each is asked for


def lease_path(key: str) -> str:
    return f"/v1/leases/{quote(key, safe='')}"


def fence_path(key: str) -> str:
    return f"/v1/fences/{quote(key, safe='')}"


def queue_path(name: str) -> str:
    return f"/v1/queues/{quote(name, safe='')}"


def job_path(key: str) -> str:
    return f"/v1/jobs/{quote(key, safe='')}"
