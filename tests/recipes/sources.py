"""The four sources of tokens that run here, as docs/tokens.md uses them, and a worker with one of them.

As a program, `python -m tests.recipes.sources SOURCE ADDRESS JOB WORKER OBJECT`, it is that worker: it takes the job
and prints its token; then, at the next line that it reads, it writes the object with that token and prints what it is
answered.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import redis
from botocore.exceptions import ClientError
from kazoo.client import KazooClient

from gateway.s3.sigv4 import Credentials
from tests.conftest import s3_client
from tests.recipes.services import Service, etcd, postgresql, redis_server, zookeeper
from tests.recipes.snippets import code, shown

TTL_S = 1
PATIENCE_S, LOOK_S = 20.0, 0.05
SERVICES: dict[str, Service] = {
    "etcd": etcd,
    "zookeeper": zookeeper,
    "postgresql": postgresql,
    "redis": redis_server,
}
Take = Callable[[str, str], int | None]
"""The token for a job and a worker; None while somebody else holds the job."""


@contextmanager
def source(name: str, address: str) -> Iterator[Take]:
    """A connection to a service, and the page's way to take a job there."""
    acquire = code("tokens.md", name)["acquire"]
    if name == "etcd":
        yield lambda job, worker: first(acquire(address, job, worker, TTL_S))
    elif name == "zookeeper":
        client = KazooClient(address, timeout=TTL_S)
        client.start()
        try:
            yield lambda job, worker: first(acquire(client, job, worker, PATIENCE_S))
        finally:
            client.stop()
            client.close()
    elif name == "postgresql":
        with psycopg.connect(address, autocommit=True) as database:
            yield lambda job, worker: acquire(database, job, worker, TTL_S)
    else:
        with redis.Redis.from_url(address) as server:
            yield lambda job, worker: acquire(server, job, worker, TTL_S)


def first(answer: tuple[int, Any] | None) -> int | None:
    return answer and answer[0]


def prepare(name: str, address: str) -> None:
    """What a service needs once."""
    if name == "postgresql":
        with psycopg.connect(address) as database:
            database.execute(shown("tokens.md", "postgresql", "sql"))


def held(take: Take, job: str, worker: str) -> int:
    """Take the job as soon as whoever holds it has lost it."""
    until = time.monotonic() + PATIENCE_S
    while (token := take(job, worker)) is None:
        assert time.monotonic() < until, f"{job} is still held"
        time.sleep(LOOK_S)
    return token


def write(client: Any, place: str, token: int, text: str) -> str:
    """What a client without retries is answered when it writes the object with the token."""
    bucket, _, key = place.partition("/")
    try:
        client.put_object(Bucket=bucket, Key=key, Body=text.encode(), Metadata={"fencing-token": str(token)})
    except ClientError as error:
        refusal = error.response["Error"]
        return f"{refusal['Code']} {refusal['FencingReason']} {refusal['FencingFloor']}"
    return "written"


def main(name: str, address: str, job: str, worker: str, place: str) -> None:
    credentials = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    client = s3_client(os.environ["AWS_ENDPOINT_URL_S3"], credentials)
    with source(name, address) as take:
        token = held(take, job, worker)
        print(token, flush=True)
        sys.stdin.readline()
        print(write(client, place, token, f"by {worker}"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
