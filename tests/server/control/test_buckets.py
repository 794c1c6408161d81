"""The calls about buckets, rebuilds and backups: who may make them, and what they tell."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.core.names import RECORD_KEY
from gateway.server.control.access import ApiToken
from gateway.stores.memory import MemoryStore
from gateway.stores.sqlite import SqliteStore
from gateway.upstream.base import Capabilities, UpstreamRequest
from gateway.upstream.memory import MemoryUpstream
from gateway.upstream.probe import FixedCapabilities
from tests.server.control.contract import conforms
from tests.server.rig import BUCKET, Rig, rule, running

JOB = rule("renders/{job}/**", "{job}")
OPERATOR, WORKER = ApiToken("operators", True), ApiToken("workers", False)
REBUILD = f"/v1/buckets/{BUCKET}/rebuild"


async def ask(rig: Rig, method: str, path: str, bearer: str | None = None) -> tuple[int, Any]:
    """Status and document of a call."""
    url = f"http://127.0.0.1:{rig.gateway.control_port}{path}"
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        document = await answer.json(content_type=None)
        conforms(method, answer.url.raw_path, answer.status, answer.content_type, document)
        return answer.status, document


async def rebuilt(rig: Rig) -> Any:
    status, _ = await ask(rig, "POST", REBUILD)
    assert status == 202
    while True:
        status, told = await ask(rig, "GET", f"{REBUILD}?wait_s=5")
        assert status == 200
        if told["phase"] in ("done", "failed"):
            return told


async def test_operators_alone_rebuild_and_back_up() -> None:
    """A worker may see who rules what; nobody without a token may."""
    async with running(rules=[JOB], api_tokens=(OPERATOR, WORKER)) as rig:
        for method, path in (("POST", REBUILD), ("GET", REBUILD), ("GET", "/v1/backup")):
            assert (await ask(rig, method, path, "workers"))[0] == 403
            assert (await ask(rig, method, path))[0] == 401
        assert (await ask(rig, "GET", "/v1/buckets", "workers"))[0] == 200
        assert (await ask(rig, "GET", "/v1/buckets"))[0] == 401
        assert (await ask(rig, "POST", REBUILD, "operators"))[0] == 202


async def test_what_is_of_all_keys_is_for_who_may_use_every_one() -> None:
    """A backup holds all floors, jobs and histories, and a rebuild raises floors of whatever keys the objects bear, and
    names them: an operator who is limited to some keys is refused both, and nothing is begun."""
    limited = ApiToken("limited", True, ("[!o]*", "?"))
    async with running(api_tokens=(OPERATOR, limited)) as rig:
        for method, path in (("GET", "/v1/backup"), ("POST", REBUILD), ("GET", REBUILD)):
            status, problem = await ask(rig, method, path, "limited")
            assert (status, problem["reason"]) == (403, "forbidden")
        assert (await ask(rig, "GET", "/v1/backup", "operators"))[1]["reason"] == "no-backup"
        assert (await ask(rig, "GET", REBUILD, "operators"))[1]["reason"] == "not-found"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", REBUILD, 404, "not-found"),
        ("GET", f"{REBUILD}?wait_s=x", 400, "invalid"),
        ("GET", f"{REBUILD}?wait_s=31", 400, "invalid"),
        ("POST", "/v1/buckets/a%2Fb/rebuild", 400, "invalid"),
        ("POST", "/v1/buckets/%0d%0a/rebuild", 400, "invalid"),
        ("GET", "/v1/backup", 409, "no-backup"),
    ],
)
async def test_what_cannot_be_answered(method: str, path: str, status: int, reason: str) -> None:
    """As a problem with its reason."""
    async with running(rules=[JOB]) as rig:
        found, told = await ask(rig, method, path)
        assert (found, told["reason"]) == (status, reason)


async def test_a_bucket_goes_from_one_database_to_another() -> None:
    """Refused and told why; rebuilt; ruled. The write's refusal says the same, and the history no floor."""
    upstream = MemoryUpstream(BUCKET)
    async with running(upstream=upstream, rules=[JOB], fenced_before="auto") as first:
        assert (await first.put("renders/j/a", b"x", 34)).status == 200
        _, told = await ask(first, "GET", "/v1/buckets")
        assert (told["ruled"], told["refused"], told["records"]) == ([BUCKET], [], True)
    another = MemoryStore(name="another")
    options: dict[str, Any] = {"rules": [JOB], "fenced_before": "auto", "upstream_settled": True}
    async with running(upstream=upstream, store=another, **options) as second:
        answer = await second.put("renders/j/a", b"y", 33)
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
        assert answer.header("x-fencing-reason") == "Superseded"
        assert answer.header("x-fencing-outcome") == "NotApplied"
        assert answer.header("retry-after") == "5"
        assert (await second.fence("j")).floor == 0
        (event,) = await another.events("j", None, 10)
        assert (event.token, event.floor) == (33, 0)
        _, told = await ask(second, "GET", "/v1/buckets")
        assert [one["bucket"] for one in told["refused"]] == [BUCKET]
        assert told["refused"][0]["remedy"] == f"fencing-gateway fence rebuild --bucket {BUCKET}"
        progress = await rebuilt(second)
        assert (progress["phase"], progress["objects"], progress["raised"]) == ("done", 1, 1)
        assert progress["raised_keys"] == [{"key": "j", "before": 0, "floor": 34}]
        assert (await second.put("renders/j/a", b"y", 33)).header("x-fencing-reason") == "StaleToken"
        assert (await second.put("renders/j/a", b"y", 34)).status == 200
        _, told = await ask(second, "GET", "/v1/buckets")
        assert (told["generation"], told["ruled"], told["refused"]) == (1, [BUCKET], [])


async def test_the_start_looks_at_all_buckets() -> None:
    """And logs those that another database rules, with the remedy, before any write comes."""
    upstream = MemoryUpstream(BUCKET, "other")
    upstream.apply(UpstreamRequest("PUT", "other", RECORD_KEY, "", ()), b"garbage")
    async with running(upstream=upstream, rules=[JOB], fenced_before="auto") as rig:
        rig.gateway.look_at_upstream()
        async with asyncio.timeout(10):
            assert list(await rig.gateway.refused_buckets()) == ["other"]
        (line,) = [line for line in rig.log if line["event"] == "superseded"]
        assert (line["bucket"], line["remedy"]) == ("other", "fencing-gateway fence rebuild --bucket other")


async def test_a_store_without_conditional_writes_is_told() -> None:
    """Its buckets bear no record."""
    deaf = FixedCapabilities(Capabilities(files_paths=False, overlooks=False))
    async with running(rules=[JOB], capabilities=deaf, fenced_before="auto") as rig:
        assert (await rig.put("renders/j/a", b"x", 34)).status == 200
        _, told = await ask(rig, "GET", "/v1/buckets")
        assert (told["ruled"], told["unrecorded"]) == ([BUCKET], [BUCKET])
        assert rig.stored(RECORD_KEY) is None


async def test_a_backup_is_sent_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A database of its own, of one moment; what it lay in while it was sent is gone."""
    store = SqliteStore(tmp_path / "gateway.db")
    async with running(store=store, rules=[JOB], data_directory=tmp_path) as rig:
        assert (await rig.put("renders/j/a", b"x", 34)).status == 200
        url = f"http://127.0.0.1:{rig.gateway.control_port}/v1/backup"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
            data = await answer.read()
            assert answer.content_length == len(data)
        file = tmp_path / "copy.db"
        file.write_bytes(data)
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT key, floor FROM fence").fetchall() == [("j", 34)]
        assert not list(tmp_path.glob(".backup-*"))
