"""What is the gateway's own fault is not told as the client's."""

from __future__ import annotations

import pytest

from gateway.s3.errors import S3Error, to_xml
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.server.rig import BUCKET, rule, running


class Refusing(MemoryUpstream):
    """A store that does not take the gateway's signature."""

    def __init__(self, code: str) -> None:
        super().__init__(BUCKET)
        self.code = code

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        xml = to_xml(S3Error(self.code, "as S3 says it"), resource="/", request_id="0", host_id="0")
        headers = [("content-type", "application/xml"), ("content-length", str(len(xml)))]
        return MemoryResponse(403, headers, b"" if request.method == "HEAD" else xml)


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidAccessKeyId", "RequestTimeTooSkewed"])
@pytest.mark.parametrize(
    ("method", "target", "body"),
    [("GET", "/b/k", None), ("GET", "/b", None), ("PUT", "/b/k", b"x"), ("PUT", "/b/renders/j/k", b"x")],
)
async def test_a_store_that_refuses_the_gateway_is_not_the_clients_fault(
    code: str, method: str, target: str, body: bytes | None
) -> None:
    """503 UpstreamUnavailable that names the store's code; nobody goes and changes the worker's secret."""
    async with running(upstream=Refusing(code), rules=[rule("renders/{job}/**", "{job}")]) as rig:
        headers = [("x-fencing-token", "5")] if "renders" in target else []
        answer = await rig.ask(method, target, headers, body)
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
        assert answer.xml["FencingReason"] == "UpstreamUnavailable"
        assert code in answer.xml["Message"]


async def test_access_denied_is_passed_on() -> None:
    """That is a policy's word about the request, not about the gateway's signature."""
    async with running(upstream=Refusing("AccessDenied")) as rig:
        assert (await rig.ask("GET", "/b/k")).code == "AccessDenied"


async def test_a_history_names_who_was_refused_and_from_where() -> None:
    """Access key and address, in the key's history and in the log."""
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        await rig.put("renders/j/k", b"x", 34)
        await rig.put("renders/j/k", b"x", 33)
        assert rig.record["address"] == "127.0.0.1"
        details = [event.detail for event in await rig.store.events("j", None, 10)]
        assert all(detail.endswith(f", {rig.record['client']} from 127.0.0.1") for detail in details)
        assert len(details) == 2


async def test_a_request_that_was_not_served_names_its_key_in_the_log() -> None:
    """The access key of a failed signature helps to find the worker."""
    async with running() as rig:
        answer = await rig.say(
            b"GET /b/k HTTP/1.1\r\nhost: h\r\nx-amz-date: 20260101T000000Z\r\n"
            b"x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nauthorization: AWS4-HMAC-SHA256 "
            b"Credential=NOBODY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00\r\n\r\n"
        )
        assert answer.code == "InvalidAccessKeyId"
        assert rig.record["client"] == "NOBODY"
