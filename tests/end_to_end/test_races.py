"""Two workers write one job through a real gateway to a real store; the lower token releases its last byte last."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.conftest import StoreServer
from tests.end_to_end.process import CLIENT, gateway_over
from tests.end_to_end.wire import MODES, Answer, Conversation, Request, exchange, request
from tests.gateway_process import GatewayProcess, before

SIZES = {"at hand": 1000, "streamed": 1_000_000}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, store_server: StoreServer) -> Iterator[GatewayProcess]:
    """One gateway before the session's store."""
    with gateway_over(tmp_path_factory.mktemp("gateway"), **before(store_server)) as process:
        yield process


class Worker:
    """A worker of one token."""

    def __init__(self, gateway: GatewayProcess, bucket: str, token: int) -> None:
        self._gateway = gateway
        self._bucket = bucket
        self._token = token

    def request(self, method: str, key: str, payload: bytes = b"", mode: str = "hex", query: str = "") -> Request:
        host = "{}:{}".format(*self._gateway.address)
        headers = (("x-fencing-token", str(self._token)),)
        path = f"/{self._bucket}/{key}"
        return request(method, host, path, payload, CLIENT, mode=mode, query=query, headers=headers)

    async def call(self, method: str, key: str, payload: bytes = b"", mode: str = "hex", query: str = "") -> Answer:
        return await exchange(self._gateway.address, self.request(method, key, payload, mode, query))


def read(store_server: StoreServer, bucket: str, key: str) -> bytes:
    return store_server.client.get_object(Bucket=bucket, Key=key)["Body"].read()


def assert_stale(answer: Answer, floor: int = 34) -> None:
    assert answer.status == 412
    assert answer.headers["x-fencing-reason"] == "StaleToken"
    assert answer.headers["x-fencing-floor"] == str(floor)
    assert answer.headers["x-fencing-outcome"] == "NotApplied"


def last_payload_byte(sent: Request, payload: bytes) -> int:
    """Where in the wire's body the last payload byte stands."""
    return sent.body.rindex(payload[-1:] if sent.body == payload else payload[-200:]) + (
        0 if sent.body == payload else 199
    )


@pytest.mark.parametrize("existing", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("mode", MODES)
async def test_the_lower_token_releases_last_and_loses(
    gateway: GatewayProcess, store_server: StoreServer, bucket: str, mode: str, size: int, existing: bool
) -> None:
    """In every payload mode: A has sent all but its last byte, B writes, A sends on: 412, the object is B's."""
    key = f"renders/{bucket}/out"
    a, b = Worker(gateway, bucket, 33), Worker(gateway, bucket, 34)
    if existing:
        assert (await Worker(gateway, bucket, 32).call("PUT", key, b"before")).status == 200
    payload = bytes(range(256)) * (size // 256 + 1)
    slow = a.request("PUT", key, payload, mode)
    held = last_payload_byte(slow, payload)
    conversation = await Conversation.open(gateway.address)
    await conversation.send(slow.head + slow.body[:held])
    answer = await b.call("PUT", key, b"B" * size, mode)
    assert answer.status == 200, answer.body
    with suppress(ConnectionError):  # refused already, while it staged
        await conversation.send(slow.body[held:])
    assert_stale(await conversation.answer())
    conversation.close()
    assert read(store_server, bucket, key) == b"B" * size
    assert_stale(await a.call("PUT", key, b"again", mode))
    assert_stale(await a.call("DELETE", key))
    assert read(store_server, bucket, key) == b"B" * size


async def _begin(worker: Worker, key: str, part: bytes) -> tuple[str, bytes]:
    created = await worker.call("POST", key, query="uploads=")
    upload_id = re.search(rb"<UploadId>([^<]+)", created.body)
    assert upload_id is not None, created.body
    name = upload_id[1].decode()
    uploaded = await worker.call("PUT", key, part, query=f"partNumber=1&uploadId={name}")
    assert uploaded.status == 200
    etag = uploaded.headers["etag"]
    return (
        name,
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>".encode(),
    )


async def test_of_two_multipart_uploads_the_lower_token_completes_last_and_loses(
    gateway: GatewayProcess, store_server: StoreServer, bucket: str
) -> None:
    """A begins first and completes last; the object is B's."""
    key = f"renders/{bucket}/out"
    a, b = Worker(gateway, bucket, 33), Worker(gateway, bucket, 34)
    upload_a, complete_a = await _begin(a, key, b"a" * 100_000)
    upload_b, complete_b = await _begin(b, key, b"b" * 100_000)
    assert (await b.call("POST", key, complete_b, query=f"uploadId={upload_b}")).status == 200
    assert_stale(await a.call("POST", key, complete_a, query=f"uploadId={upload_a}"))
    assert_stale(await a.call("PUT", key, b"x", query=f"partNumber=2&uploadId={upload_a}"))
    assert read(store_server, bucket, key) == b"b" * 100_000


async def test_a_dead_workers_parts_are_removed_upstream(
    gateway: GatewayProcess, store_server: StoreServer, bucket: str
) -> None:
    """After the hand-over nothing of A's upload is left to be paid for."""
    key = f"renders/{bucket}/out"
    a, b = Worker(gateway, bucket, 33), Worker(gateway, bucket, 34)
    await _begin(a, key, b"a" * 100_000)
    assert (await b.call("PUT", key, b"B")).status == 200
    async with asyncio.timeout(10):
        while store_server.client.list_multipart_uploads(Bucket=bucket).get("Uploads"):
            await asyncio.sleep(0.05)


async def test_a_client_that_breaks_off_leaves_nothing(
    gateway: GatewayProcess, store_server: StoreServer, bucket: str
) -> None:
    """Cut before its last byte a PUT has no effect, and does not hold the next hand-over."""
    key = f"renders/{bucket}/out"
    a, b = Worker(gateway, bucket, 33), Worker(gateway, bucket, 34)
    assert (await a.call("PUT", key, b"before")).status == 200
    slow = a.request("PUT", key, b"x" * 1_000_000)
    conversation = await Conversation.open(gateway.address)
    await conversation.send(slow.head + slow.body[:-1])
    conversation.close()
    assert read(store_server, bucket, key) == b"before"
    assert (await b.call("PUT", key, b"B")).status == 200
    assert read(store_server, bucket, key) == b"B"
