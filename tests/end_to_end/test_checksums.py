"""A checksum that trails the payload is verified, and kept on the object, whatever the size of the body (R2)."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator

import pytest

from gateway.s3.claim import STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER
from tests.conftest import StoreServer
from tests.end_to_end.process import CLIENT, gateway_over
from tests.end_to_end.wire import exchange, request
from tests.gateway_process import GatewayProcess, before


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, store_server: StoreServer) -> Iterator[GatewayProcess]:
    """One gateway before the session's store."""
    with gateway_over(tmp_path_factory.mktemp("gateway"), **before(store_server)) as process:
        yield process


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "plain"])
@pytest.mark.parametrize("size", [1000, 200_000, 65536 * 3], ids=["small", "streamed", "whole frames"])
@pytest.mark.parametrize("mode", [STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER])
async def test_a_trailing_checksum_is_kept(
    gateway: GatewayProcess, store_server: StoreServer, bucket: str, mode: str, size: int, fenced: bool
) -> None:
    """The store shows the client's CRC32 and the client's bytes, and no framing."""
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    key = "renders/j/out" if fenced else "plain"
    headers = (("x-fencing-token", "5"),) if fenced else ()
    host = "{}:{}".format(*gateway.address)
    sent = request("PUT", host, f"/{bucket}/{key}", payload, CLIENT, mode=mode, headers=headers)
    answer = await exchange(gateway.address, sent)
    assert answer.status == 200, answer.body
    found = store_server.client.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert found["Body"].read() == payload
    assert found["ChecksumCRC32"] == b64encode(zlib.crc32(payload).to_bytes(4, "big")).decode()
    assert "aws-chunked" not in found.get("ContentEncoding", "")
