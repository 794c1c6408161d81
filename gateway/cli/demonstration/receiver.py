"""The demonstration's receiver of webhooks: it believes what is signed, and knows again what it has been told."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from typing import Self

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError


class Receiver:
    """Listens as long as the context lasts."""

    def __init__(self) -> None:
        self.secret = "whsec_" + b64encode(secrets.token_bytes(32)).decode()
        self.told: list[str] = []
        """The ids of all announcements, each once, in order: posted again it is the same one."""
        self._verifier = Webhook(self.secret)
        self._first = asyncio.Event()
        application = web.Application()
        application.router.add_post("/", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/"

    async def first(self) -> None:
        """Wait for an announcement."""
        await self._first.wait()

    async def _take(self, request: web.Request) -> web.Response:
        try:
            event = self._verifier.verify(await request.read(), dict(request.headers))
        except WebhookVerificationError:
            return web.Response(status=401)
        if event["id"] not in self.told:
            self.told.append(event["id"])
        self._first.set()
        return web.Response(status=204)
