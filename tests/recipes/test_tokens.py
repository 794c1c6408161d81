"""docs/tokens.md is true of the services that it says were tried."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
from botocore.exceptions import ClientError
from kazoo.client import KazooClient
from moto import mock_aws

from tests.conftest import REGION
from tests.docs.pages import page, rows, section
from tests.gateway_process import ROOT, GatewayProcess, environment
from tests.recipes.conftest import BUCKET
from tests.recipes.services import etcd, redis_server, wait_until_blocked
from tests.recipes.snippets import code, shown
from tests.recipes.sources import PATIENCE_S, SERVICES, held, prepare, source, write

pytestmark = pytest.mark.services
Serving = Callable[[str], str]


@contextmanager
def worker(gateway: GatewayProcess, name: str, address: str, job: str) -> Iterator[subprocess.Popen[str]]:
    """Worker A, a process that will write the job's object; it has been started, no more."""
    pair = gateway.credentials
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.recipes.sources", name, address, job, "A", place_of(job)],
        cwd=ROOT,
        env=environment(
            AWS_ACCESS_KEY_ID=pair.access_key,
            AWS_SECRET_ACCESS_KEY=pair.secret_key,
            AWS_ENDPOINT_URL_S3=gateway.url,
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    bound = threading.Timer(3 * PATIENCE_S, child.kill)
    bound.start()
    try:
        with child:
            yield child
            child.kill()
    finally:
        bound.cancel()


def place_of(job: str) -> str:
    return f"{BUCKET}/renders/{job}/out"


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def content(gateway: GatewayProcess, job: str) -> bytes:
    answer = gateway.s3.get_object(Bucket=BUCKET, Key=f"renders/{job}/out")
    with answer["Body"] as body:
        return bytes(body.read())


@pytest.mark.parametrize("name", SERVICES)
def test_the_frozen_worker_is_refused(name: str, serving: Serving, gateway: GatewayProcess) -> None:
    """A takes the job and is frozen until its lock has run out; B, who then gets it, has a higher token; A's write is
    refused, and the object stays B's."""
    address, job = serving(name), f"frozen-{name}"
    with worker(gateway, name, address, job) as a, source(name, address) as take:
        of_a = int(line_of(a))
        a.send_signal(signal.SIGSTOP)
        of_b = held(take, job, "B")
        assert of_b > of_a
        assert write(gateway.s3, place_of(job), of_b, "by B") == "written"
        a.send_signal(signal.SIGCONT)
        assert a.stdin is not None
        a.stdin.write("\n")
        a.stdin.flush()
        assert line_of(a) == f"PreconditionFailed StaleToken {of_b}"
    assert content(gateway, job) == b"by B"
    assert gateway.fence(job)["floor"] == of_b


@pytest.mark.parametrize("name", SERVICES)
def test_tokens_grow_over_a_crash(name: str, directory: Path) -> None:
    """A service that is killed and started again over its data goes on above what it gave out."""
    tokens = []
    for run in range(2):
        with SERVICES[name](directory) as address:
            if not run:
                prepare(name, address)
            with source(name, address) as take:
                tokens += [held(take, f"job-{number}", f"worker-{run}") for number in range(3)]
    first, second = tokens[:3], tokens[3:]
    assert max(first) < min(second)


def test_a_new_cluster_needs_a_generation(directory: Path, gateway: GatewayProcess) -> None:
    """A cluster begun anew gives out lower tokens, which are refused. With the next generation in front they pass, and
    workers of before do not."""
    token_of = code("tokens.md", "generation")["token_of"]
    job, written = "generation", []
    for run in range(2):
        (directory / str(run)).mkdir()
        with etcd(directory / str(run)) as address, source("etcd", address) as take:
            for number in range(5 * (1 - run)):
                take(f"another-{number}", "A")
            written.append(take(job, "A"))
    before, after = written
    assert before > after
    assert write(gateway.s3, place_of(job), token_of(0, before), "before") == "written"
    assert write(gateway.s3, place_of(job), token_of(0, after), "after") == f"PreconditionFailed StaleToken {before}"
    assert write(gateway.s3, place_of(job), token_of(1, after), "after") == "written"
    assert "StaleToken" in write(gateway.s3, place_of(job), token_of(0, before), "late")
    assert content(gateway, job) == b"after"


def test_redis_forgets_by_default(directory: Path, gateway: GatewayProcess) -> None:
    """As it is set by default, Redis gives a number out again after a crash, and the gateway lets both of its holders
    write: why the page calls a number that comes twice worse than one that falls back."""
    job, tokens = "twice", []
    for worker_name in ("A", "B"):
        with redis_server(directory, "--save", "3600", "1") as address, source("redis", address) as take:
            tokens.append(held(take, job, worker_name))
    assert tokens == [1, 1]
    assert write(gateway.s3, place_of(job), tokens[1], "by B") == "written"
    assert write(gateway.s3, place_of(job), tokens[0], "by A, too late") == "written"


def test_from_a_source_to_the_gateway_s_leases(gateway: GatewayProcess) -> None:
    """A grant begins above the floor that another source has left; from then on a higher token of that source is
    refused, and so it stays when the lease has been given up."""
    job = "to-leases"
    assert write(gateway.s3, place_of(job), 1000, "before") == "written"
    lease = asked(f"{gateway.control_url}/v1/leases/{job}", {"holder": "B", "ttl_s": 60})
    assert lease["token"] > 1000
    assert write(gateway.s3, place_of(job), lease["token"], "by lease") == "written"
    foreign = f"InvalidArgument TokenNotIssued {lease['token']}"
    assert write(gateway.s3, place_of(job), lease["token"] + 1000, "not issued") == foreign
    asked(f"{gateway.control_url}/v1/leases/{job}?token={lease['token']}", method="DELETE")
    assert write(gateway.s3, place_of(job), lease["token"] + 1000, "not issued") == foreign
    assert content(gateway, job) == b"by lease"


def asked(url: str, document: object = None, method: str | None = None) -> Any:
    """What the control API answers."""
    data = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=PATIENCE_S) as answer:
        return json.loads(answer.read() or b"null")


# --- what the page says of etcd


def test_etcd_s_token_is_the_create_revision(serving: Serving) -> None:
    """The transaction's revision is the key's create and mod revision; a later write to the key moves the latter."""
    address, etcd_code = serving("etcd"), code("tokens.md", "etcd")
    call, encoded = etcd_code["call"], etcd_code["encoded"]
    token, _ = etcd_code["acquire"](address, "revisions", "A", 10)
    key = encoded("locks/revisions")
    (entry,) = call(address, "kv/range", key=key)["kvs"]
    assert (int(entry["create_revision"]), int(entry["mod_revision"])) == (token, token)
    call(address, "kv/put", key=key, value=encoded("A, at work"), ignore_lease=True)
    (entry,) = call(address, "kv/range", key=key)["kvs"]
    assert int(entry["create_revision"]) == token < int(entry["mod_revision"])


def test_etcd_s_own_lock(serving: Serving) -> None:
    """One lease is one ticket. An election's `rev` is the create revision of its leader's key."""
    address, etcd_code = serving("etcd"), code("tokens.md", "etcd")
    call, encoded = etcd_code["call"], etcd_code["encoded"]
    lease = call(address, "lease/grant", TTL=10)["ID"]
    tickets = [call(address, "lock/lock", name=encoded("own"), lease=lease)["key"] for _ in range(2)]
    assert tickets[0] == tickets[1]
    leader = call(address, "election/campaign", name=encoded("post"), lease=lease, value=encoded("A"))["leader"]
    (entry,) = call(address, "kv/range", key=leader["key"])["kvs"]
    assert leader["rev"] == entry["create_revision"]


# --- ZooKeeper


def test_the_sequence_number_begins_again(serving: Serving) -> None:
    """With its parent made anew a lock's sequence number is 0 again; its czxid is higher."""
    client = KazooClient(serving("zookeeper"))
    client.start()
    acquire = code("tokens.md", "zookeeper")["acquire"]
    seen = []
    try:
        for _ in range(2):
            token, lock = acquire(client, "parent", "A")
            seen.append((int(re.findall(r"\d{10}$", lock.node)[0]), token))
            lock.release()
            client.delete("/locks/parent")
    finally:
        client.stop()
        client.close()
    (first_number, first_token), (second_number, second_token) = seen
    assert first_number == second_number == 0
    assert first_token < second_token


# --- PostgreSQL


def test_the_token_is_drawn_after_the_row_is_locked(serving: Serving) -> None:
    """A worker that has waited for the job's row gets a number above all that were drawn while it waited."""
    address, names = serving("postgresql"), code("tokens.md", "postgresql")
    with psycopg.connect(address) as holder, psycopg.connect(address, autocommit=True) as other:
        assert names["acquire"](holder, "waited", "A", 0.0)
        holder.commit()
        assert holder.execute("SELECT 1 FROM job WHERE id = 'waited' FOR UPDATE").fetchone()
        got: list[int] = []
        with psycopg.connect(address, autocommit=True) as waiting:
            thread = threading.Thread(target=lambda: got.append(names["acquire"](waiting, "waited", "B", 10)))
            thread.start()
            wait_until_blocked(other, waiting.info.backend_pid)
            (drawn,) = other.execute("SELECT nextval('fencing_token')").fetchone() or (0,)
            holder.commit()
            thread.join(PATIENCE_S)
    assert got[0] > drawn


def test_a_cache_brings_numbers_out_of_order(serving: Serving) -> None:
    """With CACHE above 1 the connection that asks later can get the lower number."""
    address = serving("postgresql")
    with psycopg.connect(address, autocommit=True) as one, psycopg.connect(address, autocommit=True) as two:
        one.execute("CREATE SEQUENCE cached CACHE 10")
        drawn = [next_of(database, "cached") for database in (one, two, one)]
    assert drawn[2] < drawn[1]


def next_of(database: psycopg.Connection, sequence: str) -> int:
    (number,) = database.execute("SELECT nextval(%s)", [sequence]).fetchone() or (0,)
    return int(number)


def test_a_sequence_that_fell_back_is_set_above_the_floor(serving: Serving, gateway: GatewayProcess) -> None:
    """After a restore the new worker is refused; set above the floor, as the page says, the sequence's tokens pass."""
    job = "restored"
    with psycopg.connect(serving("postgresql"), autocommit=True) as database:
        database.execute("CREATE SEQUENCE restored")
        database.execute("SELECT setval('restored', 100)")
        assert write(gateway.s3, place_of(job), next_of(database, "restored"), "before") == "written"
        database.execute("SELECT setval('restored', 50)")
        assert "StaleToken 101" in write(gateway.s3, place_of(job), next_of(database, "restored"), "after")
        floor = gateway.fence(job)["floor"]
        (statement,) = re.findall(r"`(SELECT setval\('fencing_token'[^`]*)`", page("tokens.md"))
        database.execute(statement.replace("fencing_token", "restored").replace("HIGHEST_FLOOR", str(floor)))
        assert write(gateway.s3, place_of(job), next_of(database, "restored"), "after") == "written"


# --- DynamoDB


def test_dynamodb_counts_as_it_locks() -> None:
    """In moto: the lock that has run out is taken with the next token, one that is held is not. The item tells a
    worker whose answer was lost its token."""
    acquire = code("tokens.md", "dynamodb")["acquire"]
    with mock_aws():
        table = boto3.resource(
            "dynamodb", region_name=REGION, aws_access_key_id="ACCESSKEY", aws_secret_access_key="secret-key"
        ).create_table(
            TableName="lock",
            KeySchema=[{"AttributeName": "job", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "job", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        assert acquire(table, "job", "A", 100, 10) == 1
        with pytest.raises(ClientError, match="ConditionalCheckFailed"):
            acquire(table, "job", "B", 110, 10)
        assert acquire(table, "job", "B", 111, 10) == 2
        item = table.get_item(Key={"job": "job"}, ConsistentRead=True)["Item"]
    assert (item["worker"], item["fencing_token"]) == ("B", 2)


# --- the page itself


def test_what_is_marked_as_tried_is_tried() -> None:
    """The sources that the table marks as tried are those that run here."""
    table = list(rows(page("tokens.md").partition("\n## ")[0]))
    assert {row[0].partition("]")[0].strip("[").lower() for row in table if row[4] == "tried"} == set(SERVICES)
    for name in SERVICES:
        assert shown("tokens.md", name, "python")


def test_every_source_says_what_sets_it_back() -> None:
    """Each source's section has that row."""
    for row in rows(page("tokens.md").partition("\n## ")[0]):
        heading = row[0].partition("]")[0].strip("[")
        if heading != "SQS":
            assert "| sets it back |" in section(page("tokens.md"), f"## {heading}"), heading
