"""What is the gateway's own fault is not told as the client's."""

from __future__ import annotations

import pytest

from gateway.s3.errors import S3Error, to_xml
from gateway.upstream.base import UpstreamLost, UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.conftest import StoreServer
from tests.server.rig import BUCKET, real, rule, running


class Refusing(MemoryUpstream):
    """A store that does not take the gateway's signature, and says so with a length, or in chunks as S3 does."""

    def __init__(self, code: str, *, tells_length: bool = True) -> None:
        super().__init__(BUCKET)
        self.code = code
        self.tells_length = tells_length

    def apply(self, request: UpstreamRequest, body: bytes) -> MemoryResponse:
        xml = to_xml(S3Error(self.code, "as S3 says it"), resource="/", request_id="0", host_id="0")
        headers = [("content-type", "application/xml")]
        if self.tells_length:
            headers.append(("content-length", str(len(xml))))
        return MemoryResponse(403, headers, b"" if request.method == "HEAD" else xml)


class Losing(MemoryUpstream):
    """A store whose answers are lost once it has done what they tell, or in the midst of them."""

    def __init__(self, *, midway: bool) -> None:
        super().__init__(BUCKET)
        self.midway = midway

    async def send(self, request: UpstreamRequest, body: bytes, timeout_s: float) -> MemoryResponse:
        response = await super().send(request, body, timeout_s)
        if not self.midway:
            raise UpstreamLost("the connection broke")
        return BreakingOff(200, [*response.headers, ("content-length", "1000")], b"")


class BreakingOff(MemoryResponse):
    """An answer of which the head alone arrives."""

    async def read(self, limit_bytes: int) -> bytes:
        raise UpstreamLost("the connection broke")


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


@pytest.mark.parametrize("target", ["/b/k", "/b/k?acl", "/b?policy"])
async def test_nor_is_it_where_the_store_tells_no_length(target: str) -> None:
    """S3 itself sends its errors in chunks."""
    async with running(upstream=Refusing("InvalidAccessKeyId", tells_length=False)) as rig:
        answer = await rig.ask("GET", target)
        assert (answer.status, answer.xml["FencingReason"]) == (503, "UpstreamUnavailable")


@pytest.mark.parametrize("target", ["/b/k", "/b"])
async def test_nor_is_it_where_the_answer_has_no_body(target: str) -> None:
    """To a HEAD the store says 403 and no more; a GET tells whose fault it is."""
    async with running(upstream=Refusing("InvalidAccessKeyId")) as rig:
        answer = await rig.ask("HEAD", target)
        assert (answer.status, answer.header("x-fencing-reason")) == (503, "UpstreamUnavailable")


@pytest.mark.parametrize("tells_length", [True, False])
async def test_access_denied_is_passed_on(tells_length: bool) -> None:
    """That is a policy's word about the request, not about the gateway's signature."""
    async with running(upstream=Refusing("AccessDenied", tells_length=tells_length)) as rig:
        assert (await rig.ask("GET", "/b/k")).code == "AccessDenied"
        assert (await rig.ask("HEAD", "/b/k")).status == 403


@pytest.mark.parametrize("midway", [False, True])
@pytest.mark.parametrize(
    ("method", "target"), [("PUT", "/b?policy"), ("DELETE", "/b"), ("PUT", "/new"), ("POST", "/b/k?uploads")]
)
async def test_what_may_have_been_done_is_not_denied(midway: bool, method: str, target: str) -> None:
    """A setting whose answer was lost may be in force, an upload may have begun: the outcome is unknown (G5)."""
    async with running(upstream=Losing(midway=midway)) as rig:
        answer = await rig.ask(method, target, [], b"{}" if method == "PUT" else None)
        assert (answer.status, answer.xml["FencingOutcome"]) == (503, "Unknown")


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


async def test_a_write_that_wants_a_kms_key_is_told_why_it_may_fail(store_server: StoreServer, bucket: str) -> None:
    """The embedded store has no KMS and answers 500, which leaves the write in doubt (R5) each time anew."""
    kms = [("x-fencing-token", "5"), ("x-amz-server-side-encryption", "aws:kms")]
    async with running(upstream=real(store_server), rules=[rule("renders/{job}/**", "{job}")]) as rig:
        refused = await rig.ask("PUT", f"/{bucket}/renders/j/k", kms, b"x")
        assert (refused.status, refused.xml["FencingReason"]) == (503, "InDoubt")
        assert "it asks for a KMS key" in refused.xml["Message"]
        assert (await rig.ask("PUT", f"/{bucket}/renders/j/k", kms[:1], b"x")).status == 200
