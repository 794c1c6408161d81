"""Other stores than the embedded one: what each lacks is what the gateway reports, and all else holds with them.

What they lack is kept in docs/stores.md, too."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import pytest

from gateway.cli.guarantees import Holds, Standing, guarantees
from gateway.clock import SystemClock
from gateway.config.load import load
from gateway.upstream.client import UpstreamClient
from gateway.upstream.credentials import StaticCredentials
from gateway.upstream.examination import Report, examine
from gateway.upstream.probe import Prober
from tests.conftest import REGION
from tests.contract import servers
from tests.contract.fenced_contract import FencedContract
from tests.contract.servers import Server
from tests.contract.upstream_contract import TIMEOUT_S, UpstreamContract, request

SILENCE_S = 1.0
BY_CHANCE = frozenset({"complete-race"})
"""Who loses here has been lucky, or not: the gateway does not rely on it."""


def client(server: Server) -> UpstreamClient:
    return UpstreamClient(server.url, region=REGION, credentials=StaticCredentials(server.credentials))


async def made_bucket(upstream: UpstreamClient) -> str:
    name = f"test-{secrets.token_hex(6)}"
    response = await upstream.send(request("PUT", name, ""), b"", TIMEOUT_S)
    await response.read(65536)
    assert response.status == 200
    return name


class OtherStore(UpstreamContract, FencedContract):
    """Subclasses name how the store is started, and what it lacks."""

    start: ClassVar[Callable[[Path], AbstractContextManager[Server]]]
    LACKS: ClassVar[frozenset[str]]
    BARE_ETAG: ClassVar[bool] = False
    TRIES: ClassVar[int] = 1
    """More than one where the store itself looks first and writes then: there two racers may both win, now and then."""
    NOT_HELD: ClassVar[dict[str, Holds]]
    """The guarantees that do not hold, or in part alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with cls.start(tmp_path_factory.mktemp("store")) as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def report(cls, server: Server) -> Report:
        """What `doctor` finds out."""

        async def main() -> Report:
            upstream = client(server)
            try:
                for _ in range(cls.TRIES):
                    bucket = await made_bucket(upstream)
                    signed = upstream.send_in_signed_chunk
                    found = await examine(upstream, bucket, "nonce", silence_s=SILENCE_S, signed_chunks=signed)
                    listing = await upstream.read(request("GET", bucket, "", "list-type=2"))
                    assert b"<Contents>" not in await listing.read(1 << 20)
                    if found.findings["put-race"].holds:
                        break
                return found
            finally:
                await upstream.close()

        return asyncio.run(main())

    @pytest.fixture
    def lacks(self, report: Report) -> frozenset[str]:
        """What is not asked of the store: exactly what the gateway reports as lacking."""
        lacking = {name for name, finding in report.findings.items() if not finding.holds}
        assert lacking - BY_CHANCE == self.LACKS - BY_CHANCE
        return self.LACKS

    @pytest.fixture
    def bare_etag(self, report: Report) -> bool:
        assert report.capabilities.bare_etag is self.BARE_ETAG
        return self.BARE_ETAG

    @pytest.fixture
    async def upstream(self, server: Server) -> AsyncIterator[UpstreamClient]:
        upstream = client(server)
        yield upstream
        await upstream.close()

    @pytest.fixture
    async def bucket(self, upstream: UpstreamClient) -> str:
        return await made_bucket(upstream)

    async def test_the_gateway_reports_what_is_lacking(self, report: Report, lacks: frozenset[str]) -> None:
        """What is documented of the store, and which guarantees are left with it; nothing is left in the bucket."""
        told = guarantees(report, load(None, {}, {}), Standing(recorded=False))
        assert {g.name: g.holds for g in told if g.holds is not Holds.YES} == self.NOT_HELD
        assert report.left == ()

    async def test_the_probe_proves_the_same(self, upstream: UpstreamClient, bucket: str, report: Report) -> None:
        """What the first fenced write finds out is what `doctor` tells."""
        for _ in range(self.TRIES):
            prober = Prober(upstream, SystemClock(), await_race=True)
            proved = await prober.of_bucket(bucket)
            await prober.close()
            if proved.conditional_put:
                break
        assert proved == report.capabilities


class TestMoto(OtherStore):
    start = servers.moto
    TRIES = 5
    LACKS = frozenset({"copy", "complete", "complete-race", "abort", "trailers", "subresources"})
    NOT_HELD: ClassVar = {"G3": Holds.IN_PART}


@pytest.mark.services
class TestMiniStack(OtherStore):
    start = servers.ministack
    LACKS = frozenset({"copy"})
    NOT_HELD: ClassVar = {"G3": Holds.IN_PART}


@pytest.mark.services
class TestRclone(OtherStore):
    start = servers.rclone
    LACKS = frozenset(
        """
        put-absent put-match put-moment put-race copy delete complete complete-race ranges copy-metadata trailers
        subresources
        """.split()
    )
    NOT_HELD: ClassVar = {"G3": Holds.NO, "G4": Holds.NO}


@pytest.mark.services
class TestRadosGw(OtherStore):
    start = servers.radosgw
    LACKS = frozenset({"copy", "delete", "complete", "complete-race", "trailers", "subresources"})
    BARE_ETAG = True
    NOT_HELD: ClassVar = {"G3": Holds.IN_PART}
