"""A stray slash leads around no fence: what the embedded store files as one object, the gateway fences as one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway.clock import SystemClock
from gateway.upstream.base import Capabilities
from gateway.upstream.probe import FixedCapabilities, Prober
from tests.conftest import StoreServer
from tests.server.rig import Rig, real, rule, running

KEY = "renders/7/frame"
SPELLINGS = ["/renders/7/frame", "renders//7/frame", "renders/7//frame", "renders%5C7%5Cframe", "renders/7/frame/"]


@pytest.fixture(scope="module")
def bucket(store_server: StoreServer) -> str:
    name = f"names-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
async def rig(store_server: StoreServer, bucket: str) -> AsyncIterator[Rig]:
    rules = [rule("renders/{job}/**", "{job}")]
    upstream = real(store_server)
    async with running(upstream=upstream, rules=rules, capabilities=Prober(upstream, SystemClock())) as rig:
        assert (await rig.ask("PUT", f"/{bucket}/{KEY}", [("x-fencing-token", "34")], b"fenced")).status == 200
        yield rig


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_another_spelling_is_the_same_object(
    rig: Rig, store_server: StoreServer, bucket: str, spelling: str
) -> None:
    """Writes, deletes and batches under another spelling meet the fence of the object that they would change."""
    target = f"/{bucket}/{spelling}"
    stale = [("x-fencing-token", "33")]
    key = spelling.replace("%5C", "\\")
    batch = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
    copy = [("x-amz-copy-source", f"/{bucket}/{KEY}"), ("x-amz-metadata-directive", "REPLACE")]
    assert (await rig.ask("PUT", target, [], b"stray")).status == 428
    assert (await rig.ask("PUT", target, stale, b"stray")).status == 412
    assert (await rig.ask("PUT", target, [*copy, *stale], b"")).status == 412
    assert (await rig.ask("POST", f"{target}?uploads", stale, b"")).status == 412
    assert (await rig.ask("DELETE", target)).status == 428
    assert b"FencingTokenRequired" in (await rig.ask("POST", f"/{bucket}?delete", [], batch)).body
    got = await asyncio.to_thread(store_server.client.get_object, Bucket=bucket, Key=KEY)
    assert got["Body"].read() == b"fenced"


async def test_an_object_without_a_rule_is_one_too(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """The object's own key and its owner go by the same name."""
    assert (await rig.ask("PUT", f"/{bucket}/free", [("x-fencing-token", "5")], b"fenced")).status == 200
    for target in (f"/{bucket}//free", f"/{bucket}/free/"):
        assert (await rig.ask("PUT", target, [], b"stray")).status == 428
    assert (await rig.ask("PUT", f"/{bucket}//free", [("x-fencing-token", "6")], b"newer")).status == 200
    got = await asyncio.to_thread(store_server.client.get_object, Bucket=bucket, Key="free")
    assert got["Body"].read() == b"newer"


async def test_a_store_that_tells_keys_apart_keeps_them_apart() -> None:
    """S3 knows `a//b` and `a/b` as two objects, and so does the fence."""
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        assert (await rig.ask("PUT", "/b/renders/7/frame", [("x-fencing-token", "34")], b"fenced")).status == 200
        assert (await rig.ask("PUT", "/b//renders/7/frame", [], b"another")).status == 200


async def test_until_a_store_has_been_probed_keys_are_taken_for_paths() -> None:
    """What nobody knows must not lead around the fence."""
    unknown = FixedCapabilities(Capabilities())
    async with running(rules=[rule("renders/{job}/**", "{job}")], capabilities=unknown) as rig:
        assert (await rig.ask("PUT", "/b/renders/7/frame", [("x-fencing-token", "34")], b"fenced")).status == 200
        assert (await rig.ask("PUT", "/b//renders/7/frame", [], b"another")).status == 428
