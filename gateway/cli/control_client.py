"""How commands speak to a running gateway: its control API (docs/api.md), over HTTP without redirects or proxies."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

from gateway.client.blocking import SyncGatewayClient
from gateway.client.calls import fence_path
from gateway.client.engine import Engine
from gateway.client.errors import Json, Refused
from gateway.client.transport import TIMEOUT_S
from gateway.variables import CA_VARIABLE, URL_VARIABLE

MAX_PAGE = 1000
T = TypeVar("T")


class ControlClient:
    """The control API at `url`; an https:// one must satisfy `tls`. Every call raises `Refused` or `Unreachable`.

    What one command alone has to say, it says by `ask`; what has a method is said by several, or takes more."""

    def __init__(
        self, url: str, api_token: str | None, tls: ssl.SSLContext | None, ca_bundle: Path | None = None
    ) -> None:
        """`ca_bundle` is the file that `tls` was made of, if it was."""
        self._api_token = api_token or ""
        self._tls = tls
        self.engine = Engine(url, self._api_token, tls, None, 0.0, None)
        self.url = self.engine.transport.url
        self._ca_bundle = ca_bundle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def worker(self, holder: str | None, patience_s: float) -> SyncGatewayClient:
        """A client of the same gateway for who works under leases; it outlasts restarts."""
        return SyncGatewayClient(
            self.url, api_token=self._api_token, tls=self._tls, holder=holder, patience_s=patience_s
        )

    def variables(self) -> dict[str, str]:
        """The environment by which another program finds the same gateway, and believes it; its API token apart."""
        authorities = {} if self._ca_bundle is None else {CA_VARIABLE: str(self._ca_bundle.absolute())}
        return {URL_VARIABLE: self.url, **authorities}

    def fence(self, key: str) -> Json:
        """What is known of a key."""
        return self.ask("GET", fence_path(key))

    def check_ready(self) -> Json:
        """That it takes requests; `Unreachable` says why where it takes none."""
        return self.ask("GET", "/readyz")

    def trace(self, key: str | None, request_id: str | None, for_s: int | None) -> Iterator[Json]:
        """The log's lines and the key's history as they come, until the gateway ends or `for_s` have passed."""
        asked = {"key": key, "request_id": request_id, "for_s": for_s}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._each(self.engine.transport.lines(f"/v1/trace?{query}"))

    def metrics(self) -> str:
        """Prometheus text."""
        return self._call(self.engine.transport.read("/metrics")).decode()

    def buckets(self) -> Json:
        """Who the gateway is, and which buckets it rules or refuses."""
        return self.ask("GET", "/v1/buckets")

    def webhooks(self) -> list[Json]:
        """How the receivers of announcements fare. Who is no operator is told of none."""
        try:
            webhooks: list[Json] = self.ask("GET", "/v1/webhooks")["webhooks"]
        except Refused as refused:
            if refused.reason != "forbidden":
                raise
            webhooks = []
        return webhooks

    def backup(self) -> Iterator[bytes]:
        """A copy of the gateway's database, piece by piece."""
        return self._each(self.engine.transport.pieces("/v1/backup"))

    def pages(self, path: str, member: str, cursor: str, limit: int | None, query: dict[str, str]) -> Json:
        """Items from as many pages as it takes; `next` is where the limit cut."""
        items: list[Json] = []
        while True:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(items))
            page = self.ask("GET", f"{path}?{urlencode(query | {'limit': str(size)})}")
            items += page[member]
            if page["next"] is None or (limit is not None and len(items) >= limit):
                return {member: items, "next": page["next"]}
            query = query | {cursor: page["next"]}

    def ask(
        self, method: str, target: str, body: Json | None = None, *, wait_s: float = 0.0, repeat_key: str | None = None
    ) -> Json:
        """One call, which the gateway may take `wait_s` longer to answer than others."""
        headers = {} if repeat_key is None else {"Idempotency-Key": repeat_key}
        return self._call(
            self.engine.transport.json(method, target, body, timeout_s=TIMEOUT_S + wait_s, headers=headers)
        )

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.engine.background.call(coroutine)

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(items)

        while True:
            try:
                yield self._call(following())
            except StopAsyncIteration:
                return
