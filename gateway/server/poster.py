"""Posts to one webhook's receiver over HTTP: to the address in the settings, and to no other."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from importlib.metadata import version

import aiohttp

from gateway.service.courier import NotTaken
from gateway.service.webhooks import Answer
from gateway.tls import handshake_fault

MAX_ANSWER_BYTES = 4096
REST_S = 1.0
"""What follows an answer's head is read, so much and so long, and thrown away; then the connection is closed."""
IDLE_S = 2.0
"""Servers close connections that have been silent for longer, and a post that meets such a close is lost."""


class HttpPoster:
    """Implements `gateway.service.webhooks.Poster`. No redirect is followed, no proxy and no cookie used; the
    certificate of an https:// address is verified by what `tls` gives at the moment of each new connection."""

    def __init__(
        self, url: str, *, timeout_s: float, tls: Callable[[], ssl.SSLContext] | None, wall: Callable[[], float]
    ) -> None:
        """`wall` gives wall-clock time in seconds since the epoch."""
        self._url = url
        self._timeout_s = timeout_s
        self._tls = tls
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            async with self._opened().post(
                self._url, headers=headers, data=body, allow_redirects=False, ssl=self._tls() if self._tls else True
            ) as answer:
                await _read_to_end(answer.content)
                return Answer(answer.status, retry_after_s(answer.headers.get("Retry-After", ""), self._wall()))
        except TimeoutError:
            raise NotTaken(f"it did not answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise NotTaken(_tls_words(error.certificate_error)) from None
        except aiohttp.ClientConnectorDNSError as error:
            raise NotTaken(f"{error.host} cannot be found: {error.os_error.strerror or 'no such name'}") from None
        except aiohttp.ClientConnectorSSLError as error:
            raise NotTaken(_tls_words(error.os_error)) from None
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            why = os.strerror(number) if number else type(error.os_error).__name__
            raise NotTaken(f"no connection to {error.host}:{error.port}: {why}") from None
        except aiohttp.ServerDisconnectedError:
            raise NotTaken("it closed the connection without an answer") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its words may hold the URL.
            raise NotTaken(f"it did not answer in HTTP, or the connection broke ({type(error).__name__})") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": f"fencing-gateway/{version('fencing-gateway')}"},
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


async def _read_to_end(content: aiohttp.StreamReader) -> None:
    """So that the connection can be used again. The head has said everything: what is wrong here changes nothing."""
    with suppress(asyncio.IncompleteReadError, TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(REST_S):
            await content.readexactly(MAX_ANSWER_BYTES)


def retry_after_s(text: str, now: float) -> float:
    """Seconds from a Retry-After (RFC 9110, 10.2.3); 0 where it says nothing that can be read."""
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now)


def _tls_words(error: BaseException) -> str:
    fault = handshake_fault(error, "tls_ca") if isinstance(error, ssl.SSLError) else type(error).__name__
    return f"no TLS connection: {fault}"
