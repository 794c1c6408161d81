"""The socket of the control API: what becomes of calls whose caller goes away, or that run when it is closed."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from gateway.server.control import listener
from gateway.server.control.listener import ControlListener
from tests.server.rig import BOUND_S, running

CALL = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Waiting:
    """An application whose one call never ends by itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cut = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cut.set()
        raise AssertionError

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/", self.handle)
        return application


async def call(port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(CALL)
    return writer


async def test_hanging_up_ends_a_call() -> None:
    """Nobody who has gone is granted anything: his call is cancelled at once."""
    waiting = Waiting()
    control = ControlListener(waiting.application())
    writer = await call(await control.start("127.0.0.1", 0, None))
    async with asyncio.timeout(BOUND_S):
        await waiting.begun.wait()
        writer.close()
        await waiting.cut.wait()
    await control.close()


async def test_closing_waits_for_calls_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that goes on and on does not hold up the gateway's end."""
    monkeypatch.setattr(listener, "CLOSE_S", 0.05)
    waiting = Waiting()
    control = ControlListener(waiting.application())
    writer = await call(await control.start("127.0.0.1", 0, None))
    async with asyncio.timeout(BOUND_S):
        await waiting.begun.wait()
        await control.close()
    assert waiting.cut.is_set()
    writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: pigs\r\n\r\n", b"404"),
        (b"no HTTP\r\n\r\n", b"400"),
    ],
)
async def test_no_answer_tells_versions(sent: bytes, status: bytes) -> None:
    """What the gateway is built from, and in which version, is nobody's business who can reach the port."""
    async with running() as rig, asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.control_port)
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.close()
    assert head.split()[1] == status
    assert b"server: fencing-gateway\r\n" in head
    assert b"python" not in head
    assert b"aiohttp" not in head
