"""What has been acknowledged is there: where the embedded store would say that it has done what nobody then sees, or
would undo what it has said before, the request is not passed (docs/decisions/0010-what-the-store-would-misread.md)."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from hashlib import md5

from tests.conftest import StoreServer
from tests.server.rig import Answer, real, rule, running
from tests.server.test_object_names import SEAWEEDFS

COMPLETE = "CompleteMultipartUpload"


async def test_no_folder_is_made_of_an_object(store_server: StoreServer) -> None:
    """To the store an object and what is below it share a path, and to make a folder of that empties the object: gone
    was what had been acknowledged. Where there is no object a folder can be made, as often as one likes."""
    bucket = f"folders-{secrets.token_hex(6)}"
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(store_server.client.create_bucket, Bucket=bucket)
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:
        for name in ("k", "k/1", "other/1"):
            assert (await rig.ask("PUT", f"/{bucket}/{name}", said, b"there")).status == 200
        for folder in ("k/", "k%5C", "/k//"):
            assert (await rig.ask("PUT", f"/{bucket}/{folder}", said, b"")).status == 501
        for folder in ("other/", "other/", "new/"):
            assert (await rig.ask("PUT", f"/{bucket}/{folder}", said, b"")).status == 200
        for name in ("k", "k/1", "other/1"):
            assert (await rig.ask("GET", f"/{bucket}/{name}")).body == b"there"


async def test_no_folder_is_made_of_an_object_that_its_client_has_encrypted(store_server: StoreServer) -> None:
    """Nobody can look at it without its key; that it is there can be seen all the same."""
    bucket, key = f"folders-{secrets.token_hex(6)}", secrets.token_bytes(32)
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(store_server.client.create_bucket, Bucket=bucket)
    prefix, digest = "x-amz-server-side-encryption-customer", md5(key, usedforsecurity=False).digest()
    own = [
        (f"{prefix}-algorithm", "AES256"),
        (f"{prefix}-key", b64encode(key).decode()),
        (f"{prefix}-key-md5", b64encode(digest).decode()),
    ]
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:
        assert (await rig.ask("PUT", f"/{bucket}/k", [*said, *own], b"there")).status == 200
        assert (await rig.ask("PUT", f"/{bucket}/k/1", said, b"below")).status == 200
        assert (await rig.ask("PUT", f"/{bucket}/k/", said, b"")).status == 501
        assert (await rig.ask("GET", f"/{bucket}/k", own)).body == b"there"


async def test_no_upload_is_left_in_doubt_by_a_folder_in_its_place(store_server: StoreServer) -> None:
    """Where objects below a key have made a folder of it, the store answers 500 to whoever would assemble an object
    there: that Complete was in doubt, as was each that the client sent again, and the next token waited for them all.
    It is not sent, but one that has succeeded before is answered so. Where versions are kept the store assembles it."""
    bucket, client = f"uploads-{secrets.token_hex(6)}", store_server.client
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:

        async def begun(name: str) -> tuple[str, str]:
            created = await rig.ask("POST", f"/{bucket}/{name}?uploads", said, b"")
            upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
            part = await rig.ask("PUT", f"/{bucket}/{name}?partNumber=1&uploadId={upload_id}", [], b"part")
            return upload_id, part.header("etag") or ""

        async def completed(name: str, upload_id: str, etag: str) -> Answer:
            document = f"<{COMPLETE}><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></{COMPLETE}>"
            return await rig.ask("POST", f"/{bucket}/{name}?uploadId={upload_id}", [], document.encode())

        lost, shut = await begun("lost"), await begun("shut")
        parts = {"Parts": [{"PartNumber": 1, "ETag": lost[1]}]}
        at_the_store = {"Bucket": bucket, "Key": "lost", "UploadId": lost[0], "MultipartUpload": parts}
        await asyncio.to_thread(lambda: client.complete_multipart_upload(**at_the_store))
        for name in ("lost", "shut"):
            assert (await rig.ask("PUT", f"/{bucket}/{name}/1", said, b"below")).status == 200
        assert (await completed("lost", *lost)).status == 200
        refused = await completed("shut", *shut)
        assert (refused.status, refused.xml["FencingReason"]) == (501, "OperationNotFenced")
        assert refused.xml["FencingOutcome"] == "NotApplied"
        assert (await rig.ask("POST", f"/{bucket}/shut?uploads", said, b"")).status == 501
        assert (await rig.ask("PUT", f"/{bucket}/shut/2", [("x-fencing-token", "35")], b"at once")).status == 200
        said = [("x-fencing-token", "35")]
        versioning = {"Status": "Enabled"}
        await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=versioning)
        assert (await completed("shut", *await begun("shut"))).status == 200


async def test_nothing_is_put_in_the_place_of_an_objects_versions(store_server: StoreServer) -> None:
    """Where versions are kept no longer, the store takes a file `<key>.versions` for a folder that has been left over,
    and removes it when somebody, whoever it is, looks for an absent `<key>`: with it went what a fence had
    acknowledged. Where versions are kept such an object is filed as they are, and stays."""
    bucket, client = f"versions-{secrets.token_hex(6)}", store_server.client
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:
        for status, answered in (("Enabled", 200), ("Suspended", 501)):
            versioning = {"Status": status}
            await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=versioning)
            place = f"/{bucket}/{status}.versions"
            put = await rig.ask("PUT", place, said, b"fenced")
            assert put.status == answered
            assert (await rig.ask("POST", f"{place}?uploads", said, b"")).status == answered
            assert (await rig.ask("HEAD", f"/{bucket}/{status}")).status == 404
            assert (await rig.ask("GET", place)).status == (200 if answered == 200 else 404)


async def test_versions_are_not_kept_again_where_the_store_would_hide_what_is_written(
    store_server: StoreServer,
) -> None:
    """What was deleted while versioning was suspended, the store hides once that is enabled again: a copy or an upload
    in its place would be acknowledged, and seen by nobody. So it is not enabled again; the first time it is."""
    bucket, client = f"versions-{secrets.token_hex(6)}", store_server.client
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:

        async def keep_versions(status: str) -> int:
            document = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>".encode()
            return (await rig.ask("PUT", f"/{bucket}?versioning", [], document)).status

        assert [await keep_versions(status) for status in ("Enabled", "Enabled", "Suspended")] == [200, 200, 200]
        assert (await rig.ask("DELETE", f"/{bucket}/k", said)).status == 204
        assert [await keep_versions(status) for status in ("Suspended", "Enabled")] == [200, 501]
        assert (await rig.ask("PUT", f"/{bucket}/k", said, b"seen")).status == 200
        assert (await rig.ask("GET", f"/{bucket}/k")).body == b"seen"


async def test_a_batch_in_a_bucket_with_versions_deletes_what_it_says(store_server: StoreServer) -> None:
    """Where versions are kept the store puts the delete marker of a batch's `a//b` in another place than `a/b`'s, and
    says `Deleted`; a path with two slashes it takes for the object everywhere."""
    bucket, client = f"versions-{secrets.token_hex(6)}", store_server.client
    said = [("x-fencing-token", "34")]
    await asyncio.to_thread(client.create_bucket, Bucket=bucket)
    async with running(upstream=real(store_server), rules=[rule("**", bucket)], capabilities=SEAWEEDFS) as rig:
        for status, refused in ((None, 0), ("Enabled", 3), ("Suspended", 0)):
            if status:
                versioning = {"Status": status}
                await asyncio.to_thread(client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=versioning)
            for spelling in ("a//b", "//a/b", "a///b", "/a/b"):
                assert (await rig.ask("PUT", f"/{bucket}/{spelling}", said, b"there")).status == 200
                batch = f"<Delete><Object><Key>{spelling}</Key></Object></Delete>".encode()
                answer = await rig.ask("POST", f"/{bucket}?delete", said, batch)
                gone = answer.body.count(b"<Deleted>")
                refused -= answer.body.count(b"<Code>NotImplemented</Code>")
                assert (await rig.ask("HEAD", f"/{bucket}/a/b")).status == (404 if gone else 200), (status, spelling)
                assert (await rig.ask("DELETE", f"/{bucket}/{spelling}", said)).status == 204
                assert (await rig.ask("HEAD", f"/{bucket}/a/b")).status == 404
            assert refused == 0
