"""From settings to a running gateway: what is built, what is handed on, and that a failed start leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import ClientError

from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.core.errors import Reason
from gateway.core.job import RetryPolicy
from gateway.core.keys import FencingKey, Mode, Token, TokenLimits
from gateway.core.lease import Caps
from gateway.core.names import RECORD_KEY
from gateway.credentials_file import CredentialsFileError, make_session_keys
from gateway.s3.errors import S3Error
from gateway.s3.session import Session
from gateway.s3.sigv4 import Credentials
from gateway.server.app import Gateway
from gateway.server.assemble import (
    clients,
    file_faults,
    queue_rules,
    rules_digest,
    ruleset,
    sessions,
    start_gateway,
    store_path,
)
from gateway.service.job_errors import UnknownQueue
from gateway.service.leases import LeaseTerms
from gateway.service.queues import QueueRule
from gateway.stores.base import StoreLocked
from gateway.stores.values import Upload
from gateway.upstream.credentials import AwsFault
from gateway.upstream.probe import FixedCapabilities, Prober
from tests.conftest import StoreServer, s3_client


@pytest.fixture
def settings(tmp_path: Path, store_server: StoreServer) -> Callable[..., Settings]:
    """Settings of a gateway before the session's store; `text` is TOML, `overrides` win."""

    def made(text: str = "", **overrides: object) -> Settings:
        file = tmp_path / "gateway.toml"
        file.write_text(text)
        given: dict[str, object] = {
            "s3.listen": "127.0.0.1:0",
            "control.listen": "127.0.0.1:0",
            "store.url": f"sqlite:{tmp_path}/data/gateway.db",
            "upstream.url": store_server.url,
            "upstream.access_key": store_server.credentials.access_key,
            "upstream.secret_key": store_server.credentials.secret_key,
        }
        given |= {name.replace("__", "."): value for name, value in overrides.items()}
        return load(file, {}, {n: v for n, v in given.items() if v is not None})

    return made


class Gateways:
    """Starts gateways, and stops those that still run at the end."""

    def __init__(self) -> None:
        self._running: list[Gateway] = []

    async def __call__(self, settings: Settings) -> Gateway:
        self._running.append(await start_gateway(settings))
        return self._running[-1]

    async def stop(self, gateway: Gateway) -> None:
        self._running.remove(gateway)
        await gateway.stop()

    async def stop_all(self) -> None:
        for gateway in list(self._running):
            await self.stop(gateway)


@pytest.fixture
async def start() -> AsyncIterator[Gateways]:
    gateways = Gateways()
    yield gateways
    await gateways.stop_all()


async def put(gateway: Gateway, pair: Credentials, bucket: str, key: str, token: int | None) -> str:
    """Write through the gateway; `OK` or the reason of the refusal."""
    metadata = {} if token is None else {"fencing-token": str(token)}
    s3 = s3_client(f"http://127.0.0.1:{gateway.s3_port}", pair)
    try:
        await asyncio.to_thread(s3.put_object, Bucket=bucket, Key=key, Body=b"x", Metadata=metadata)
    except ClientError as error:
        answer: dict[str, Any] = error.response["Error"]
        return str(answer.get("FencingReason") or answer["Code"])
    finally:
        s3.close()
    return "OK"


async def test_a_gateway_from_settings_fences(
    start: Gateways, settings: Callable[..., Settings], store_server: StoreServer, bucket: str
) -> None:
    """What the settings describe runs: rules give the key, the store the floor, the upstream the object."""
    made = settings('[[rule]]\nmatch = "renders/{job}/**"\nkey = "{job}"\nwithout_token = "require"\n')
    gateway = await start(made)
    (client,) = clients(made)
    assert await put(gateway, client.credentials, bucket, "renders/j/a", 34) == "OK"
    assert await put(gateway, client.credentials, bucket, "renders/j/b", 33) == Reason.STALE_TOKEN
    assert await put(gateway, client.credentials, bucket, "renders/new/b", None) == Reason.TOKEN_REQUIRED
    assert (await gateway.fences.state(FencingKey("j"))).floor == 34
    stored = [o["Key"] for o in store_server.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert stored == [RECORD_KEY, "renders/j/a"]


async def test_clients_and_api_tokens_are_those_of_the_settings(
    start: Gateways, settings: Callable[..., Settings], bucket: str
) -> None:
    """A configured client is limited as it is configured; an API token has its role and keys."""
    made = settings(
        f'[[client]]\naccess_key = "RENDERER"\nsecret_key = "s1"\nbuckets = ["{bucket}"]\nkeys = ["object:*/mine"]\n'
        '[[api_token]]\ntoken = "t1"\nrole = "worker"\nkeys = ["job-*"]\n'
    )
    gateway = await start(made)
    pair = Credentials("RENDERER", "s1")
    assert await put(gateway, pair, bucket, "mine", 1) == "OK"
    assert await put(gateway, pair, bucket, "yours", 1) == Reason.KEY_DENIED
    assert await put(gateway, pair, "another", "mine", 1) == "AccessDenied"
    assert await put(gateway, Credentials("RENDERER", "s2"), bucket, "mine", 1) == "SignatureDoesNotMatch"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.control_port}") as session:

        async def status(key: str, bearer: str) -> int:
            async with session.get(f"/v1/fences/{key}", headers={"Authorization": f"Bearer {bearer}"}) as answer:
                return answer.status

        assert [await status("job-1", "t1"), await status("x", "t1"), await status("job-1", "t2")] == [200, 403, 401]


def test_the_ready_made_client_is_kept_for_its_user_alone(settings: Callable[..., Settings], tmp_path: Path) -> None:
    """On loopback, where no client is configured, a pair is made once, in a file that no other user can read."""
    made = settings()
    (first,), (second,) = clients(made), clients(made)
    assert first == second
    file = tmp_path / "data" / "s3-credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["access_key"] == first.credentials.access_key
    configured = settings('[[client]]\naccess_key = "A"\nsecret_key = "s"\n')
    assert [client.credentials.access_key for client in clients(configured)] == ["A"]


def test_the_keys_of_session_tokens_are_kept(settings: Callable[..., Settings], tmp_path: Path) -> None:
    """Made beside the database at the first start; after a restart what was issued before is good. Gateways that are
    given one file take each other's credentials, and no others'."""
    session = Session(FencingKey("7"), Token(34), "A", 2**40)

    def takes(one: Settings, other: Settings) -> bool:
        issued = sessions(one).issue(session, "n")
        assert issued.session_token is not None
        try:
            return sessions(other).open(issued.access_key, issued.session_token) == (session, issued)
        except S3Error:
            return False

    own, shared = settings(), tmp_path / "shared"
    assert takes(own, own)
    assert stat.S_IMODE((tmp_path / "data" / "session-keys").stat().st_mode) == 0o600
    make_session_keys(shared)
    here = settings(s3__session_keys=str(shared))
    there = settings(s3__session_keys=str(shared), store__url=f"sqlite:{tmp_path}/elsewhere/gateway.db")
    assert takes(here, there)
    assert takes(there, here)
    assert not takes(own, here)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_of_keys_that_is_named_must_be_there(settings: Callable[..., Settings], tmp_path: Path) -> None:
    """It is never made, and the fault names the setting, the file and what to do."""
    named = settings(s3__session_keys=str(tmp_path / "absent"))
    ((place, fault),) = file_faults(named)
    assert place == ("s3", "session_keys")
    assert "is not there" in fault
    with pytest.raises(CredentialsFileError):
        sessions(named)
    assert file_faults(settings()) == []


def test_rules_are_in_their_order(settings: Callable[..., Settings]) -> None:
    """The first rule that matches holds, with its mode."""
    rules = ruleset(
        settings(
            '[[rule]]\nmatch = "a/**"\nmode = "off"\n[[rule]]\nmatch = "{job}/**"\nkey = "{job}"\nmode = "observe"\n'
        )
    )
    found = [rules.map("b", key) for key in ("a/x", "j/x", "x")]
    assert [(f.rule.mode, f.key) for f in found] == [(Mode.OFF, None), (Mode.OBSERVE, "j"), (Mode.ENFORCE, None)]


def test_the_digest_stands_for_the_rules(settings: Callable[..., Settings]) -> None:
    """The same rules give the same digest whatever else is set; others, or in another order, give another."""
    a, b = '[[rule]]\nmatch = "a/**"\n', '[[rule]]\nmatch = "{job}/**"\nkey = "{job}"\n'
    assert rules_digest(settings(a + b)) == rules_digest(settings(a + b, fencing__settle_timeout_s=40))
    digests = [rules_digest(settings(text)) for text in ("", a, b, a + b, b + a, a + 'mode = "off"\n')]
    assert len(set(digests)) == len(digests)
    assert rules_digest(settings(a + "max_token_jump = 5\nmax_first_token = 9\n")) == digests[1]  # it moves no object


def test_limits_of_tokens_are_their_rules(settings: Callable[..., Settings]) -> None:
    """Each setting becomes the limit of its name; left out, nothing is limited."""
    rules = ruleset(settings('[[rule]]\nmatch = "a"\nmax_first_token = 9\nmax_token_jump = 5\n[[rule]]\nmatch = "b"\n'))
    assert [rules.map("b", key).rule.limits for key in "ab"] == [TokenLimits(9, 5), TokenLimits()]


async def test_changed_rules_make_the_start_unclean(start: Gateways, settings: Callable[..., Settings]) -> None:
    """After a clean stop the next start has nothing to wait for; with other rules it has (R5)."""
    first = await start(settings())
    await first.fences.admit(FencingKey("k"), Token(1), cause="test")
    await start.stop(first)
    again = await start(settings())
    await asyncio.wait_for(again.fences.admit(FencingKey("k"), Token(2), cause="test"), 5)
    await start.stop(again)
    changed = await start(settings('[[rule]]\nmatch = "{job}/**"\nkey = "{job}"\n', fencing__handover_wait_s=0.01))
    with pytest.raises(Exception, match="sent before the gateway started"):
        await changed.fences.admit(FencingKey("k"), Token(3), cause="test")


async def test_an_upload_is_waited_for_under_the_key_that_its_object_has_now(
    start: Gateways, settings: Callable[..., Settings]
) -> None:
    """Where other rules give the object of an open upload another key, it is that key's writes which a late Complete
    would replace (R5): they wait the longer settle time-out, like those of the key that the upload began under. A rule
    that gives the object no valid key keeps nobody from starting."""
    rule = '[[rule]]\nmatch = "{job}/**"\nkey = "%s{job}"\n'
    first = await start(settings(rule % "old-"))
    for object_key, key in (("j/out", "old-j"), ("x\n/out", "some")):
        await first.fences.store.uploads.bind(Upload(f"u-{key}", "b", object_key, key, 33, "n"))
    await start.stop(first)
    changed = await start(settings(rule % ""))
    waits = [changed.fences.earlier_run.settles_in_s(FencingKey(key)) or 0 for key in ("old-j", "j", "k")]
    assert [wait > 30 for wait in waits] == [True, True, False]


@pytest.mark.parametrize(("conditional", "source"), [("auto", Prober), ("require", Prober), ("off", FixedCapabilities)])
async def test_conditional_writes_are_probed_unless_off(
    start: Gateways, settings: Callable[..., Settings], conditional: str, source: type
) -> None:
    """`off` relies on nothing and probes nothing."""
    gateway = await start(settings(upstream__conditional=conditional))
    assert isinstance(gateway._parts.capabilities, source)
    assert gateway._parts.require_conditional == (conditional == "require")


@pytest.mark.parametrize("signs", [True, False])
async def test_whether_it_signs_for_the_store(start: Gateways, settings: Callable[..., Settings], signs: bool) -> None:
    """Without credentials for an endpoint nothing is signed; who looks first says so where the store refuses that."""
    none = {} if signs else {"upstream__access_key": None, "upstream__secret_key": None}
    gateway = await start(settings(**none))
    assert gateway._parts.upstream_unsigned is not signs


QUEUES = """
[[queue]]
name = "fast"
max_attempts = 2
backoff_s = 3
backoff_max_s = 4
visibility_s = 5
[[queue]]
name = "slow-*"
visibility_s = 20
"""


def test_queues_are_in_their_order(settings: Callable[..., Settings]) -> None:
    """Each has its own settings; of those that are not named, every queue has the defaults or there is none."""
    rules = queue_rules(settings(QUEUES))
    assert rules.of("fast") == QueueRule("fast", RetryPolicy(2, 3, 4), 5)
    assert rules.of("slow-1") == QueueRule("slow-*", RetryPolicy(), 20)
    with pytest.raises(UnknownQueue):
        rules.of("other")
    assert queue_rules(settings()).of("any") == QueueRule()


def test_a_delivery_lasts_no_longer_than_a_lease_may(settings: Callable[..., Settings]) -> None:
    """`[lease] max_ttl_s` bounds what a queue gives to a worker who names no time, whether it says so or by default."""
    shorter = {"lease__max_ttl_s": 10}
    of_queue = queue_rules(settings(QUEUES, **shorter)).of
    assert (of_queue("fast").visibility_s, of_queue("slow-1").visibility_s) == (5, 10)
    assert queue_rules(settings(**shorter)).of("any").visibility_s == 10


async def test_every_setting_reaches_its_part(start: Gateways, settings: Callable[..., Settings]) -> None:
    """Values that differ from every default arrive where they are used."""
    gateway = await start(
        settings(
            s3__virtual_host_suffix=[".S3.Example.com"],
            s3__anonymous_read=True,
            s3__max_concurrent_requests=11,
            s3__max_concurrent_requests_per_client=12,
            s3__max_connections=13,
            s3__max_header_bytes=20001,
            s3__max_header_field_bytes=10002,
            s3__header_timeout_s=3,
            s3__idle_timeout_s=4,
            s3__min_body_bytes_per_s=6,
            s3__keepalive_timeout_s=5,
            fencing__settle_timeout_s=31,
            fencing__settle_timeout_assembly_s=301,
            fencing__handover_wait_s=21,
            fencing__commit_timeout_s=61,
            fencing__commit_timeout_assembly_s=601,
            fencing__small_body_bytes=65537,
            fencing__completed_uploads_kept_s=604801,
            lease__max_ttl_s=7,
            lease__max_wait_s=8,
            lease__max_waiting=14,
            lease__lock_delay_s=9,
            lease__max_renewals=15,
            lease__max_total_s=16,
            server__drain_timeout_s=0.5,
        )
    )
    parts = gateway._parts
    assert parts.virtual_host_suffixes == ("s3.example.com",)
    assert parts.anonymous_read
    assert (parts.limits.max_concurrent_requests, parts.limits.max_header_bytes) == (11, 20001)
    assert parts.limits.max_header_field_bytes == 10002
    assert (parts.limits.max_concurrent_requests_per_client, parts.limits.max_connections) == (12, 13)
    assert (parts.limits.header_timeout_s, parts.limits.idle_timeout_s, parts.limits.keepalive_timeout_s) == (3, 4, 5)
    assert parts.limits.min_body_bytes_per_s == 6
    timing = parts.timing
    assert (timing.settle_timeout_s, timing.settle_timeout_assembly_s, timing.handover_wait_s) == (31, 301, 21)
    assert (timing.commit_timeout_s, timing.commit_timeout_assembly_s) == (61, 601)
    assert (parts.small_body_bytes, parts.completed_uploads_kept_s, parts.drain_timeout_s) == (65537, 604801, 0.5)
    assert (parts.max_lease_ttl_s, parts.max_lease_wait_s) == (7, 8)
    assert parts.leases == LeaseTerms(Caps(15, 16), 9, 14)


# --- starts that fail


async def test_a_second_gateway_on_the_same_database_is_refused(
    start: Gateways, settings: Callable[..., Settings]
) -> None:
    """The first one's database is locked: the second fails and disturbs nothing."""
    first = await start(settings())
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        await start_gateway(settings())
    await first.fences.admit(FencingKey("k"), Token(1), cause="test")


@pytest.mark.parametrize("fault", ["port", "credentials file", "aws"])
async def test_a_failed_start_leaves_nothing_running(
    start: Gateways, settings: Callable[..., Settings], tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a start fails, the database and the ports are free again: the next start succeeds."""
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    file = tmp_path / "data" / "s3-credentials.json"
    file.parent.mkdir()
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    broken = settings()
    expected: type[Exception] = OSError
    if fault == "port":
        broken = settings(control__listen=f"127.0.0.1:{port}")
    elif fault == "credentials file":
        file.write_text("nonsense")
        expected = CredentialsFileError
    else:
        broken = settings(upstream__url="aws", upstream__access_key=None, upstream__secret_key=None)
        expected = AwsFault
    with pytest.raises(expected):
        await start_gateway(broken)
    file.unlink(missing_ok=True)
    taken.close()
    gateway = await start(settings())
    assert store_path(settings()).exists()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{gateway.control_port}/readyz") as answer,
    ):
        assert answer.status == 200


async def test_the_embedded_store_is_stopped_with_the_gateway(
    start: Gateways, settings: Callable[..., Settings], tmp_path: Path
) -> None:
    """`embedded` starts a store whose data is where the settings say, serves through it, and ends it."""
    made = settings(
        upstream__url="embedded",
        upstream__access_key=None,
        upstream__secret_key=None,
        upstream__directory=str(tmp_path / "objects"),
    )
    gateway = await start(made)
    (client,) = clients(made)
    s3 = s3_client(f"http://127.0.0.1:{gateway.s3_port}", client.credentials)
    await asyncio.to_thread(s3.create_bucket, Bucket="renders")
    s3.close()
    assert await put(gateway, client.credentials, "renders", "o", 1) == "OK"
    assert (tmp_path / "objects" / "s3.json").exists()
    pid = gateway._parts.stop_behind.__self__.pid  # type: ignore[union-attr]
    assert pid is not None
    await start.stop(gateway)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
