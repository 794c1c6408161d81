"""The listener's connections: what follows a body, other protocols offered, clients that end or stand still."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from gateway.server import listener
from gateway.server.listener import MAX_QUEUE, Limits
from tests.server.rig import BUCKET, HOST, Rig, Wire, raw, running, signed
from tests.server.test_http import Odd, Stalled

LARGE = 300 * 1024
TOKEN = ("x-fencing-token", "3")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running() as rig:
        yield rig


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_request_may_follow_a_large_body_without_a_break(rig: Rig, pieces: int) -> None:
    """Where a body ends in the midst of what was received, the next request begins, and its body, and the next."""
    body, small = b"x" * LARGE, b"small"
    sent = signed("PUT", "/b/large", [TOKEN], body) + body + signed("PUT", "/b/small", [TOKEN], small) + small
    sent += signed("GET", "/b/large") + signed("GET", "/b/small")
    wire = await rig.wire()
    step = -(-len(sent) // pieces)
    for at in range(0, len(sent), step):
        await wire.send(sent[at : at + step])
    assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
    assert [(await wire.answer()).body for _ in range(2)] == [body, small]


async def test_a_long_pipeline_is_answered_whole_and_in_order(rig: Rig) -> None:
    """More requests at once than wait in line: the socket is read on as they are answered."""
    count = 5 * MAX_QUEUE
    for number in range(count):
        await rig.put(f"k{number}", b"%d" % number, 1)
    wire = await rig.wire()
    for number in range(count):
        await wire.send(signed("GET", f"/b/k{number}"))
    assert [(await wire.answer()).body for _ in range(count)] == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("size", [0, 5, LARGE])
async def test_another_protocol_that_is_offered_is_passed_over(rig: Rig, size: int) -> None:
    """A client that would rather speak HTTP/2 is answered in HTTP/1.1, body and next request included."""
    body = b"x" * size
    offer = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABkAAQAoAAA")]
    wire = await rig.wire()
    await wire.send(signed("PUT", "/b/k", [TOKEN, *offer], body) + body + signed("GET", "/b/k"))
    assert (await wire.answer()).status == 200
    assert (await wire.answer()).body == body


async def test_a_chunked_body_behind_an_offer_is_refused(rig: Rig) -> None:
    """What the parser will not read as a body is not guessed at."""
    offer = [("connection", "Upgrade"), ("upgrade", "h2c"), ("transfer-encoding", "chunked")]
    wire = await rig.wire()
    head = signed("PUT", "/b/k", [TOKEN, *offer, ("x-amz-decoded-content-length", "1")], payload="UNSIGNED-PAYLOAD")
    await wire.send(head + b"1\r\nx\r\n0\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.closes) == (400, True)
    assert await wire.rest() == b""
    assert rig.stored("k") is None


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [("1.1", 1, 200), ("1.0", 0, 403), ("1.1", 0, 400), ("1.1", 2, 400), ("1.0", 2, 400), ("2.0", 1, 400)],
)
async def test_one_host_and_a_version_that_is_spoken(rig: Rig, version: str, hosts: int, status: int) -> None:
    """Two hosts could be two buckets to two readers; without one only HTTP/1.0 gets as far as its missing signature."""
    await rig.put("k", b"x", 1)
    if status == 200:
        answer = await rig.ask("GET", "/b/k")
    else:
        answer = await rig.say(raw(f"GET /b/k HTTP/{version}", [("host", HOST)] * hosts))
    assert answer.status == status


async def test_a_client_that_has_said_all_still_gets_its_answer() -> None:
    """A client may close its half of the connection behind its request; it is answered, and then there is an end."""
    upstream = Stalled(BUCKET)
    async with running(upstream=upstream) as rig:
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x")
        wire.finish()
        await upstream.arrived.wait()
        upstream.release.set()
        assert (await wire.answer()).status == 200
        assert await wire.rest() == b""


async def test_what_follows_bytes_that_are_no_http_is_taken_in_before_the_end(rig: Rig) -> None:
    """The refusal can be read by a client that goes on sending; nothing of it is answered."""
    wire = await rig.wire()
    await wire.send(b"no HTTP\r\n\r\n")
    answer = await wire.answer()
    await wire.send(signed("GET", "/b") * 1000)
    assert (answer.status, answer.closes) == (400, True)
    assert await wire.rest() == b""


async def test_a_client_that_never_closes_is_left(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps the connection open behind its last answer does not keep it for ever."""
    monkeypatch.setattr(listener, "LINGER_AFTER_NO_HTTP_S", 0.05)
    wire = await rig.wire()
    await wire.send(b"no HTTP\r\n\r\n")
    await wire.answer()
    assert await wire.rest() == b""
    assert await cannot_send(wire)


@pytest.mark.parametrize("size", [60_000, 64 << 20])
async def test_a_client_that_takes_nothing_is_cut_off(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that nobody takes ends with its time-out, also the part of it that waits for the socket alone."""
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    monkeypatch.setattr(listener, "LINGER_S", 0.1)
    odd = Odd([("content-length", str(size))], b"x" * size)
    async with running(upstream=odd, limits=Limits(idle_timeout_s=0.1)) as rig:
        rig.gateway._s3_listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)  # type: ignore[union-attr]
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", rig.gateway.s3_port))
            client.sendall(signed("GET", "/b/k", [("connection", "close")]))
            await rig.answered(1)
            cut = {60_000: None, 64 << 20: "the client has stopped reading the answer"}[size]
            assert rig.record["message"] == cut
            async with asyncio.timeout(5):
                while rig.gateway._connections.connections:
                    await asyncio.sleep(0)
            assert len(await asyncio.to_thread(received, client)) < size


async def cannot_send(wire: Wire) -> bool:
    """Whether the gateway has let go of the connection, and not only of its own half."""
    with suppress(ConnectionError):
        for _ in range(1000):
            await wire.send(b"x" * LARGE)
        return False
    return True


def received(client: socket.socket) -> bytes:
    """All that still comes before the end or a reset."""
    pieces = []
    client.settimeout(5)
    try:
        while piece := client.recv(1 << 20):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


async def test_a_stop_closes_silent_connections_and_waits_for_answers() -> None:
    """A connection between two requests is closed at once; another has its answer first, and then its end."""
    upstream = Stalled(BUCKET)
    async with running(upstream=upstream) as rig:
        silent, busy = await rig.wire(), await rig.wire()
        await silent.send(signed("GET", "/b"))
        await silent.answer()
        await busy.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x")
        await upstream.arrived.wait()
        stopping = asyncio.create_task(rig.gateway._connections.shutdown(5))  # type: ignore[union-attr]
        assert await silent.rest() == b""
        upstream.release.set()
        assert (await busy.answer()).status == 200
        assert await busy.rest() == b""
        await stopping


async def test_a_stop_cuts_what_is_not_answered_in_time() -> None:
    """The time of a stop is bounded; the request that it cuts is logged."""
    upstream = Stalled(BUCKET)
    async with running(upstream=upstream) as rig:
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x")
        await upstream.arrived.wait()
        await rig.gateway._connections.shutdown(0.01)  # type: ignore[union-attr]
        assert rig.record["reason"] == "Cut"
        assert await cannot_send(wire)
