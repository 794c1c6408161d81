"""A stand-in for the control API, for what no real gateway can be made to do at a chosen moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

Json = dict[str, Any]


class FakeGateway:
    """Leases and completions in memory, in a thread of its own. `trouble` may answer in place of each call."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()
        self.held: dict[str, tuple[int, float, str]] = {}
        self.completed: dict[str, Json] = {}
        self.seen: list[tuple[str, str, Json]] = []
        self.trouble: Callable[[str, str], web.Response | None] = lambda method, path: None
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def _answer(self, request: web.Request) -> web.Response:
        body: Json = await request.json() if request.can_read_body else {}
        self.seen.append((request.method, request.path, body))
        if (instead := self.trouble(request.method, request.path)) is not None:
            return instead
        parts = [unquote(part) for part in request.rel_url.raw_path.split("/")[2:]]
        match request.method, *parts:
            case "POST", "leases", key:
                return await self._acquire(key, body)
            case "POST", "leases", key, "renew":
                return self._renew(key, int(body["token"]))
            case "DELETE", "leases", key:
                self.held.pop(key, None)
                return web.Response(status=204)
            case "POST", "jobs", key, "complete":
                self.completed[key] = body
                self.held.pop(key, None)
                return web.json_response({"key": key})
        return problem(404, "not-found")

    async def _acquire(self, key: str, body: Json) -> web.Response:
        until = time.monotonic() + body["wait_s"]
        while key in self.held and self.held[key][1] > time.monotonic():
            if time.monotonic() >= until:
                return problem(409, "held", holder=self.held[key][2], expires_in_s=1.5)
            await asyncio.sleep(0.01)
        self.tokens[key] += 1
        self.held[key] = (self.tokens[key], time.monotonic() + body["ttl_s"], body["holder"])
        self.ttl_s = body["ttl_s"]
        answer = {"key": key, "token": self.tokens[key], "holder": body["holder"], "expires_in_s": body["ttl_s"]}
        return web.json_response(answer, status=201)

    def _renew(self, key: str, token: int) -> web.Response:
        if self.held.get(key, (0,))[0] != token:
            return problem(409, "lost", floor=self.tokens[key])
        self.held[key] = (token, time.monotonic() + self.ttl_s, self.held[key][2])
        return web.json_response({"key": key, "token": token, "expires_in_s": self.ttl_s})


def problem(status: int, reason: str, **members: object) -> web.Response:
    answer = {"status": status, "reason": reason, "detail": f"it is {reason}", **members}
    return web.json_response(answer, status=status, content_type="application/problem+json")
