"""Clients on their connections: slow ones, long ones, those that read last; documents too large or with a DOCTYPE."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from signal import SIGTERM

import pytest

from gateway.clock import SystemClock
from gateway.s3.sigv4 import Credentials
from gateway.server import body as body_module
from gateway.server.listener import Limits
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse, MemoryUpstream
from tests.cases.documents import completion
from tests.conftest import StoreServer
from tests.gateway_process import GatewayProcess, before
from tests.server.rig import BUCKET, CREDENTIALS, Pairs, Rig, Wire, rule, running, signed

MIB = 1 << 20
TOKEN = ("x-fencing-token", "5")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(rules=[rule("renders/{job}/**", "{job}")]) as rig:
        yield rig


# --- clients that pause


@pytest.mark.parametrize(("pause_s", "status"), [(31, 200), (59, 200), (61, 400)])
@pytest.mark.parametrize("size", [1000, 300_000], ids=["small", "large"])
async def test_a_pause_in_a_body(size: int, pause_s: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """31 s are borne by default, and once again after the next byte; beyond `idle_timeout_s` it is given up, with
    nothing stored."""
    monkeypatch.setattr(body_module, "SWEEP_S", 0.01)
    async with running() as rig:
        body = b"x" * size
        pauses = Pauses(rig, monkeypatch)
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [TOKEN], body) + body[: size // 3])
        await rig.floor("object:b/k", 5)
        for part in (body[size // 3 : size // 2], body[size // 2 :]):
            await pauses.of(pause_s)
            if status == 200:
                await wire.send(part)
        await _ended(rig, wire, status)


@pytest.mark.parametrize(("begun", "least", "status"), [(1, 240, 400), (100_000, 240, 200), (1, 0, 200)])
async def test_a_body_in_drops(begun: int, least: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every 45 s keeps no request for ever: two such pauses are borne, then a body must have brought
    `min_body_bytes_per_s` on average, where any are asked for."""
    monkeypatch.setattr(body_module, "SWEEP_S", 0.01)
    async with running(limits=Limits(min_body_bytes_per_s=least)) as rig:
        body = b"x" * (begun + 5)
        pauses = Pauses(rig, monkeypatch)
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [TOKEN], body) + body[:begun])
        async with asyncio.timeout(10):
            while not rig.gateway._progress._bodies:
                await asyncio.sleep(0)
        for _ in range(2):
            await pauses.of(45)
            await wire.send(b"x")
        assert await wire.nothing_for(0.05)
        for _ in range(3 if status == 200 else 1):
            await pauses.of(45)
            if status == 200:
                await wire.send(b"x")
        await _ended(rig, wire, status)


class Pauses:
    """Lets time pass on the gateway's clock, as seen by what watches its bodies."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        self._asked = asyncio.Event()
        monkeypatch.setattr(rig.clock, "monotonic", self._monotonic)

    def _monotonic(self) -> float:
        self._asked.set()
        return SystemClock.monotonic() + self._ahead_s

    async def of(self, seconds: float) -> None:
        """Return when so much has passed, and has been seen."""
        self._ahead_s += seconds
        for _ in range(3):
            self._asked.clear()
            await self._asked.wait()


async def _ended(rig: Rig, wire: Wire, status: int) -> None:
    answer = await wire.answer("PUT")
    assert answer.status == status, answer.body
    assert (rig.stored("k") is None) == (status != 200)
    if status != 200:
        assert (answer.code, answer.closes) == ("RequestTimeout", True)


# --- clients that read last


@pytest.mark.parametrize("key", [Credentials("AKIDNOBODY", "x"), Credentials(CREDENTIALS.access_key, "bad")], ids=str)
async def test_a_gigabyte_under_a_bad_key(rig: Rig, key: Credentials) -> None:
    """Sent to its end without Expect, and only then read: the refusal, an orderly end, and no broken pipe."""
    head = signed("PUT", "/b/k", [TOKEN, ("content-length", str(1 << 30))], payload="UNSIGNED-PAYLOAD", credentials=key)

    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", rig.gateway.s3_port), timeout=60) as client:
            client.sendall(head)
            piece = bytes(8 * MIB)
            for _ in range((1 << 30) // len(piece)):
                client.sendall(piece)
            answer = b""
            while data := client.recv(65536):
                answer += data
            return answer

    answer = await asyncio.to_thread(talk)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"</Error>")
    assert rig.upstream.requests == []


# --- clients that read slowly


PIECE, PIECES = b"x" * 65536, 1024
SOCKETS_HOLD = 24 * MIB
"""More than the kernel's buffers of a connection on loopback take, on both sides."""


class Counting(MemoryUpstream):
    """Gives an object of 64 MiB piece by piece, or a small one at once, and counts the bytes that it has given."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self.given = 0

    def piece(self) -> bytes:
        self.given += len(PIECE)
        return PIECE

    async def read(self, request: UpstreamRequest, body: bytes = b"") -> MemoryResponse:
        store = self

        class Response(MemoryResponse):
            async def chunks(self) -> AsyncIterator[bytes]:
                for _ in range(PIECES):
                    yield store.piece()

        if request.raw_key == "small":
            return MemoryResponse(200, [("content-length", str(len(PIECE)))], self.piece())
        return Response(200, [("content-length", str(PIECES * len(PIECE)))], b"")


@pytest.mark.parametrize("head", [signed("GET", "/b/large"), signed("GET", "/b/small") * PIECES], ids=["one", "many"])
async def test_no_answer_lies_further_ahead_than_its_client_reads(head: bytes) -> None:
    """While a client does not read, the store is soon asked for no more, be it for one large answer or for a thousand
    that were asked for at once: what lies in memory is bounded. Read at last, all of it comes."""
    upstream = Counting()
    async with running(upstream=upstream) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.s3_port)
        with closing(writer):
            writer.write(head)
            ahead = -1
            while upstream.given != ahead:
                ahead = upstream.given
                for _ in range(200):  # as long as anything moves at all, some turns of the loop move it
                    await asyncio.sleep(0)
            assert 0 < ahead <= SOCKETS_HOLD
            received = 0
            while received < PIECES * len(PIECE):
                received += len(await asyncio.wait_for(reader.read(65536), 10))
            assert upstream.given == PIECES * len(PIECE)


# --- documents


DOCUMENTS: list[tuple[str, str, Pairs]] = [
    ("PUT", "/b?cors", ()),
    ("PUT", "/b?lifecycle", ()),
    ("PUT", "/b?tagging", ()),
    ("PUT", "/b?versioning", ()),
    ("PUT", "/b", ()),
    ("POST", "/b?delete", ()),
    ("PUT", "/b/k?tagging", ()),
    ("PUT", "/b/k?acl", ()),
    ("PUT", "/b/renders/7/out?tagging", (TOKEN,)),
    ("POST", "/b/k?select&select-type=2", ()),
]


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(("method", "target", "fields"), DOCUMENTS)
async def test_a_doctype_in_a_document(rig: Rig, method: str, target: str, fields: Pairs, padding: int) -> None:
    """MalformedXML, whoever would read it; not a byte of it goes upstream."""
    document = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>' + b"<!-- -->" * (padding // 8)
    answer = await rig.ask(method, target, fields, document)
    assert (answer.status, answer.code) == (400, "MalformedXML"), answer.body
    assert rig.upstream.bodies == []
    assert rig.gateway.fences.unsettled() == []


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
async def test_a_doctype_in_the_completion_of_an_upload(rig: Rig, padding: int) -> None:
    """The upload goes on as if nothing had been sent."""
    for key, fields in (("k", ()), ("renders/7/out", (TOKEN,))):
        created = await rig.ask("POST", f"/b/{key}?uploads", fields, b"")
        upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
        document = b"<!DOCTYPE a><CompleteMultipartUpload/>" + b"<!-- -->" * (padding // 8)
        answer = await rig.ask("POST", f"/b/{key}?uploadId={upload_id}", [], document)
        assert (answer.status, answer.code) == (400, "MalformedXML")
        await rig.ask("PUT", f"/b/{key}?partNumber=1&uploadId={upload_id}", [], b"x")
        right = completion([(1, b"x")]) + b"<!-- -->" * (padding // 8)
        assert (await rig.ask("POST", f"/b/{key}?uploadId={upload_id}", [], right)).status == 200


@pytest.mark.parametrize(("method", "target", "fields"), DOCUMENTS)
async def test_a_document_of_two_mebibytes(rig: Rig, method: str, target: str, fields: Pairs) -> None:
    """Refused by its head: not a byte of it is asked for, and nothing goes upstream."""
    said = [*fields, ("expect", "100-continue"), ("content-length", str(2 * MIB))]
    answer = await rig.say(signed(method, target, said, payload="UNSIGNED-PAYLOAD"), method)
    assert (answer.status, answer.code) == (400, "MaxMessageLengthExceeded"), answer.body
    assert rig.upstream.requests == []


# --- a stop


def test_sigterm_lets_a_running_download_end(store_server: StoreServer, bucket: str, tmp_path: Path) -> None:
    """A GET under way when SIGTERM comes is finished, byte for byte; then the gateway ends with status 0."""
    data = bytes(range(256)) * (32 * MIB // 256)
    store_server.client.put_object(Bucket=bucket, Key="large", Body=data)
    gateway = GatewayProcess(tmp_path, **before(store_server)).start()
    try:
        body = gateway.s3.get_object(Bucket=bucket, Key="large")["Body"]
        begun = body.read(MIB)
        gateway.process.send_signal(SIGTERM)
        gateway.wait_for("Draining")
        assert begun + body.read() == data
    finally:
        status = gateway.end()
    assert status == 0
