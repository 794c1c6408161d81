"""The bucket's record before a real store: written once, looked at seldom, and no business of any client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.core.keys import Mode
from gateway.core.names import RECORD_KEY
from gateway.stores.memory import MemoryStore
from tests.cases.documents import texts
from tests.conftest import StoreServer, s3_client
from tests.server.rig import CREDENTIALS, Rig, real, rule, running

JOB = rule("renders/{job}/**", "{job}")
KEYS = ("!first", "-dash/a", "-dash/b", "renders/j/a", "renders/j/b", "ü/last")
"""Two sort before the record, or are spelt as its beginning is; the rest after it."""

Ask = Callable[..., Any]


@pytest.fixture
async def rig(store_server: StoreServer, bucket: str) -> AsyncIterator[Rig]:
    """A gateway with records, before SeaweedFS."""
    async with running(upstream=real(store_server), rules=[JOB], fenced_before="auto") as made:
        yield made


@contextmanager
def client(rig: Rig) -> Iterator[Ask]:
    """botocore, call by call, in a thread."""
    s3 = s3_client(f"http://127.0.0.1:{rig.gateway.s3_port}", CREDENTIALS)
    try:
        yield lambda name, **given: asyncio.to_thread(partial(getattr(s3, name), **given))
    finally:
        s3.close()


async def fill(rig: Rig, bucket: str, ask: Ask, store: StoreServer) -> None:
    """The keys, the fenced ones under a token, and so a record."""
    for key in KEYS:
        metadata = {"fencing-token": "34"} if key.startswith("renders") else {}
        await ask("put_object", Bucket=bucket, Key=key, Body=b"data", Metadata=metadata)
    assert RECORD_KEY in [o["Key"] for o in store.client.list_objects_v2(Bucket=bucket)["Contents"]]


async def test_ordinary_writes_send_one_request(rig: Rig, bucket: str) -> None:
    """Measured: 50 fenced PUTs are 50 requests to the store, once the first has read and written the record."""
    with client(rig) as ask:
        put = partial(ask, "put_object", Bucket=bucket, Key="renders/j/a", Metadata={"fencing-token": "34"})
        await put(Body=b"first")
        asked = [(r.method, r.raw_key) for r in rig.upstream.requests]
        assert asked.count(("GET", RECORD_KEY)) == 1
        assert asked.count(("PUT", RECORD_KEY)) == 1
        before = len(asked)
        for number in range(50):
            await put(Body=b"%d" % number)
        assert len(rig.upstream.requests) - before == 50


async def test_lists_do_not_show_it(rig: Rig, bucket: str, store_server: StoreServer) -> None:
    """In each version of the call, with pages of every size and with what is asked for around its name."""
    with client(rig) as ask:
        await fill(rig, bucket, ask, store_server)
        for name in ("list_objects", "list_objects_v2", "list_object_versions"):
            for size in (1, 2, 3, 1000):
                assert await listed(ask, name, bucket, size) == sorted(KEYS, key=str.encode), (name, size)
        for options in ({}, {"Delimiter": "/"}, {"Prefix": ".f"}, {"Prefix": RECORD_KEY}):
            for name in ("list_objects", "list_objects_v2"):
                shown = await ask(name, Bucket=bucket, **options)
                direct = getattr(store_server.client, name)(Bucket=bucket, **options)
                expected = [o["Key"] for o in direct.get("Contents", []) if o["Key"] != RECORD_KEY]
                assert [o["Key"] for o in shown.get("Contents", [])] == expected
                assert shown.get("CommonPrefixes") == direct.get("CommonPrefixes")


@pytest.mark.parametrize("query", ["list-type=1&start-after=z", "prefix=.f&prefix=z", "prefix=z&prefix=.f"])
async def test_a_list_that_readers_take_differently_does_not_show_it(
    rig: Rig, bucket: str, store_server: StoreServer, query: str
) -> None:
    """Where it begins, and what it is asked for, are the store's to say; what it answers is looked into."""
    with client(rig) as ask:
        await fill(rig, bucket, ask, store_server)
    assert RECORD_KEY.encode() not in (await rig.ask("GET", f"/{bucket}?{query}")).body


@pytest.mark.parametrize("kind", ["", "list-type=2&", "versions=&"])
async def test_no_common_prefix_is_of_it_alone(rig: Rig, bucket: str, store_server: StoreServer, kind: str) -> None:
    """Wherever a delimiter cuts its name, whatever the prefix begins with; one that others are under, too, stays."""
    with client(rig) as ask:
        await fill(rig, bucket, ask, store_server)

    async def common(prefix: str, delimiter: str) -> list[str]:
        answer = await rig.ask("GET", f"/{bucket}?{kind}prefix={prefix}&delimiter={delimiter}")
        assert answer.status == 200
        return texts(answer.body, "Prefix")[1:]  # the first is the one asked for

    for prefix in ("", "/", "/.", "/.f", "//.f", f"/{RECORD_KEY}"):
        for delimiter in ("record", "-", ".", "d"):
            shown = await common(prefix, delimiter)
            assert {*shown} <= {"-", "-d", "rend"}, (prefix, delimiter)
    assert (await rig.ask("PUT", f"/{bucket}/.fence-post", [], b"x")).status == 200
    assert await common(".f", "nc") == [".fenc"]
    assert await common("/.f", "nc") == [".fenc" if "versions" in kind else "/.f.fenc"]


async def listed(ask: Ask, name: str, bucket: str, size: int) -> list[str]:
    """All keys, page by page: no page is too long, or empty but the last, and each count is right."""
    found: list[str] = []
    position: dict[str, Any] = {}
    while True:
        page = await ask(name, Bucket=bucket, MaxKeys=size, **position)
        keys = [e["Key"] for e in page.get("Versions" if name == "list_object_versions" else "Contents", [])]
        found += keys
        assert len(keys) <= size == page["MaxKeys"]
        assert page.get("KeyCount", len(keys)) == len(keys)
        if not page["IsTruncated"]:
            return found
        assert keys
        match name:
            case "list_objects_v2":
                position = {"ContinuationToken": page["NextContinuationToken"]}
            case "list_objects":
                position = {"Marker": page.get("NextMarker", keys[-1])}
            case _:
                version = page.get("NextVersionIdMarker")
                position = {"KeyMarker": page["NextKeyMarker"]} | ({"VersionIdMarker": version} if version else {})


async def test_no_operation_reaches_it(rig: Rig, bucket: str, store_server: StoreServer) -> None:
    """Reads, writes, deletes, copies from and to it, uploads, tags: 403 each, however spelt; it stays the same."""
    with client(rig) as ask:
        await fill(rig, bucket, ask, store_server)
        before = store_server.client.get_object(Bucket=bucket, Key=RECORD_KEY)["Body"].read()
        source = {"CopySource": {"Bucket": bucket, "Key": RECORD_KEY}}
        for key in (RECORD_KEY, f"/{RECORD_KEY}", f"{RECORD_KEY}/below"):
            where = {"Bucket": bucket, "Key": key}
            attempts: list[tuple[str, dict[str, Any]]] = [
                ("get_object", where),
                ("head_object", where),
                ("put_object", {**where, "Body": b"mine", "Metadata": {"fencing-token": "99"}}),
                ("delete_object", where),
                ("get_object_tagging", where),
                ("put_object_tagging", {**where, "Tagging": {"TagSet": []}}),
                ("create_multipart_upload", where),
                ("copy_object", {**where, "CopySource": {"Bucket": bucket, "Key": "!first"}}),
                ("copy_object", {"Bucket": bucket, "Key": "copy", **source}),
                ("upload_part_copy", {"Bucket": bucket, "Key": "copy", "UploadId": "u", "PartNumber": 1, **source}),
            ]
            for name, given in attempts:
                with pytest.raises(ClientError) as caught:
                    await ask(name, **given)
                assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, name
        batch = {"Objects": [{"Key": RECORD_KEY}, {"Key": "!first"}]}
        answer = await ask("delete_objects", Bucket=bucket, Delete=batch)
        assert [e["Key"] for e in answer["Errors"]] == [RECORD_KEY]
        assert answer["Errors"][0]["Code"] == "AccessDenied"
        assert [d["Key"] for d in answer["Deleted"]] == ["!first"]
        assert store_server.client.get_object(Bucket=bucket, Key=RECORD_KEY)["Body"].read() == before


async def test_a_bucket_that_is_empty_but_for_it_is_deleted(rig: Rig, bucket: str, store_server: StoreServer) -> None:
    """One that is not empty is not, and keeps its record; a new one of that name is nobody's."""
    with client(rig) as ask:
        await fill(rig, bucket, ask, store_server)
        before = store_server.client.get_object(Bucket=bucket, Key=RECORD_KEY)["Body"].read()
        with pytest.raises(ClientError, match="BucketNotEmpty"):
            await ask("delete_bucket", Bucket=bucket)
        assert store_server.client.get_object(Bucket=bucket, Key=RECORD_KEY)["Body"].read() == before
        for key in KEYS:
            metadata = {"fencing-token": "34"} if key.startswith("renders") else {}
            await rig.ask("DELETE", f"/{bucket}/{key.replace('ü', '%C3%BC')}",
                          [("x-fencing-token", t) for t in metadata.values()])  # fmt: skip
        assert [o["Key"] for o in store_server.client.list_objects_v2(Bucket=bucket)["Contents"]] == [RECORD_KEY]
        await ask("delete_bucket", Bucket=bucket)
        assert bucket not in [b["Name"] for b in store_server.client.list_buckets()["Buckets"]]
        assert await rig.store.rulings() == []
        await ask("create_bucket", Bucket=bucket)
        await ask("put_object", Bucket=bucket, Key="renders/j/a", Body=b"x", Metadata={"fencing-token": "34"})
        assert (await rig.store.ruling(bucket)) is not None


async def test_a_versioned_bucket_that_is_empty_but_for_it_is_deleted(
    rig: Rig, bucket: str, store_server: StoreServer
) -> None:
    """With all the versions that runs of the gateway have left, none of which a list of versions shows."""
    store = store_server.client
    store.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with client(rig) as ask:
        made = await ask("put_object", Bucket=bucket, Key="renders/j/a", Body=b"x", Metadata={"fencing-token": "34"})
        store.put_object(
            Bucket=bucket, Key=RECORD_KEY, Body=store.get_object(Bucket=bucket, Key=RECORD_KEY)["Body"].read()
        )
        assert len(store.list_object_versions(Bucket=bucket, Prefix=RECORD_KEY)["Versions"]) == 2
        assert await listed(ask, "list_object_versions", bucket, 1) == ["renders/j/a"]
        store.delete_object(Bucket=bucket, Key="renders/j/a", VersionId=made["VersionId"])
        await ask("delete_bucket", Bucket=bucket)
        assert bucket not in [b["Name"] for b in store.list_buckets()["Buckets"]]


@pytest.mark.parametrize("deleted", [False, True])
async def test_no_bucket_is_deleted_with_its_versions(
    rig: Rig, bucket: str, store_server: StoreServer, deleted: bool
) -> None:
    """The store would: to it, versions leave a bucket empty. On S3 a bucket is not empty while one is left."""
    store = store_server.client
    store.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    target, token = f"/{bucket}/renders/j/a", ("x-fencing-token", "34")
    made = await rig.ask("PUT", target, [token], b"fenced")
    if deleted:
        assert (await rig.ask("DELETE", target, [token])).status == 204
    answer = await rig.ask("DELETE", f"/{bucket}")
    assert (answer.status, answer.code) == (409, "BucketNotEmpty")
    kept = store.get_object(Bucket=bucket, Key="renders/j/a", VersionId=made.header("x-amz-version-id"))
    assert kept["Body"].read() == b"fenced"
    assert store.head_object(Bucket=bucket, Key=RECORD_KEY)


async def test_no_place_to_begin_a_list_shows_it(rig: Rig, bucket: str, store_server: StoreServer) -> None:
    """Not behind a folder that the store sorts before it; nor do the files of its versions."""
    store_server.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert (await rig.ask("PUT", f"/{bucket}/renders/j/a", [("x-fencing-token", "34")], b"x")).status == 200
    for query in (
        "marker=.fencing-gateway/x",
        "list-type=2&start-after=.fencing-gateway/x",
        f"prefix={RECORD_KEY}.versions/v_",
        f"list-type=2&encoding-type=url&prefix={RECORD_KEY}.versions/v_",
    ):
        answer = await rig.ask("GET", f"/{bucket}?{query}")
        assert answer.status == 200
        assert f"<Key>{RECORD_KEY}".encode() not in answer.body, query


async def test_a_batch_in_anothers_bucket_is_refused_object_by_object(store_server: StoreServer, bucket: str) -> None:
    """What is fenced stays; what is not goes."""
    async with running(upstream=real(store_server), rules=[JOB], fenced_before="auto") as first:
        with client(first) as ask:
            await fill(first, bucket, ask, store_server)
    off = rule("!first", mode=Mode.OFF)
    other = MemoryStore(name="another")
    async with running(upstream=real(store_server), rules=[off, JOB], store=other, fenced_before="auto") as second:
        with client(second) as ask:
            batch = {"Objects": [{"Key": "renders/j/a"}, {"Key": "!first"}]}
            answer = await ask("delete_objects", Bucket=bucket, Delete=batch)
            assert [(e["Key"], e["Code"]) for e in answer["Errors"]] == [("renders/j/a", "ServiceUnavailable")]
            assert [d["Key"] for d in answer["Deleted"]] == ["!first"]
