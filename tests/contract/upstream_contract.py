"""What every upstream must do: one suite, run over each of them by a subclass that gives `upstream` and `bucket`."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

import pytest

from gateway.upstream.base import Upstream, UpstreamNotReached, UpstreamRequest, UpstreamResponse

TIMEOUT_S = 20.0
LIMIT_BYTES = 1 << 20
MIB = 1 << 20


class UpstreamContract:
    """Subclasses give the fixtures `upstream` and `bucket` (an empty one)."""

    @pytest.fixture
    def lacks(self) -> frozenset[str]:
        """The experiments of `doctor` that the store fails; only what they concern is not asked of it."""
        return frozenset()

    @pytest.fixture
    def bare_etag(self) -> bool:
        """Whether the store takes ETags in conditions only without their quotes."""
        return False

    @pytest.mark.parametrize("size", [1, 2, 65537, 5 * MIB + 1])
    @pytest.mark.parametrize("overwrite", [False, True])
    async def test_withheld_tail_is_invisible_and_aborting_leaves_nothing(
        self, upstream: Upstream, bucket: str, lacks: frozenset[str], size: int, overwrite: bool
    ) -> None:
        """R2: an upload that lacks its last byte shows nothing, and once aborted never will."""
        if overwrite:
            assert (await put(upstream, bucket, "key", b"before")).status == 200
        exchange = await upstream.open(request("PUT", bucket, "key"), size)
        for start in range(0, size - 1, MIB):
            await exchange.write(b"x" * min(MIB, size - 1 - start))
        assert await visible(upstream, bucket, "key") == (b"before" if overwrite else None)
        exchange.abort()
        exchange.abort()
        with pytest.raises(UpstreamNotReached):
            await exchange.response(TIMEOUT_S)
        assert (await put(upstream, bucket, "other", b"y")).status == 200
        assert await visible(upstream, bucket, "key") == (b"before" if overwrite else None)
        again = await put(upstream, bucket, "key", b"after", ("if-none-match", "*"))
        assert again.status == (412 if overwrite and "put-absent" not in lacks else 200)

    @pytest.mark.parametrize("size", [1, 65537, 5 * MIB + 1])
    async def test_released_tail_makes_the_whole_visible(self, upstream: Upstream, bucket: str, size: int) -> None:
        """R2: after `commit` the last byte makes the object appear, whole."""
        data = b"abcdefg" * (size // 7) + b"z" * (size % 7)
        exchange = await upstream.open(request("PUT", bucket, "key"), size)
        await exchange.write(data[:-1])
        exchange.commit()
        await exchange.write(data[-1:])
        response = await exchange.response(TIMEOUT_S)
        assert response.status == 200
        assert await response.read(LIMIT_BYTES) == b""
        assert response.header("etag") == f'"{hashlib.md5(data).hexdigest()}"'
        assert await visible(upstream, bucket, "key") == data

    async def test_misuse_is_refused(self, upstream: Upstream, bucket: str) -> None:
        """A body of another length than announced, or a last byte without commit, is an error and has no effect."""
        with pytest.raises(ValueError):
            await upstream.open(request("PUT", bucket, "key"), 0)
        exchange = await upstream.open(request("PUT", bucket, "key"), 2)
        with pytest.raises(ValueError):
            await exchange.write(b"abc")
        with pytest.raises(ValueError):
            await exchange.write(b"ab")
        await exchange.write(b"a")
        with pytest.raises(ValueError):
            await exchange.response(TIMEOUT_S)
        exchange.abort()
        assert await visible(upstream, bucket, "key") is None

    async def test_conditional_put(
        self, upstream: Upstream, bucket: str, lacks: frozenset[str], bare_etag: bool
    ) -> None:
        """R4: only the state that the condition names is replaced; a refusal says so and changes nothing."""
        skip_if_lacking(lacks, "put-absent", "put-match")
        first = await put(upstream, bucket, "key", b"1", ("if-none-match", "*"))
        assert first.status == 200
        assert (await put(upstream, bucket, "key", b"2", ("if-none-match", "*"))).status == 412
        etag = (first.header("etag") or "").strip('"' if bare_etag else "")
        assert (await put(upstream, bucket, "key", b"3", ("if-match", etag))).status == 200
        stale = await put(upstream, bucket, "key", b"4", ("if-match", etag))
        assert stale.status == 412
        assert b"<Code>PreconditionFailed</Code>" in await stale.read(LIMIT_BYTES)
        assert (await put(upstream, bucket, "absent", b"5", ("if-match", etag))).status in (404, 412)
        assert await visible(upstream, bucket, "key") == b"3"
        assert await visible(upstream, bucket, "absent") is None

    async def test_plain_delete(self, upstream: Upstream, bucket: str) -> None:
        """Without a condition it is always 204, whether there is an object or not."""
        await put(upstream, bucket, "key", b"1")
        assert (await delete(upstream, bucket, "key")).status == 204
        assert await visible(upstream, bucket, "key") is None
        assert (await delete(upstream, bucket, "key")).status == 204

    async def test_conditional_delete(self, upstream: Upstream, bucket: str, lacks: frozenset[str]) -> None:
        """R4: DELETE with the ETag of another state is refused; with the right one it deletes."""
        skip_if_lacking(lacks, "delete")
        etag = (await put(upstream, bucket, "key", b"1")).header("etag") or ""
        wrong = f'"{hashlib.md5(b"other").hexdigest()}"'
        assert (await delete(upstream, bucket, "key", ("if-match", wrong))).status == 412
        assert await visible(upstream, bucket, "key") == b"1"
        assert (await delete(upstream, bucket, "key", ("if-match", etag))).status == 204
        assert await visible(upstream, bucket, "key") is None

    async def test_metadata_and_head(self, upstream: Upstream, bucket: str) -> None:
        """HEAD shows length, ETag, type and user metadata, without a body; also of an empty object."""
        headers = (("content-type", "image/png"), ("x-amz-meta-fencing-token", "33"))
        await put(upstream, bucket, "key", b"12345", *headers)
        response = await upstream.read(request("HEAD", bucket, "key"))
        assert response.status == 200
        assert response.header("content-length") == "5"
        assert response.header("content-type") == "image/png"
        assert response.header("x-amz-meta-fencing-token") == "33"
        assert response.header("etag") == f'"{hashlib.md5(b"12345").hexdigest()}"'
        assert await response.read(LIMIT_BYTES) == b""
        assert (await put(upstream, bucket, "empty", b"")).status == 200
        assert (await upstream.read(request("HEAD", bucket, "empty"))).header("content-length") == "0"
        assert await visible(upstream, bucket, "empty") == b""

    async def test_absent_things(self, upstream: Upstream, bucket: str) -> None:
        """What is not there is 404, with S3's code in the body of a GET and no body for HEAD."""
        response = await upstream.read(request("GET", bucket, "absent"))
        assert response.status == 404
        assert b"<Code>NoSuchKey</Code>" in await response.read(LIMIT_BYTES)
        response = await upstream.read(request("HEAD", bucket, "absent"))
        assert (response.status, await response.read(LIMIT_BYTES)) == (404, b"")
        response = await upstream.read(request("GET", "no-such-bucket-here", "key"))
        assert response.status == 404
        assert b"<Code>NoSuchBucket</Code>" in await response.read(LIMIT_BYTES)

    async def test_large_body_streams(self, upstream: Upstream, bucket: str, lacks: frozenset[str]) -> None:
        """A large object comes back in pieces, byte for byte, whole or by range; half-read answers can be closed."""
        data = hashlib.sha256(b"seed").digest() * (16 * MIB // 32)
        await put(upstream, bucket, "key", data)
        response = await upstream.read(request("GET", bucket, "key"))
        pieces = [piece async for piece in response.chunks()]
        assert len(pieces) > 1
        assert hashlib.sha256(b"".join(pieces)).digest() == hashlib.sha256(data).digest()
        response = await upstream.read(request("GET", bucket, "key"))
        async for _ in response.chunks():
            break
        response.close()
        response = await upstream.read(request("GET", bucket, "key", headers=(("range", "bytes=100-199"),)))
        assert response.status == (200 if "ranges" in lacks else 206)
        assert await response.read(LIMIT_BYTES) == data[100:200]

    @pytest.mark.parametrize(
        "raw_key",
        [
            "foo%27bar",
            "a%3Ab",
            "10%2B2.jpg",
            "q%3Fx",
            "a%20b",
            "%C3%A4/%E2%82%AC",
            "100%25",
            "x%2Fy%26z%3D1",
            "a+b,c;d@e!",
        ],
    )
    async def test_special_characters_in_keys(self, upstream: Upstream, bucket: str, raw_key: str) -> None:
        """An escaped key names the same object in every request, and no other."""
        assert (await put(upstream, bucket, raw_key, raw_key.encode())).status == 200
        assert await visible(upstream, bucket, raw_key) == raw_key.encode()
        listing = await upstream.read(request("GET", bucket, "", "list-type=2&prefix="))
        assert (await listing.read(LIMIT_BYTES)).count(b"<Contents>") == 1

    async def test_multipart(self, upstream: Upstream, bucket: str) -> None:
        """Parts show nothing before Complete; an aborted upload leaves nothing."""
        upload_id = await begin_upload(upstream, bucket, "key")
        etags = []
        for number in (1, 2):
            query = f"partNumber={number}&uploadId={quote(upload_id, safe='')}"
            part = await upstream.send(request("PUT", bucket, "key", query), b"p" * (5 * MIB), TIMEOUT_S)
            assert part.status == 200
            etags.append(part.header("etag") or "")
        assert await visible(upstream, bucket, "key") is None
        parts = "".join(f"<Part><PartNumber>{i}</PartNumber><ETag>{e}</ETag></Part>" for i, e in enumerate(etags, 1))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = f"uploadId={quote(upload_id, safe='')}"
        done = await upstream.send(request("POST", bucket, "key", query), body, TIMEOUT_S)
        assert done.status == 200
        assert b"<CompleteMultipartUploadResult" in await done.read(LIMIT_BYTES)
        assert await visible(upstream, bucket, "key") == b"p" * (10 * MIB)
        other = await begin_upload(upstream, bucket, "other")
        aborted = await upstream.send(
            request("DELETE", bucket, "other", f"uploadId={quote(other, safe='')}"), b"", TIMEOUT_S
        )
        assert aborted.status == 204
        assert await visible(upstream, bucket, "other") is None

    async def test_copy(self, upstream: Upstream, bucket: str, lacks: frozenset[str]) -> None:
        """A copy bears the source's bytes, with its metadata or with new ones; an absent source is 404."""
        await put(upstream, bucket, "from", b"data", ("x-amz-meta-a", "1"))
        for directive, value in (("COPY", "1"), ("REPLACE", "2")):
            headers = (
                ("x-amz-copy-source", f"/{bucket}/from"),
                ("x-amz-metadata-directive", directive),
                ("x-amz-meta-a", "2"),
            )
            response = await upstream.send(request("PUT", bucket, "to", headers=headers), b"", TIMEOUT_S)
            assert response.status == 200
            assert b"<ETag>" in await response.read(LIMIT_BYTES)
            head = await upstream.read(request("HEAD", bucket, "to"))
            assert head.header("x-amz-meta-a") == ("2" if "copy-metadata" in lacks else value)
            assert await visible(upstream, bucket, "to") == b"data"
        absent = (("x-amz-copy-source", f"/{bucket}/absent"),)
        response = await upstream.send(request("PUT", bucket, "to2", headers=absent), b"", TIMEOUT_S)
        assert response.status == 404

    async def test_batch_delete(self, upstream: Upstream, bucket: str) -> None:
        """DeleteObjects deletes what it names, and nothing else."""
        for key in ("a", "b", "c"):
            await put(upstream, bucket, key, b"x")
        body = b"<Delete><Object><Key>a</Key></Object><Object><Key>c</Key></Object></Delete>"
        response = await upstream.send(request("POST", bucket, "", "delete="), body, TIMEOUT_S)
        assert response.status == 200
        assert (await response.read(LIMIT_BYTES)).count(b"<Deleted>") == 2
        assert [await visible(upstream, bucket, key) for key in ("a", "b", "c")] == [None, b"x", None]

    async def test_list_in_pages(self, upstream: Upstream, bucket: str) -> None:
        """Lists come in the order of the keys' bytes, in pages, under a prefix."""
        for key in ("p/2", "p/1", "p/3", "q/1"):
            await put(upstream, bucket, key, b"x")
        response = await upstream.read(request("GET", bucket, "", "list-type=2&max-keys=2&prefix=p%2F"))
        body = await response.read(LIMIT_BYTES)
        assert b"<IsTruncated>true</IsTruncated>" in body
        assert body.index(b"<Key>p/1</Key>") < body.index(b"<Key>p/2</Key>")
        token = body.partition(b"<NextContinuationToken>")[2].partition(b"<")[0].decode()
        query = f"continuation-token={quote(token, safe='')}&list-type=2&max-keys=2&prefix=p%2F"
        body = await (await upstream.read(request("GET", bucket, "", query))).read(LIMIT_BYTES)
        assert body.count(b"<Contents>") == 1
        assert b"<Key>p/3</Key>" in body


def skip_if_lacking(lacks: frozenset[str], *experiments: str) -> None:
    """What the store is reported not to do is not asked of it."""
    if missing := lacks & {*experiments}:
        pytest.skip(f"the gateway reports that the store lacks {', '.join(sorted(missing))}")


def request(
    method: str, bucket: str, raw_key: str, raw_query: str = "", headers: tuple[tuple[str, str], ...] = ()
) -> UpstreamRequest:
    return UpstreamRequest(method, bucket, raw_key, raw_query, headers)


async def put(
    upstream: Upstream, bucket: str, raw_key: str, data: bytes, *headers: tuple[str, str]
) -> UpstreamResponse:
    return await upstream.send(request("PUT", bucket, raw_key, headers=headers), data, TIMEOUT_S)


async def delete(upstream: Upstream, bucket: str, raw_key: str, *headers: tuple[str, str]) -> UpstreamResponse:
    return await upstream.send(request("DELETE", bucket, raw_key, headers=headers), b"", TIMEOUT_S)


async def visible(upstream: Upstream, bucket: str, raw_key: str) -> bytes | None:
    """The object's bytes, None where there is none."""
    response = await upstream.read(request("GET", bucket, raw_key))
    body = await response.read(64 * MIB)
    assert response.status in (200, 404)
    return body if response.status == 200 else None


async def begin_upload(upstream: Upstream, bucket: str, raw_key: str) -> str:
    response = await upstream.send(request("POST", bucket, raw_key, "uploads="), b"", TIMEOUT_S)
    body = (await response.read(LIMIT_BYTES)).decode()
    assert response.status == 200
    return body.partition("<UploadId>")[2].partition("</UploadId>")[0]
