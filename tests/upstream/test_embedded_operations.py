"""Which subresources the embedded store overlooks: the table of operations says so, row by row."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway.clock import SystemClock
from gateway.s3.operations import OPERATIONS, Effect, Level, Operation
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.client import UpstreamClient
from gateway.upstream.probe import Prober
from tests.conftest import StoreServer
from tests.server.rig import real, running

SELECTED = [
    row for row in OPERATIONS if row.method in ("PUT", "DELETE") and row.subresource not in (None, "partNumber")
]
KEY = "k"


@pytest.fixture
async def store(store_server: StoreServer) -> AsyncIterator[UpstreamClient]:
    client = real(store_server)
    yield client
    await client.close()


async def send(store: UpstreamClient, method: str, bucket: str, key: str, query: str, body: bytes) -> tuple[int, bytes]:
    request = UpstreamRequest(method, bucket, key, query, (), hashlib.sha256(body).hexdigest())
    response = await store.send(request, body, 10.0)
    return response.status, await response.read(65536)


async def plain_was_done(store: UpstreamClient, row: Operation, value: str) -> bool:
    """Send the row's request and look whether the plain PUT or DELETE of the object or bucket was done instead."""
    bucket = f"overlooked-{secrets.token_hex(6)}"
    assert (await send(store, "PUT", bucket, "", "", b""))[0] == 200
    query = "&".join([f"{row.subresource}{value}", *[f"{name}=1" for name in row.requires]])
    body = b"<X/>" if row.method == "PUT" else b""
    if row.level is Level.OBJECT:
        assert (await send(store, "PUT", bucket, KEY, "", b"object"))[0] == 200
        await send(store, row.method, bucket, KEY, query, body)
        return await send(store, "GET", bucket, KEY, "", b"") != (200, b"object")
    _, answer = await send(store, row.method, bucket, "", query, body)
    gone = (await send(store, "HEAD", bucket, "", "", b""))[0] == 404
    return gone or b"BucketAlreadyOwnedByYou" in answer


@pytest.mark.parametrize("value", ["", "=", "=1"])
async def test_the_table_knows_what_the_store_overlooks(store: UpstreamClient, value: str) -> None:
    """Every row that it takes for the plain operation is marked, and no other: none goes around the fence, and none is
    refused for nothing."""
    found = {row.name for row in SELECTED if await plain_was_done(store, row, value)}
    assert found == {row.name for row in SELECTED if row.overlooked}


async def test_the_gateway_passes_none_of_them(store_server: StoreServer, store: UpstreamClient) -> None:
    """It has found out by itself which store it stands before."""
    bucket = f"overlooked-{secrets.token_hex(6)}"
    await send(store, "PUT", bucket, "", "", b"")
    upstream = real(store_server)
    async with running(upstream=upstream, capabilities=Prober(upstream, SystemClock())) as rig:
        for row in SELECTED:
            if row.overlooked:
                query = "&".join([row.subresource or "", *[f"{name}=1" for name in row.requires]])
                target = f"/{bucket}/{KEY}" if row.level is Level.OBJECT else f"/{bucket}"
                body = b"<X/>" if row.method == "PUT" else b""
                assert (await rig.ask(row.method, f"{target}?{query}", [], body)).status == 501, row.name
    assert (await send(store, "HEAD", bucket, "", "", b""))[0] == 200


async def test_reads_and_settings_change_no_object(store: UpstreamClient) -> None:
    """What no fence looks at leaves an object's bytes, metadata and tags as they are."""
    bucket = f"overlooked-{secrets.token_hex(6)}"
    await send(store, "PUT", bucket, "", "", b"")
    await send(store, "PUT", bucket, KEY, "", b"object")
    before = [await send(store, "GET", bucket, KEY, query, b"") for query in ("", "tagging", "acl")]
    for row in OPERATIONS:
        if row.effect not in (Effect.READ, Effect.CONFIGURE) or row.overlooked or row.level is Level.SERVICE:
            continue
        query = "&".join([row.subresource or "", *[f"{name}=1" for name in (*row.requires, *row.parameters)]])
        body = b"<X/>" if row.method in ("PUT", "POST") else b""
        await send(store, row.method, bucket, KEY if row.level is Level.OBJECT else "", query, body)
        left = [await send(store, "GET", bucket, KEY, query, b"") for query in ("", "tagging", "acl")]
        assert left == before, row.name


@pytest.mark.parametrize("number", ["x", "", "-1"])
async def test_a_part_without_a_number_would_be_an_object(store: UpstreamClient, number: str) -> None:
    """Why the gateway refuses it."""
    bucket = f"overlooked-{secrets.token_hex(6)}"
    await send(store, "PUT", bucket, "", "", b"")
    status, _ = await send(store, "PUT", bucket, KEY, f"partNumber={number}&uploadId=u", b"part")
    assert (status, await send(store, "GET", bucket, KEY, "", b"")) == (200, (200, b"part"))


async def test_a_line_feed_hides_every_subresource(store: UpstreamClient) -> None:
    """Why the gateway refuses it: also what the store knows is a plain PUT or DELETE then."""
    found = {row.name for row in SELECTED if await plain_was_done(store, row, "=%0A")}
    assert found == {row.name for row in SELECTED}


async def test_the_gateway_passes_no_line_feed(store_server: StoreServer) -> None:
    """No row's request reaches a fenced object, or its bucket, as another one does."""
    name = f"overlooked-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    store_server.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    upstream = real(store_server)
    async with running(upstream=upstream, capabilities=Prober(upstream, SystemClock())) as rig:
        said = [("x-fencing-token", "34")]
        assert (await rig.ask("PUT", f"/{name}/{KEY}", said, b"fenced")).status == 200
        for row in OPERATIONS:
            if row.subresource is None or row.effect is Effect.NEVER:
                continue
            query = "&".join(f"{parameter}=1%0A" for parameter in (row.subresource, *row.requires))
            target = f"/{name}/{KEY}" if row.level is Level.OBJECT else f"/{name}"
            body = None if row.method in ("GET", "DELETE") else b"<X/>"
            headers = said if row.header is None else [*said, (row.header, f"{name}/{KEY}")]
            answer = await rig.ask(row.method, f"{target}?{query}", headers, body)
            assert answer.code == "InvalidArgument", row.name
    assert store_server.client.get_object(Bucket=name, Key=KEY)["Body"].read() == b"fenced"


@pytest.mark.parametrize("name", ["status", "healthz", "readyz"])
async def test_a_page_of_the_store_is_no_bucket(store_server: StoreServer, store: UpstreamClient, name: str) -> None:
    """It answers for its own health where a bucket of that name would be listed: 200, and nothing in it."""
    assert (await send(store, "HEAD", name, "", "", b""))[0] == 200
    bucket = f"overlooked-{secrets.token_hex(6)}"
    await send(store, "PUT", bucket, "", "", b"")
    upstream = real(store_server)
    async with running(upstream=upstream, capabilities=Prober(upstream, SystemClock())) as rig:
        assert (await rig.ask("PUT", f"/{bucket}/{KEY}", [("x-fencing-token", "1")], b"")).status == 200
        for method, target in (("PUT", name), ("HEAD", name), ("GET", name), ("GET", f"{name}?list-type=2")):
            assert (await rig.ask(method, f"/{target}", [], b"" if method == "PUT" else None)).status == 501
