"""A stray slash leads around no fence: what the embedded store files as one object, the gateway fences as one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway.clock import SystemClock
from gateway.core.keys import Mode
from gateway.upstream.base import Capabilities
from gateway.upstream.probe import FixedCapabilities, Prober
from tests.conftest import StoreServer
from tests.server.rig import Answer, Rig, real, rule, running

KEY = "renders/7/frame"
RULES = [rule("renders/{job}/**", "{job}")]
MOVING = [rule("renders/**", None, rekey=True)]
SEAWEEDFS = FixedCapabilities(Capabilities(conditional_put=True, conditional_copy=True, conditional_delete=True))
"""What the probe finds, for tests that need not wait for it."""
SPELLINGS = ["/renders/7/frame", "renders//7/frame", "renders/7//frame", "renders%5C7%5Cframe"]


@pytest.fixture(scope="module")
def bucket(store_server: StoreServer) -> str:
    name = f"names-{secrets.token_hex(6)}"
    store_server.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
async def rig(store_server: StoreServer, bucket: str) -> AsyncIterator[Rig]:
    upstream = real(store_server)
    async with running(upstream=upstream, rules=RULES, capabilities=Prober(upstream, SystemClock())) as rig:
        assert (await rig.ask("PUT", f"/{bucket}/{KEY}", [("x-fencing-token", "34")], b"fenced")).status == 200
        yield rig


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_another_spelling_is_the_same_object(
    rig: Rig, store_server: StoreServer, bucket: str, spelling: str
) -> None:
    """Writes, deletes and batches under another spelling meet the fence of the object that they would change."""
    target = f"/{bucket}/{spelling}"
    stale = [("x-fencing-token", "33")]
    batch = f"<Delete><Object><Key>{spelling}</Key></Object></Delete>".encode()
    copy = [("x-amz-copy-source", f"/{bucket}/{KEY}"), ("x-amz-metadata-directive", "REPLACE")]
    assert (await rig.ask("PUT", target, [], b"stray")).status == 428
    assert (await rig.ask("PUT", target, stale, b"stray")).status == 412
    assert (await rig.ask("PUT", target, [*copy, *stale], b"")).status == 412
    assert (await rig.ask("POST", f"{target}?uploads", stale, b"")).status == 412
    assert (await rig.ask("DELETE", target)).status == 428
    if "%" not in spelling:
        assert b"FencingTokenRequired" in (await rig.ask("POST", f"/{bucket}?delete", [], batch)).body
    got = await asyncio.to_thread(store_server.client.get_object, Bucket=bucket, Key=KEY)
    assert got["Body"].read() == b"fenced"


async def test_an_object_without_a_rule_is_one_too(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """The object's own key and its owner go by the same name."""
    assert (await rig.ask("PUT", f"/{bucket}/free", [("x-fencing-token", "5")], b"fenced")).status == 200
    assert (await rig.ask("PUT", f"/{bucket}//free", [], b"stray")).status == 428
    assert (await rig.ask("PUT", f"/{bucket}//free", [("x-fencing-token", "6")], b"newer")).status == 200
    got = await asyncio.to_thread(store_server.client.get_object, Bucket=bucket, Key="free")
    assert got["Body"].read() == b"newer"


# Keys that name no object where keys are filed as paths


async def requests(rig: Rig, bucket: str, key: str) -> AsyncIterator[tuple[str, Answer]]:
    """What could be done to an object of that key, and how it is answered."""
    source = [("x-amz-copy-source", f"/{bucket}/{KEY}"), ("x-amz-metadata-directive", "REPLACE")]
    target = f"/{bucket}/{key}"
    yield "PutObject", await rig.ask("PUT", target, [], b"stray")
    yield "CopyObject", await rig.ask("PUT", target, source, b"")
    yield "CreateMultipartUpload", await rig.ask("POST", f"{target}?uploads", [], b"")
    yield "UploadPart", await rig.ask("PUT", f"{target}?partNumber=1&uploadId=u", [], b"part")
    yield "CompleteMultipartUpload", await rig.ask("POST", f"{target}?uploadId=u", [], b"<CompleteMultipartUpload/>")
    yield "PutObjectTagging", await rig.ask("PUT", f"{target}?tagging", [], b"<Tagging><TagSet/></Tagging>")


async def everything(rig: Rig, bucket: str, key: str) -> AsyncIterator[tuple[str, Answer]]:
    """What could be done to an object of that key, its end and its reading too."""
    async for answer in requests(rig, bucket, key):
        yield answer
    target = f"/{bucket}/{key}"
    yield "DeleteObject", await rig.ask("DELETE", target)
    yield "GetObject", await rig.ask("GET", target)
    yield "copy from there", await rig.ask("PUT", f"/{bucket}/copy", [("x-amz-copy-source", target)], b"")
    batch = f"<Delete><Object><Key>{key.replace('%5C', chr(92))}</Key></Object></Delete>".encode()
    deleted = await rig.ask("POST", f"/{bucket}?delete", [], batch)
    assert deleted.status == 200
    assert deleted.body.count(b"<Code>NotImplemented</Code>") == 1, deleted.body
    assert b"<Deleted>" not in deleted.body


def state(store_server: StoreServer, bucket: str) -> dict[str, tuple[str, int]]:
    """All objects of a bucket as the store lists them."""
    listed = store_server.client.list_objects_v2(Bucket=bucket)
    return {one["Key"]: (one["ETag"], one["Size"]) for one in listed.get("Contents", ())}


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE, Mode.OFF])
@pytest.mark.parametrize("key", ["/", "//", "%5C", "folder/", "folder%5C", f"{KEY}/"])
async def test_no_bytes_go_to_folders(store_server: StoreServer, bucket: str, key: str, mode: Mode) -> None:
    """The store would drop the bytes, or file them under another key: the bucket's name, or the folder's twice."""
    async with running(upstream=real(store_server), rules=[rule("**", mode=mode)], capabilities=SEAWEEDFS) as rig:
        await rig.ask("PUT", f"/{bucket}/{KEY}", [], b"there")
        before = await asyncio.to_thread(state, store_server, bucket)
        async for name, answer in requests(rig, bucket, key):
            assert (answer.status, answer.xml["FencingReason"]) == (501, "OperationNotFenced"), name
        assert await asyncio.to_thread(state, store_server, bucket) == before


async def test_folders_themselves_can_be_made_and_removed(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """Many clients keep an empty object for each folder."""
    assert (await rig.ask("PUT", f"/{bucket}/made/", [], b"")).status == 200
    assert "made/" in await asyncio.to_thread(state, store_server, bucket)
    assert (await rig.ask("HEAD", f"/{bucket}/made/")).status == 200
    assert (await rig.ask("DELETE", f"/{bucket}/made/")).status == 204
    assert "made/" not in await asyncio.to_thread(state, store_server, bucket)


async def test_folders_that_objects_have_made_can_be_made_under_a_token(rig: Rig, bucket: str) -> None:
    """The store shows a folder as soon as an object is in it, with an ETag that it then refuses as a condition. PyArrow
    makes the folder of what it has deleted."""
    token = ("x-fencing-token", "34")
    assert (await rig.ask("PUT", f"/{bucket}/folder/a", [token], b"x")).status == 200
    assert (await rig.ask("HEAD", f"/{bucket}/folder/")).status == 200
    for _ in range(2):
        assert (await rig.ask("PUT", f"/{bucket}/folder/", [token], b"")).status == 200
    assert (await rig.ask("DELETE", f"/{bucket}/folder/a", [token])).status == 204
    assert (await rig.ask("PUT", f"/{bucket}/folder/", [("x-fencing-token", "35")], b"")).status == 200
    assert (await rig.ask("PUT", f"/{bucket}/folder/", [token], b"")).status == 412


async def test_folders_that_objects_have_made_take_a_delete_under_a_token(rig: Rig, bucket: str) -> None:
    """As the store takes it, which leaves what is in them: it refused the condition on what it had shown, and the
    client was told to come again for ever. Tools delete the folders above what they have written."""
    said = [("x-fencing-token", "34")]
    assert (await rig.ask("PUT", f"/{bucket}/above/a", said, b"x")).status == 200
    for _ in range(2):
        assert (await rig.ask("DELETE", f"/{bucket}/above/", said)).status == 204
    assert (await rig.ask("GET", f"/{bucket}/above/a")).body == b"x"
    assert (await rig.ask("DELETE", f"/{bucket}/above/a", said)).status == 204
    assert (await rig.ask("DELETE", f"/{bucket}/above/", said)).status == 204
    assert (await rig.ask("DELETE", f"/{bucket}/above/", [("x-fencing-token", "33")])).status == 412


async def keeping_versions(store_server: StoreServer, *kept: str, bucket: str = "") -> str:
    """A bucket, a new one if none is named, in which versions are kept, or are no longer, one after the other."""
    client = store_server.client
    if not bucket:
        bucket = f"folders-{secrets.token_hex(6)}"
        await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    for status in kept:
        said = {"Status": status}
        await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=said)
    return bucket


@pytest.mark.parametrize("kept", [(), ("Enabled",), ("Suspended",), ("Enabled", "Suspended")], ids=str)
async def test_what_is_done_to_a_folder_leaves_what_is_in_it(store_server: StoreServer, kept: tuple[str, ...]) -> None:
    """The folder of a job is no object of the job: no rule for what is in it names it, and who made it may be long
    gone. Made and removed, in every way, it takes nothing along."""
    bucket = await keeping_versions(store_server, *kept[:1])
    async with running(upstream=real(store_server), rules=RULES, capabilities=SEAWEEDFS) as rig:
        for key in ("frame", "deeper/frame"):
            put = await rig.ask("PUT", f"/{bucket}/renders/7/{key}", [("x-fencing-token", "34")], b"fenced")
            assert put.status == 200
        await keeping_versions(store_server, *kept[1:], bucket=bucket)
        for folder in ("renders/7/", "renders/"):
            for query, version in (("", ""), ("?versionId=null", "<VersionId>null</VersionId>")):
                batch = f"<Delete><Object><Key>{folder}</Key>{version}</Object></Delete>".encode()
                assert (await rig.ask("PUT", f"/{bucket}/{folder}", [], b"")).status == 200
                assert (await rig.ask("DELETE", f"/{bucket}/{folder}{query}")).status == 204
                assert (await rig.ask("PUT", f"/{bucket}/{folder}", [], b"")).status == 200
                assert (await rig.ask("POST", f"/{bucket}?delete", [], batch)).status == 200
        for key in ("frame", "deeper/frame"):
            got = await rig.ask("GET", f"/{bucket}/renders/7/{key}")
            assert (got.body, got.header("x-fencing-object-token")) == (b"fenced", "34")


@pytest.mark.parametrize("kept", [(), ("Suspended",)], ids=str)
async def test_the_null_version_of_a_folder_is_the_object_of_that_name(
    store_server: StoreServer, kept: tuple[str, ...]
) -> None:
    """The store removes `a` when it is asked to remove the version `null` of `a/`: its fence speaks."""
    bucket = await keeping_versions(store_server, *kept)
    async with running(upstream=real(store_server), rules=RULES, capabilities=SEAWEEDFS) as rig:
        for key in (KEY, "free"):
            put = await rig.ask("PUT", f"/{bucket}/{key}", [("x-fencing-token", "34")], b"fenced")
            assert put.status == 200
            batch = f"<Delete><Object><Key>{key}/</Key><VersionId>null</VersionId></Object></Delete>".encode()
            for said_of_token, refusal in (([], 428), ([("x-fencing-token", "33")], 412)):
                assert (await rig.ask("DELETE", f"/{bucket}/{key}/?versionId=null", said_of_token)).status == refusal
                assert b"<Deleted>" not in (await rig.ask("POST", f"/{bucket}?delete", said_of_token, batch)).body
            assert (await rig.ask("GET", f"/{bucket}/{key}")).body == b"fenced"


@pytest.mark.parametrize("size_bytes", [1, 100_000], ids=["at hand", "streamed"])
async def test_where_versions_are_kept_no_longer_an_object_takes_writes_under_a_token(
    rig: Rig, store_server: StoreServer, size_bytes: int
) -> None:
    """A store that judges conditions by what it is about to replace (SeaweedFS) refuses the state that it shows, a
    version of before: the SDK's second attempt gets through, and from then on conditions hold as ever."""

    bucket, client = f"versions-{secrets.token_hex(6)}", store_server.client

    async def keep_versions(status: str) -> None:
        said = {"Status": status}
        await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=said)

    async def put(token: int, name: str = "frame", to: Rig = rig, job: str = bucket) -> int:
        said = [("x-fencing-token", str(token)), ("x-fencing-key", job)]
        return (await to.ask("PUT", f"/{bucket}/renders/{bucket}/{name}", said, bytes(size_bytes))).status

    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    await keep_versions("Enabled")
    assert [await put(34), await put(34, "another"), await put(34, "third")] == [200, 200, 200]
    await keep_versions("Suspended")
    assert [await put(35), await put(35), await put(36), await put(35)] == [503, 200, 200, 412]

    # Nor does it cost more attempts where nothing is known of the object yet.
    async with running(upstream=real(store_server), rules=RULES, capabilities=SEAWEEDFS) as fresh:
        assert [await put(token, "another", fresh) for token in (36, 36, 37)] == [503, 200, 200]

    # And where the object moves from one job to the next.
    async with running(upstream=real(store_server), rules=MOVING, capabilities=SEAWEEDFS) as fresh:
        assert [await put(token, "third", fresh, "next") for token in (1, 1, 2)] == [503, 200, 200]


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE, Mode.OFF])
async def test_parts_of_an_upload_are_reached_by_its_upload_alone(
    store_server: StoreServer, bucket: str, mode: Mode
) -> None:
    """The store keeps them below `.uploads`, where a plain PUT could exchange them and a plain GET read them."""
    async with running(upstream=real(store_server), rules=[rule("**", mode=mode)], capabilities=SEAWEEDFS) as rig:
        upload = (await rig.ask("POST", f"/{bucket}/big?uploads", [], b"")).body
        upload_id = upload.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
        part = await rig.ask("PUT", f"/{bucket}/big?partNumber=1&uploadId={upload_id}", [], b"part")
        assert part.status == 200
        for key in (f".uploads/{upload_id}/0001.part", f"/.uploads//{upload_id}%5C0002.part", ".uploads/"):
            async for name, answer in everything(rig, bucket, key):
                assert (answer.status, answer.xml["FencingReason"]) == (501, "OperationNotFenced"), (name, key)
        listed = await rig.ask("GET", f"/{bucket}/big?uploadId={upload_id}")
        assert listed.body.count(b"<PartNumber>") == 1
        assert (part.header("etag") or "").strip('"').encode() in listed.body


async def test_a_version_is_no_object_of_its_own(store_server: StoreServer) -> None:
    """The store keeps versions as `<key>.versions/v_<id>`: where versioning is suspended, a PUT of that key would
    replace the object itself, past its fence."""
    bucket = f"versions-{secrets.token_hex(6)}"
    client = store_server.client
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    rules = [rule("renders/{job}/**", "{job}")]
    async with running(upstream=real(store_server), rules=rules, capabilities=SEAWEEDFS) as rig:
        for status in ("Enabled", "Suspended"):
            await asyncio.to_thread(
                client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": status}
            )
            if status == "Enabled":
                put = await rig.ask("PUT", f"/{bucket}/{KEY}", [("x-fencing-token", "34")], b"fenced")
        version = put.header("x-amz-version-id")
        assert version
        async for name, answer in everything(rig, bucket, f"{KEY}.versions/v_{version}"):
            assert (answer.status, answer.xml["FencingReason"]) == (501, "OperationNotFenced"), name
        got = await rig.ask("GET", f"/{bucket}/{KEY}")
        assert (got.status, got.body, got.header("x-fencing-object-token")) == (200, b"fenced", "34")


async def test_nothing_is_put_among_the_versions_of_an_object(store_server: StoreServer) -> None:
    """Where versions are kept no longer the store takes any file in `<key>.versions/` for a version of the object: what
    nobody had a token for appeared in its place when its owner deleted a version. The folder itself holds which
    version is the latest."""
    bucket, client = f"versions-{secrets.token_hex(6)}", store_server.client
    source = [("x-amz-copy-source", f"/{bucket}/stray")]

    async def keep_versions(status: str) -> None:
        said = {"Status": status}
        await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=said)

    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    rules = [rule("renders/{job}/frame", "{job}"), rule("**", mode=Mode.OFF)]
    async with running(upstream=real(store_server), rules=rules, capabilities=SEAWEEDFS) as rig:
        beside = f"/{bucket}/renders/{bucket}/frame.versions/"
        assert (await rig.ask("PUT", beside + "before", [], b"no version")).status == 200
        assert (await rig.ask("PUT", f"/{bucket}/stray", [], b"stray")).status == 200
        await keep_versions("Enabled")
        for token, data in ((33, b"old"), (34, b"new")):
            said = [("x-fencing-token", str(token))]
            put = await rig.ask("PUT", f"/{bucket}/renders/{bucket}/frame", said, data)
        assert (await rig.ask("PUT", beside, [], b"")).status == 501
        assert (await rig.ask("PUT", beside + "kept", [], b"with versions of its own")).status == 200
        await keep_versions("Suspended")
        for name in ("", "z", "/z", "%5Cz"):
            assert (await rig.ask("PUT", beside + name, [], b"stray" if name else b"")).status == 501
        assert (await rig.ask("PUT", beside + "z", source, b"")).status == 501
        assert (await rig.ask("POST", beside + "z?uploads", [], b"")).status == 501
        assert (await rig.ask("GET", beside + "before")).body == b"no version"
        version = put.header("x-amz-version-id")
        deleted = await rig.ask("DELETE", f"/{bucket}/renders/{bucket}/frame?versionId={version}", said)
        assert deleted.status == 204
        assert (await rig.ask("GET", f"/{bucket}/renders/{bucket}/frame")).body == b"old"


async def test_a_batch_says_of_no_object_that_it_is_gone_which_is_there(rig: Rig, bucket: str) -> None:
    """In a batch the store takes a backslash for itself, in a request's path for a slash: it would say `Deleted` of
    another file, that nobody can have written."""
    said = [("x-fencing-token", "34")]
    assert (await rig.ask("PUT", f"/{bucket}/renders%5C7%5Cback", said, b"there")).status == 200
    batch = b"<Delete><Object><Key>renders\\7\\back</Key></Object></Delete>"
    answer = await rig.ask("POST", f"/{bucket}?delete", said, batch)
    assert (answer.body.count(b"<Code>NotImplemented</Code>"), answer.body.count(b"<Deleted>")) == (1, 0)
    assert (await rig.ask("DELETE", f"/{bucket}/renders%5C7%5Cback", said)).status == 204
    assert (await rig.ask("HEAD", f"/{bucket}/renders%5C7%5Cback")).status == 404


async def test_no_object_of_a_batch_leads_elsewhere(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """Older versions of the store follow such keys, and versions, as paths."""
    for named in (
        f"<Key>x/../{KEY}</Key>",
        f"<Key>x\\..\\{KEY}</Key>",
        "<Key>x</Key><VersionId>a/../../renders/7/frame</VersionId>",
    ):
        batch = f"<Delete><Object>{named}</Object></Delete>".encode()
        answer = await rig.ask("POST", f"/{bucket}?delete", [], batch)
        assert (answer.status, answer.body.count(b"<Code>NotImplemented</Code>")) == (200, 1), named
    assert (await rig.ask("GET", f"/{bucket}/{KEY}")).body == b"fenced"


async def test_what_follows_a_semicolon_is_no_parameter(rig: Rig, store_server: StoreServer, bucket: str) -> None:
    """The store splits a query there: a setting of the bucket would be a batch that no fence has seen, the PUT of the
    object one of its tags."""
    batch = f"<Delete><Object><Key>{KEY}</Key></Object></Delete>".encode()
    await rig.ask("POST", f"/{bucket}?metadataTable&x-amz-a;delete", [], batch)
    assert (await rig.ask("GET", f"/{bucket}/{KEY}")).body == b"fenced"
    tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    target = f"/{bucket}/{KEY}?x-amz-a;tagging"
    assert (await rig.ask("PUT", target, [("x-fencing-token", "34")], tags)).status == 200
    got = await asyncio.to_thread(store_server.client.get_object, Bucket=bucket, Key=KEY)
    assert got["Body"].read() == tags
    assert "TagCount" not in got


# Stores of the other kind


async def test_a_store_that_tells_keys_apart_keeps_them_apart() -> None:
    """S3 knows `a//b` and `a/b` as two objects, and so does the fence; no key is special there."""
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        assert (await rig.ask("PUT", "/b/renders/7/frame", [("x-fencing-token", "34")], b"fenced")).status == 200
        assert (await rig.ask("PUT", "/b//renders/7/frame", [], b"another")).status == 200
        for key in ("/", "folder/", ".uploads/x", "k.versions/v_1"):
            assert (await rig.ask("PUT", f"/b/{key}", [], b"bytes")).status == 200
            assert (await rig.ask("GET", f"/b/{key}")).body == b"bytes"


async def test_until_a_store_has_been_probed_keys_are_taken_for_paths() -> None:
    """What nobody knows must not lead around the fence."""
    unknown = FixedCapabilities(Capabilities())
    async with running(rules=[rule("renders/{job}/**", "{job}")], capabilities=unknown) as rig:
        assert (await rig.ask("PUT", "/b/renders/7/frame", [("x-fencing-token", "34")], b"fenced")).status == 200
        assert (await rig.ask("PUT", "/b//renders/7/frame", [], b"another")).status == 428
