"""The store in memory against the contract, and where real S3 answers otherwise than most servers."""

from __future__ import annotations

import pytest

from gateway.upstream.base import Upstream
from gateway.upstream.memory import MemoryUpstream
from tests.contract.upstream_contract import TIMEOUT_S, UpstreamContract, begin_upload, delete, put, request

WRONG = '"0123456789abcdef0123456789abcdef"'


class TestMemoryUpstream(UpstreamContract):
    @pytest.fixture
    def upstream(self) -> Upstream:
        return MemoryUpstream("bucket")

    @pytest.fixture
    def bucket(self) -> str:
        return "bucket"


@pytest.mark.parametrize(
    ("headers", "exists", "status"),
    [
        ([("if-none-match", "*")], True, 412),
        ([("if-none-match", "*")], False, 200),
        ([("if-match", WRONG)], True, 412),
        ([("if-match", WRONG)], False, 404),
        ([("if-match", "*")], True, 501),
        ([("if-none-match", WRONG)], True, 501),
        ([("if-match", WRONG), ("if-none-match", "*")], True, 501),
    ],
)
async def test_conditions_on_put_as_on_s3(headers: list[tuple[str, str]], exists: bool, status: int) -> None:
    """S3 user guide, "Conditional writes": each condition, on an object that is there and on one that is not."""
    store = MemoryUpstream("bucket")
    if exists:
        await put(store, "bucket", "key", b"1")
    assert (await put(store, "bucket", "key", b"2", *headers)).status == status


async def test_conditional_complete_conflicts_with_changes_since_create() -> None:
    """S3 answers 409 to a Complete whose condition holds only because the object changed since Create."""
    store = MemoryUpstream("bucket")
    await put(store, "bucket", "key", b"1")
    upload_id = await begin_upload(store, "bucket", "key")
    part = await store.send(request("PUT", "bucket", "key", f"partNumber=1&uploadId={upload_id}"), b"p", TIMEOUT_S)
    body = f"<C><Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part></C>".encode()

    async def complete(*headers: tuple[str, str]) -> int:
        call = request("POST", "bucket", "key", f"uploadId={upload_id}", headers)
        return (await store.send(call, body, TIMEOUT_S)).status

    etag = (await put(store, "bucket", "key", b"2")).header("etag") or ""
    assert await complete(("if-match", etag)) == 409
    await delete(store, "bucket", "key")
    assert await complete(("if-none-match", "*")) == 409
    assert await complete() == 200
    assert await complete() == 404
