"""One HTTP exchange with the control API (docs/api.md): no redirects, no proxies, every failure a typed error."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from gateway.client.errors import Distrusted, Json, Unreachable, refusal
from gateway.tls import handshake_fault
from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE

TIMEOUT_S = 60.0
"""Longer than a gateway waits for a hand-over before it answers 503."""
CONNECT_TIMEOUT_S = 10.0
PIECE_BYTES = 1 << 18


def checked_url(url: str) -> str:
    """The control API's address, as scheme, host and port. Raises `ValueError`, which shows no password."""
    if "@" in url:
        raise ValueError(f"an address holds no user and password; an API token is taken from {API_TOKEN_VARIABLE}")
    parts = urlsplit(url)
    _ = parts.port  # raises, too
    beside = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or beside:
        raise ValueError(f"http://host:port or https://host:port is wanted, not {url!r}")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"{parts.hostname!r} is no host's name") from None
    return f"{parts.scheme}://{parts.netloc}"


def checked_api_token(token: str | None) -> str | None:
    """The API token, None for an empty one. Raises `ValueError` for what no API token can be."""
    token = (token or "").strip()
    if not token.isascii() or not token.isprintable():
        raise ValueError("holds what no API token can")
    return token or None


class Transport:
    """The control API at `url`; an https:// one must satisfy `tls`. To be used in one event loop."""

    def __init__(self, url: str, api_token: str | None, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self._headers = {"Accept": "application/json"}
        if api_token:
            self._headers["Authorization"] = f"Bearer {api_token}"
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._answered = False

    async def close(self) -> None:
        """Give back the connections."""
        if self._session is not None:
            await self._session.close()

    async def json(
        self,
        method: str,
        target: str,
        body: Json | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """The answer's JSON object; empty for 204. Raises `Refused`, `Unreachable`."""
        async with self._open(method, target, body, timeout_s, headers or {}) as answer:
            data = await answer.read()
        return self._document(data) if data else {}

    async def read(self, target: str) -> bytes:
        """The body of an answer of whatever kind. Raises `Refused`, `Unreachable`."""
        async with self._open("GET", target, None, TIMEOUT_S, {}) as answer:
            return await answer.read()

    async def pieces(self, target: str) -> AsyncIterator[bytes]:
        """The body of an answer that has no end in sight. Raises `Refused`, `Unreachable`, also when it breaks off."""
        async with self._open("GET", target, None, None, {}) as answer:
            async for piece in self._flowing(answer.content.iter_chunked(PIECE_BYTES)):
                yield piece

    async def lines(self, target: str) -> AsyncIterator[Json]:
        """The JSON objects of such an answer, one a line."""
        async with self._open("GET", target, None, None, {}) as answer:
            async for line in self._flowing(answer.content):
                if line.strip():
                    yield self._document(line)

    async def _flowing(self, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        try:
            async for piece in body:
                yield piece
        except (OSError, aiohttp.ClientError) as error:
            raise Unreachable(f"the answer of {self.url} has broken off: {error}") from None

    @asynccontextmanager
    async def _open(
        self, method: str, target: str, body: Json | None, timeout_s: float | None, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, its body still to be read."""
        session = self._opened()
        data = None
        if body is not None:
            data, headers = orjson.dumps(body), {**headers, "Content-Type": "application/json"}
        try:
            async with session.request(
                method,
                # Encoded already: a key is one segment, whatever is in it.
                URL(self.url + target, encoded=True),
                data=data,
                headers=headers,
                allow_redirects=False,  # one would carry the API token to where nobody meant it to go
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S),
            ) as answer:
                self._answered = True
                if answer.status >= 300:
                    raise self._failure(answer, await answer.read())
                yield answer
        except (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError) as error:
            raise Distrusted(f"what answers at {self.url} is not believed: {self._why(error)}") from None
        except (OSError, TimeoutError, aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"no gateway answers at {self.url}: {self._why(error)}") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session

    def _why(self, error: Exception) -> object:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            error = error.certificate_error
        elif isinstance(error, aiohttp.ClientConnectorError):
            error = error.os_error
        if isinstance(error, ssl.SSLError):
            return handshake_fault(error, f"--ca-bundle, or {CA_VARIABLE}")
        if isinstance(error, TimeoutError):
            return "no answer in time"
        if self.url.startswith("http:") and isinstance(
            error, aiohttp.ClientResponseError | aiohttp.ServerDisconnectedError
        ):
            return str(error) if self._answered else f"{error} (does it speak https:// there?)"
        if isinstance(error, OSError):
            number = error.errno or 0  # a resolver's are below 0, and its own
            return os.strerror(number) if number > 0 else error.strerror or error
        return error

    def _failure(self, answer: aiohttp.ClientResponse, body: bytes) -> Exception:
        problem = self._document(body)
        if 400 <= answer.status < 500 and "detail" in problem:
            if answer.status == 401:
                problem = problem | {"detail": f"{problem['detail']} (it is taken from {API_TOKEN_VARIABLE})"}
            return refusal(problem)
        why = problem.get("detail") or problem.get("reason") or "it says no more"
        return Unreachable(
            f"the gateway at {self.url} answers {answer.status}: {why}",
            problem,
            _seconds(answer.headers.get("Retry-After")),
        )

    def _document(self, body: bytes) -> Json:
        try:
            answer = json.loads(body)  # where orjson would make floats of long whole numbers
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise no_gateway(self.url)
        return _Answer(self.url, answer)


class _Answer(Json):
    """What a gateway has said. Whoever misses a member has not asked one: `Unreachable`, and no `KeyError`."""

    def __init__(self, url: str, members: Json) -> None:
        super().__init__(members)
        self._url = url

    def __missing__(self, name: str) -> NoReturn:
        raise no_gateway(self._url)


def no_gateway(url: str) -> Unreachable:
    """The error of an answer that no gateway gives."""
    return Unreachable(f"what answers at {url} is not a gateway's control API")


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdecimal() else None
