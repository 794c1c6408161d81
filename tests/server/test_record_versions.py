"""The bucket's record where versions are, or were, kept: real gateways before the embedded store."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from gateway.clock import SystemClock
from gateway.core.names import RECORD_KEY
from gateway.stores.memory import MemoryStore
from gateway.upstream.probe import Prober
from tests.conftest import StoreServer
from tests.server.rig import real, running
from tests.server.test_object_names import SEAWEEDFS


@pytest.mark.parametrize("versions_at_first", [False, True], ids=["none at first", "from the start"])
@pytest.mark.parametrize("lost", [False, True], ids=["there", "deleted"])
async def test_a_bucket_that_keeps_versions_no_longer_is_still_its_gateways(
    store_server: StoreServer, lost: bool, versions_at_first: bool
) -> None:
    """The store refuses the record that it shows, a version of before, as a condition, and its absence where it has one
    of before that: the next run of the gateway would have refused every fenced write there. Afterwards conditions hold
    as ever, and another database is told so."""
    bucket, client, store = f"record-{secrets.token_hex(6)}", store_server.client, MemoryStore()

    async def keep_versions(status: str) -> None:
        said = {"Status": status}
        await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=said)

    async def statuses(of: MemoryStore) -> list[int]:
        said, found = [("x-fencing-token", "34")], []
        upstream = real(store_server)
        async with running(upstream=upstream, store=of, capabilities=SEAWEEDFS, fenced_before="auto") as rig:
            for name in ("a", "b"):
                found.append((await rig.ask("PUT", f"/{bucket}/{secrets.token_hex(4)}{name}", said, b"x")).status)
        return found

    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    if versions_at_first:
        await keep_versions("Enabled")
    assert await statuses(store) == [200, 200]
    await keep_versions("Enabled")
    if lost:
        await asyncio.to_thread(client.delete_object, Bucket=bucket, Key=RECORD_KEY)
    await keep_versions("Suspended")
    assert await statuses(store) == [200, 200]
    assert await statuses(MemoryStore(name="another")) == [503, 503]
    assert await statuses(store) == [200, 200]


async def test_where_versions_are_kept_no_longer_a_bucket_can_be_emptied_and_deleted(store_server: StoreServer) -> None:
    """A DELETE leaves a mark there, which the store removes by no id. The probe's own are gone again, and one by itself
    keeps no bucket from being deleted."""
    bucket, client, said = f"record-{secrets.token_hex(6)}", store_server.client, [("x-fencing-token", "34")]
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    await asyncio.to_thread(
        client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "Suspended"}
    )
    upstream = real(store_server)
    prober = Prober(upstream, SystemClock())
    async with running(upstream=upstream, capabilities=prober, fenced_before="auto") as rig:
        assert (await rig.ask("PUT", f"/{bucket}/a", said, b"x")).status == 200
        await prober.close()
        listed = await asyncio.to_thread(client.list_object_versions, Bucket=bucket)
        assert [one["Key"] for one in listed["Versions"]] == [RECORD_KEY, "a"]
        assert "DeleteMarkers" not in listed
        assert (await rig.ask("DELETE", f"/{bucket}")).status == 409
        assert (await rig.ask("DELETE", f"/{bucket}/a", said)).status == 204
        assert (await rig.ask("DELETE", f"/{bucket}")).status == 204
