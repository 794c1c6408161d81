"""The listener's connections: what follows a body, other protocols offered, clients that end or stand still."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.server import connection, listener
from gateway.server.http import READ_BUFFER_BYTES, Reply, Request
from gateway.server.listener import Limits
from gateway.server.receiving import MAX_QUEUE, SLICE_BYTES
from tests.server.rig import HOST, Rig, Stalled, Wire, raw, running, signed
from tests.server.test_http import Odd
from tests.test_outgoing import Peer

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


async def test_an_answer_goes_out_at_once_where_no_other_request_is_worked_on() -> None:
    """Its client need not wait for the loop's turn, however many are connected and idle; where others are worked on,
    they may go out together."""
    peers = {"/alone": Peer(), "/next": Peer(), "/slow": Peer(), "/other": Peer()}
    gone_out: dict[str, bool] = {}

    async def answer(request: Request) -> Reply:
        if request.target == "/slow":
            await asyncio.Event().wait()
        reply = Reply(request.carrier, request)
        reply.send(200, [], b"x")
        gone_out[request.target] = bool(peers[request.target].lots)
        return reply

    it = listener.Listener(answer, lambda carrier, _: Reply(carrier, None), Limits())
    for target, peer in peers.items():
        made = it()
        made.connection_made(peer)
        made.data_received(raw(f"GET {target} HTTP/1.1", [("host", HOST)]))
        while target != "/slow" and target not in gone_out:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert gone_out == {"/alone": True, "/next": True, "/other": False}
    await it.shutdown(0)


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
    upstream = Stalled()
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
    monkeypatch.setattr(connection, "LINGER_AT_END_S", 0.05)
    wire = await rig.wire()
    await wire.send(b"no HTTP\r\n\r\n")
    await wire.answer()
    assert await wire.rest() == b""
    assert await cannot_send(wire)


@pytest.mark.parametrize("size", [60_000, 64 << 20])
async def test_a_client_that_takes_nothing_is_cut_off(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that nobody takes ends with its time-out, also the part of it that waits for the socket alone."""
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    odd = Odd([("content-length", str(size))], b"x" * size)
    async with running(upstream=odd, limits=Limits(idle_timeout_s=0.1)) as rig, taking_nothing(rig) as client:
        cut = {60_000: None, 64 << 20: "the client has stopped reading the answer"}[size]
        assert rig.record["message"] == cut
        async with asyncio.timeout(5):
            while rig.gateway._connections.connections:  # type: ignore[union-attr]
                await asyncio.sleep(0)
        assert len(await asyncio.to_thread(received, client)) < size


@asynccontextmanager
async def taking_nothing(rig: Rig) -> AsyncIterator[socket.socket]:
    """A client that has been answered, and has taken no more than small buffers hold."""
    rig.gateway._s3_listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)  # type: ignore[union-attr]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", rig.gateway.s3_port))
        client.sendall(signed("GET", "/b/k", [("connection", "close")]))
        await rig.answered(1)
        yield client


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
    upstream = Stalled()
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
    upstream = Stalled()
    async with running(upstream=upstream) as rig:
        wire = await rig.wire()
        await wire.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x")
        await upstream.arrived.wait()
        await rig.gateway._connections.shutdown(0.01)  # type: ignore[union-attr]
        assert rig.record["reason"] == "Cut"
        assert await cannot_send(wire)


# --- what one packet may bring


def chunked(body: bytes, *, size: int = 1 << 16) -> bytes:
    """A body in chunked transfer coding."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def chunked_put(target: str, length: int) -> bytes:
    """The head of a PUT whose body comes in chunked transfer coding."""
    fields = [TOKEN, ("transfer-encoding", "chunked"), ("x-amz-decoded-content-length", str(length))]
    return signed("PUT", target, fields, payload="UNSIGNED-PAYLOAD")


@pytest.mark.parametrize("cut", [1, 30])
async def test_a_head_behind_a_chunked_body_may_be_cut(rig: Rig, cut: int) -> None:
    """What an earlier body took is no part of the next head's size."""
    body = b"x" * LARGE
    wire = await rig.wire()
    following = signed("GET", "/b/k")
    await wire.send(chunked_put("/b/k", len(body)) + chunked(body) + following[:cut])
    assert (await wire.answer()).status == 200
    await wire.send(following[cut:])
    assert (await wire.answer()).body == body


async def test_a_pipeline_of_offers_is_answered_whole(rig: Rig) -> None:
    """Thousands of requests that each offer another protocol, in one packet, nest nowhere."""
    count = 3000
    wire = await rig.wire()
    await wire.send(b"GET /b HTTP/1.1\r\nhost: a\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" * count)
    assert {(await wire.answer()).status for _ in range(count)} == {403}


async def test_what_is_parsed_ahead_is_bounded() -> None:
    """Of a packet with thousands of requests few are made objects while the first is being answered."""
    upstream = Stalled()
    async with running(upstream=upstream) as rig:
        wire = await rig.wire()
        small = b"GET /b HTTP/1.1\r\nhost: a\r\n\r\n"
        await wire.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x" + small * 3000)
        await upstream.arrived.wait()
        (client,) = rig.gateway._connections.connections  # type: ignore[union-attr]
        assert len(client._receiver.queue) <= MAX_QUEUE + SLICE_BYTES // len(small)
        upstream.release.set()
        assert (await wire.answer()).status == 200
        assert {(await wire.answer()).status for _ in range(3000)} == {403}


async def test_bodies_that_wait_behind_a_request_are_bounded() -> None:
    """The bodies of a pipeline lie in memory together, and are bounded together; all of them arrive."""
    upstream = Stalled()
    async with running(upstream=upstream) as rig:
        body, count = b"x" * 60_000, 12
        puts = b"".join(signed("PUT", f"/b/k{n}", [TOKEN], body) + body for n in range(count))
        wire = await rig.wire()
        sending = asyncio.create_task(wire.send(signed("PUT", "/b/k", [TOKEN], b"x") + b"x" + puts))
        await upstream.arrived.wait()
        (client,) = rig.gateway._connections.connections  # type: ignore[union-attr]
        async with asyncio.timeout(5):
            while not client._receiver.paused:
                await asyncio.sleep(0)
        waiting = sum(item.body.buffered for item in client._receiver.queue if isinstance(item, Request))
        assert waiting + len(client._receiver._ahead) <= READ_BUFFER_BYTES + 256 * 1024
        upstream.release.set()
        await sending
        assert [(await wire.answer()).status for _ in range(count + 1)] == [200] * (count + 1)


@pytest.mark.parametrize("endless", [b"0\r\nx: " + b"y" * 300_000, b"1;" + b"y" * 300_000, b"0" * 300_000])
async def test_what_is_no_body_in_a_chunked_one_is_bounded(rig: Rig, endless: bytes) -> None:
    """A trailer, an extension or a size that does not end is refused; the parser would keep it, or count on."""
    wire = await rig.wire()
    await wire.send(chunked_put("/b/k", 1) + b"1\r\nx\r\n" + endless)
    answer = await wire.answer()
    assert (answer.status, answer.code, answer.closes) == (400, "IncompleteBody", True)
    assert await wire.rest() == b""
    assert rig.stored("k") is None


async def test_a_head_of_thousands_of_fields_is_refused_before_its_end(rig: Rig) -> None:
    """Each field costs many times its bytes: they are counted as they come."""
    answer = await rig.say(b"GET /b HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 600)
    assert (answer.status, answer.code, answer.closes) == (400, "BadRequest", True)


async def test_a_target_longer_than_any_is_refused(rig: Rig) -> None:
    """A target has the bound of a field; a key of 1,024 bytes, all of them in escapes, is far below it."""
    assert (await rig.say(signed("GET", "/b/" + "%41" * 1024))).status == 404
    answer = await rig.say(signed("GET", "/b/k?" + "&".join(f"a{number}" for number in range(3000))))
    assert (answer.status, answer.code, answer.closes) == (400, "BadRequest", True)


async def test_a_head_that_never_ends_is_refused(rig: Rig) -> None:
    """Line ends before a request line count, as does all that comes before the end of a head."""
    for endless in (
        b"\r\n" * 100_000,
        b"GET /" + b"b" * 200_000,
        b"GET /b HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 200_000,
    ):
        answer = await rig.say(endless)
        assert (answer.status, answer.code) == (400, "RequestHeaderSectionTooLarge")


# --- the end of a connection


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("HTTP/1.0", [("connection", "keep-alive")]),
        ("HTTP/1.1", [("connection", "close, Upgrade"), ("upgrade", "h2c")]),
    ],
)
async def test_an_end_that_the_client_waits_for_comes(rig: Rig, version: str, fields: list[tuple[str, str]]) -> None:
    """HTTP/1.0 keeps no connection that was not said to be kept; a wish to close holds beside an offer, too."""
    await rig.put("k", b"x", 1)
    wire = await rig.wire()
    await wire.send(signed("GET", "/b/k", fields, version=version))
    answer = await wire.answer()
    assert (answer.body, answer.closes) == (b"x", True)
    assert await wire.rest() == b""


async def test_what_is_pipelined_behind_a_refused_upload_costs_no_answer(rig: Rig) -> None:
    """After the last answer the gateway still takes in what comes, so that no reset overtakes the answer."""
    await rig.put("k", b"new", 34)
    wire = await rig.wire()
    await wire.send(signed("PUT", "/b/k", [("x-fencing-token", "33")], b"old") + b"old")
    for _ in range(50):
        await wire.send(signed("PUT", "/b/other", [TOKEN], b"x" * 10_000) + b"x" * 10_000)
    answer = await wire.answer()
    assert (answer.status, answer.closes) == (412, True)
    assert await wire.rest() == b""
    assert rig.stored("other") is None


async def test_a_client_that_has_ended_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind bytes that are no HTTP and an end there is nothing to take in."""
    monkeypatch.setattr(connection, "LINGER_AT_END_S", 60)
    wire = await rig.wire()
    await wire.send(b"no HTTP\r\n\r\n")
    wire.finish()
    assert (await wire.answer()).status == 400
    async with asyncio.timeout(5):
        while rig.gateway._connections.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0)


async def test_a_stop_leaves_no_connection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not take its last answer is cut when the time is over; with the stop all have gone."""
    odd = Odd([("content-length", "60000")], b"x" * 60_000)
    async with running(upstream=odd) as rig, taking_nothing(rig) as client:
        connections = rig.gateway._connections
        assert connections is not None
        await connections.shutdown(0.1)
        await asyncio.sleep(0)
        assert connections.connections == set()
        assert len(received(client)) < 60_000


# --- how many connections


async def test_one_connection_too_many_ends_the_longest_wait() -> None:
    """Silent connections keep nobody out: the one that has waited longest for its client makes room."""
    async with running(limits=Limits(max_connections=3)) as rig:
        first, second, third = [await rig.wire() for _ in range(3)]
        for wire in (first, third):  # the second has now waited longest, though the first came first
            await wire.send(signed("GET", "/b/k"))
            await wire.answer()
        assert (await rig.ask("GET", "/b/k")).status == 404
        assert await second.rest() == b""
        for wire in (first, third):
            await wire.send(signed("GET", "/b/k"))
            assert (await wire.answer()).status == 404


async def test_where_all_connections_are_answered_a_new_one_is_told_to_come_later() -> None:
    """Nobody who is being answered is cut; the newcomers read S3's SlowDown, until they, too, are too many."""
    upstream = Stalled()
    async with running(upstream=upstream, limits=Limits(max_connections=8)) as rig:
        puts = [asyncio.create_task(rig.put(f"k{n}", b"x", 1)) for n in range(8)]
        async with asyncio.timeout(5):
            while rig.gateway.handler.running < 8:
                await asyncio.sleep(0)
        ninth = await rig.wire()
        answer = await ninth.answer()
        assert (answer.status, answer.code, answer.closes) == (503, "SlowDown", True)
        assert (answer.xml["FencingReason"], answer.header("retry-after")) == ("Overloaded", "1")
        tenth = await rig.wire()
        with suppress(ConnectionResetError):
            assert await tenth.rest() == b""
        upstream.release.set()
        assert [answer.status for answer in await asyncio.gather(*puts)] == [200] * 8
