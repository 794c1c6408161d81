"""What the gateway gives over every store, whatever that lacks: one suite, run over each by a subclass that gives
`upstream`, `bucket` and the `report` of `doctor`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from gateway.clock import SystemClock
from gateway.core.errors import Reason
from gateway.core.names import RECORD_KEY
from gateway.upstream.base import Upstream, UpstreamRequest
from gateway.upstream.examination import Report
from gateway.upstream.probe import Prober
from gateway.upstream.scratch import SCRATCH_PREFIX
from tests.contract.upstream_contract import visible
from tests.server.rig import Answer, Rig, rule, running, signed

STREAMED = b"frame" * 40_000
CONDITIONS = {"if-match", "if-none-match"}


class FencedContract:
    """G0, G1, G2 and G5, which hold with every store."""

    @pytest.fixture
    async def rig(self, upstream: Upstream) -> AsyncIterator[Rig]:
        """A gateway that has yet to find out about the store."""
        rules = (rule("{job}/**", "{job}"),)
        async with running(upstream=upstream, rules=rules, capabilities=Prober(upstream, SystemClock())) as rig:
            yield rig

    async def test_a_stale_write_is_refused(self, rig: Rig, upstream: Upstream, bucket: str) -> None:
        """Small and streamed, over an object and where there is none; DELETE too; what is there stays."""
        assert (await put(rig, bucket, "job/a", b"34", 34)).status == 200
        for key, body in (("job/a", b"33"), ("job/a", STREAMED), ("job/b", b"33"), ("job/b", STREAMED)):
            refusal = await put(rig, bucket, key, body, 33)
            assert (refusal.status, refusal.xml["FencingReason"]) == (412, Reason.STALE_TOKEN)
        stale = await rig.ask("DELETE", f"/{bucket}/job/a", [("x-fencing-token", "33")])
        assert stale.status == 412
        assert await visible(upstream, bucket, "job/a") == b"34"
        assert await visible(upstream, bucket, "job/b") is None
        assert (await rig.ask("DELETE", f"/{bucket}/job/a", [("x-fencing-token", "34")])).status == 204
        assert await visible(upstream, bucket, "job/a") is None

    async def test_each_write_of_a_token_replaces_the_last(self, rig: Rig, upstream: Upstream, bucket: str) -> None:
        """Small and streamed by turns, also by higher tokens: all are applied, byte for byte."""
        for token, body in ((5, b"small"), (5, STREAMED), (5, b""), (6, STREAMED + b"more"), (7, b"end")):
            assert (await put(rig, bucket, "job/a", body, token)).status == 200
            assert await visible(upstream, bucket, "job/a") == body

    async def test_an_upload_that_is_overtaken_is_cut(self, rig: Rig, upstream: Upstream, bucket: str) -> None:
        """Opened under 33 and nearly through when 34 writes: it is refused at once, and never seen."""
        wire = await rig.wire()
        head = signed("PUT", f"/{bucket}/job/a", [("x-fencing-token", "33")], STREAMED)
        await wire.send(head + STREAMED[:-1])
        await rig.floor("job", 33)
        assert (await put(rig, bucket, "job/a", b"34", 34)).status == 200
        refusal = await wire.answer("PUT")
        assert (refusal.status, refusal.xml["FencingReason"]) == (412, Reason.STALE_TOKEN)
        assert await visible(upstream, bucket, "job/a") == b"34"

    async def test_a_multipart_upload_that_is_overtaken(self, rig: Rig, upstream: Upstream, bucket: str) -> None:
        """Its Complete is refused, and the object is the higher token's; one that is not overtaken completes."""
        for overtaken in (False, True):
            created = await rig.ask(
                "POST", f"/{bucket}/job/a?uploads=", [("x-fencing-token", "40" if overtaken else "34")]
            )
            upload = re.search(rb"<UploadId>(.*?)</UploadId>", created.body)
            assert upload is not None, created
            query = f"uploadId={upload[1].decode()}"
            part = await rig.ask("PUT", f"/{bucket}/job/a?partNumber=1&{query}", (), b"part")
            if overtaken:
                assert (await put(rig, bucket, "job/a", b"41", 41)).status == 200
            listed = f"<Part><PartNumber>1</PartNumber><ETag>{part.header('etag')}</ETag></Part>"
            body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
            answer = await rig.ask("POST", f"/{bucket}/job/a?{query}", (), body)
            assert answer.status == (412 if overtaken else 200)
            assert await visible(upstream, bucket, "job/a") == (b"41" if overtaken else b"part")

    async def test_conditions_are_sent_only_where_they_are_honoured(
        self, rig: Rig, bucket: str, report: Report
    ) -> None:
        """Each operation by what the store has proved; where it has not, the gate alone protects (R4)."""
        for token in (1, 2):
            assert (await put(rig, bucket, "job/a", b"x", token)).status == 200
        source = ("x-amz-copy-source", f"/{bucket}/job/a")
        assert (await rig.ask("PUT", f"/{bucket}/job/b", [source, ("x-fencing-token", "2")])).status == 200
        assert (await rig.ask("DELETE", f"/{bucket}/job/a", [("x-fencing-token", "2")])).status == 204
        sent = [r for r in rig.upstream.requests if r.method not in ("GET", "HEAD") and not of_the_probe(r)]
        proved = report.capabilities
        honoured = [proved.conditional_put, proved.conditional_put, proved.conditional_copy, proved.conditional_delete]
        assert [bool(CONDITIONS & {name for name, _ in r.headers}) for r in sent] == honoured

    async def test_where_conditions_are_required(self, upstream: Upstream, bucket: str, report: Report) -> None:
        """`conditional = "require"` refuses exactly the operations that the store has not proved, and says so."""
        prober = Prober(upstream, SystemClock(), await_race=True)
        async with running(upstream=upstream, capabilities=prober, require_conditional=True) as rig:
            answer = await put(rig, bucket, "job/a", b"x", 1)
            if report.capabilities.conditional_put:
                assert answer.status == 200
                answer = await rig.ask("DELETE", f"/{bucket}/job/a", [("x-fencing-token", "1")])
                assert answer.status == (204 if report.capabilities.conditional_delete else 503)
            else:
                assert (answer.status, answer.xml["FencingReason"]) == (503, Reason.UPSTREAM_UNAVAILABLE)
                assert "has not proved conditional PutObject" in answer.xml["Message"]
                assert await visible(upstream, bucket, "job/a") is None
            assert (await put(rig, bucket, "other", b"x")).status == 200


async def put(rig: Rig, bucket: str, key: str, body: bytes, token: int | None = None) -> Answer:
    """PUT an object, under a token if there is one."""
    said = () if token is None else (("x-fencing-token", str(token)),)
    return await rig.ask("PUT", f"/{bucket}/{key}", said, body)


def of_the_probe(request: UpstreamRequest) -> bool:
    return request.raw_key.startswith((SCRATCH_PREFIX, RECORD_KEY))
