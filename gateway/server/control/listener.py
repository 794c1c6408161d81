"""The socket of the control API. What is no HTTP at all is answered as a problem, too, and is nobody's fault here."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.server.control.problems import Problem, answer_to, no_such_call

CLOSE_S = 5.0
"""How long calls that are running when it is closed may go on; a drain has given them time before."""
SERVER = "fencing-gateway"
"""Instead of the versions of aiohttp and Python, which help nobody but who looks for their faults."""


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = SERVER


class _Connection(web.RequestHandler):
    """One connection. What its parser cannot read never comes to a handler: aiohttp answers it by itself, and would log
    a traceback of it."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        answer = answer_to(Problem(400, "invalid", "this is no HTTP request that can be read"))
        answer.headers[hdrs.SERVER] = SERVER  # no application hears of it
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Where there is no call aiohttp refuses an `Expect` in plain text, before any middleware. It is passed over
        there, too."""
        if isinstance(resp, web.HTTPExpectationFailed) and isinstance(request, web.Request):
            resp = no_such_call(request.match_info.http_exception)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that cannot be unpacked, found out when what is left of it is passed over, is its sender's fault."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError | HttpProcessingError):
            super().log_exception(*args, **kw)


class ControlListener:
    """Listens, until it is closed."""

    def __init__(self, application: web.Application) -> None:
        """Who waits in line and goes away must not be granted what he waits for: hanging up ends a call."""
        application.on_response_prepare.append(_name_server)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=CLOSE_S)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """The port that it listens on. Raises `OSError`."""
        await self._runner.setup()
        manager, loop = self._runner.server, asyncio.get_running_loop()
        assert manager is not None
        self._server = await loop.create_server(
            lambda: _Connection(manager, loop=loop, access_log=None),  # type: ignore[arg-type] # None, as in AppRunner
            host,
            port,
            ssl=tls,
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Running calls have `CLOSE_S`, and are then cut."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
