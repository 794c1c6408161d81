"""How commands speak to a running gateway: its control API (docs/api.md), over HTTP without redirects or proxies."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import click
import orjson

from gateway.cli.settings import REFUSED, UNREACHABLE, config_options, fail, load_settings
from gateway.cli.show import print_json, printable
from gateway.config import ConfigError, Settings, split_listen
from gateway.tls import client_context, handshake_fault, pinned_context
from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE, URL_VARIABLE

TIMEOUT_S = 60.0
"""Longer than a gateway waits for a hand-over before it answers 503."""
MAX_PAGE = 1000
PIECE_BYTES = 1 << 18

Json = dict[str, Any]


class Refused(Exception):
    """The gateway answered that it does not do this. `problem` is its RFC 9457 document."""

    def __init__(self, problem: Json) -> None:
        hint = f" (the commands take it from {API_TOKEN_VARIABLE})" if problem.get("status") == 401 else ""
        super().__init__(problem["detail"] + hint)
        self.problem = problem


class Unreachable(Exception):
    """No gateway answers there, or it cannot do its work now."""


class Distrusted(Unreachable):
    """Somebody answers there whose certificate does not verify; nothing has been said to him."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the API token to where nobody meant it to go."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ControlClient:
    """The control API at `url`; an https:// one must satisfy `tls`. Every call raises `Refused` or `Unreachable`."""

    def __init__(self, url: str, api_token: str | None, tls: ssl.SSLContext | None) -> None:
        self.url = url.rstrip("/")
        self._api_token = api_token
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls), _NoRedirect()
        )

    def fence(self, key: str) -> Json:
        return self._json("GET", _path(key))

    def check_alive(self) -> Json:
        return self._json("GET", "/healthz")

    def check_ready(self) -> Json:
        return self._json("GET", "/readyz")

    def raise_floor(self, key: str, token: int, reason: str) -> Json:
        return self._json("POST", _path(key) + "/raise", {"token": str(token), "reason": reason})

    def settle(self, key: str, token: int | None, reason: str) -> Json:
        return self._json("POST", _path(key) + "/settle", _said(token, reason))

    def seal(self, key: str, token: int | None, reason: str) -> Json:
        return self._json("POST", _path(key) + "/seal", _said(token, reason))

    def lease_credentials(self, key: str, token: int) -> Json:
        """S3 credentials for a lease that is held."""
        return self._json("POST", f"/v1/leases/{quote(key, safe='')}/credentials", {"token": str(token)})

    def fences(self, prefix: str, limit: int | None) -> Json:
        """Known keys in order, from as many pages as it takes; `next` is where the limit cut."""
        return self._pages("/v1/fences", "fences", "after", limit, {"prefix": prefix} if prefix else {})

    def events(self, key: str, limit: int | None) -> Json:
        """A key's history, newest first."""
        return self._pages(_path(key) + "/events", "events", "before", limit, {})

    def trace(self, key: str | None, request_id: str | None, for_s: int | None) -> Iterator[Json]:
        """The log's lines and the key's history as they come, until the gateway ends or `for_s` have passed."""
        asked = {"key": key, "request_id": request_id, "for_s": for_s}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        with self._open("GET", f"/v1/trace?{query}", None) as answer:
            try:
                for line in answer:
                    if line.strip():
                        yield self._document(line)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"the gateway at {self.url} has ended: {error}") from None

    def metrics(self) -> str:
        """Prometheus text."""
        return self._ask("GET", "/metrics", None).decode()

    def buckets(self) -> Json:
        """Who the gateway is, and which buckets it rules or refuses."""
        return self._json("GET", "/v1/buckets")

    def begin_rebuild(self, bucket: str) -> Json:
        return self._json("POST", f"/v1/buckets/{quote(bucket, safe='')}/rebuild", {})

    def rebuild(self, bucket: str, wait_s: float) -> Json:
        """How far it has come; answered when it is over, else after `wait_s`."""
        return self._json("GET", f"/v1/buckets/{quote(bucket, safe='')}/rebuild?wait_s={wait_s:g}")

    def backup(self) -> Iterator[bytes]:
        """A copy of the gateway's database, piece by piece."""
        with self._open("GET", "/v1/backup", None) as answer:
            try:
                while piece := answer.read(PIECE_BYTES):
                    yield piece
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"the answer of {self.url} has broken off: {error}") from None
            if answer.length:
                raise Unreachable(f"the answer of {self.url} has broken off")

    def _pages(self, path: str, member: str, cursor: str, limit: int | None, query: dict[str, str]) -> Json:
        items: list[Json] = []
        while True:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(items))
            page = self._json("GET", f"{path}?{urlencode(query | {'limit': str(size)})}")
            items += page[member]
            if page["next"] is None or (limit is not None and len(items) >= limit):
                return {member: items, "next": page["next"]}
            query = query | {cursor: page["next"]}

    def _json(self, method: str, target: str, body: Json | None = None) -> Json:
        return self._document(self._ask(method, target, body))

    def _ask(self, method: str, target: str, body: Json | None) -> bytes:
        with self._open(method, target, body) as answer:
            try:
                return bytes(answer.read())
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"no gateway answers at {self.url}: {self._why(error)}") from None

    def _open(self, method: str, target: str, body: Json | None) -> http.client.HTTPResponse:
        """The answer, its body still to be read and closed."""
        headers = {"Accept": "application/json"}
        if self._api_token:
            headers["Authorization"] = f"Bearer {self._api_token}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = orjson.dumps(body), "application/json"
        # S310 is about file: and the like; the scheme was checked where the URL came in.
        request = urllib.request.Request(self.url + target, data, headers, method=method)  # noqa: S310
        try:
            return cast("http.client.HTTPResponse", self._opener.open(request, timeout=TIMEOUT_S))
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(error.code, error.read()) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise Distrusted(f"what answers at {self.url} is not believed: {self._why(error)}") from None
            raise Unreachable(f"no gateway answers at {self.url}: {self._why(error)}") from None

    def _why(self, error: Exception) -> object:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(why, ssl.SSLError):
            return handshake_fault(why, f"--ca-bundle, or {CA_VARIABLE}")
        if self.url.startswith("http:") and isinstance(error, http.client.HTTPException):
            return f"{why}. Does it speak https:// there?"
        return why

    def _failure(self, status: int, body: bytes) -> Refused | Unreachable:
        answer = self._document(body)
        if 400 <= status < 500 and "detail" in answer:
            return Refused(answer)
        why = answer.get("detail") or answer.get("reason") or "it says no more"
        return Unreachable(f"the gateway at {self.url} answers {status}: {why}")

    def _document(self, body: bytes) -> Json:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(f"what answers at {self.url} is not a gateway's control API")
        return answer


def _said(token: int | None, reason: str) -> Json:
    return {"reason": reason} if token is None else {"token": str(token), "reason": reason}


def _path(key: str) -> str:
    return "/v1/fences/" + quote(key, safe="")


def control_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--url` and `--ca-bundle`, for commands that ask a gateway."""
    command = click.option(
        "--ca-bundle",
        envvar=CA_VARIABLE,
        type=click.Path(dir_okay=False, path_type=Path),
        help="The authorities, in PEM, that vouch for an https:// control API; by default the system's, and for the "
        "configuration's own listener its control.tls_cert.",
    )(command)
    return click.option(
        "--url",
        envvar=URL_VARIABLE,
        help="The control API; by default the configuration's control.listen, http://127.0.0.1:8081. "
        f"An API token is taken from {API_TOKEN_VARIABLE}.",
    )(command)


def control_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `control_options`, `--config`, `--set` and `--json`; call it with `client` and `as_json`, and turn
    the client's failures into exit codes."""

    @wraps(command)
    def run(
        url: str | None,
        ca_bundle: Path | None,
        config: Path | None,
        assignments: tuple[str, ...],
        as_json: bool,
        **arguments: Any,
    ) -> None:
        client = configured_client(url, ca_bundle, _settings(config, assignments) if url is None else Settings())
        if client is None:
            fail("control.listen names no port: say --url")
        try:
            command(client=client, as_json=as_json, **arguments)
        except Refused as refused:
            if as_json:
                print_json(refused.problem)
            fail(printable(str(refused)), REFUSED)
        except Unreachable as unreachable:
            fail(printable(str(unreachable)), UNREACHABLE)

    return control_options(click.option("--json", "as_json", is_flag=True, help="Print JSON.")(config_options(run)))


def configured_client(url: str | None, ca_bundle: Path | None, settings: Settings) -> ControlClient | None:
    """A client of the gateway at `url`, else of the one with these settings; None if they name no port. Exits where
    what is to be trusted cannot be read."""
    address = _checked(url) if url else _url_of(settings)
    if address is None:
        return None
    own = None if url else settings.control.tls_cert
    return ControlClient(address, _api_token(), _trust(ca_bundle, own) if address.startswith("https:") else None)


def _trust(ca_bundle: Path | None, own: Path | None) -> ssl.SSLContext:
    """Whom to believe: the authorities that were named; else the one certificate that the configuration has the gateway
    show, by whatever name it is called here; else the system's authorities."""
    try:
        return client_context(ca_bundle) if ca_bundle or not own else pinned_context(own)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fail(f"{ca_bundle or own} cannot be used: {reason}. --ca-bundle names the gateway's authority")


def _settings(config: Path | None, assignments: tuple[str, ...]) -> Settings:
    try:
        return load_settings(config, assignments)
    except ConfigError as error:
        fail(f"{error}\nWith --url or {URL_VARIABLE}, as http://127.0.0.1:8081, this command needs no configuration.")


def _url_of(settings: Settings) -> str | None:
    host, port = split_listen(settings.control.listen)
    if not port:
        return None
    if host in ("0.0.0.0", "::"):  # noqa: S104 - whoever listens everywhere is here, too
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    scheme = "https" if settings.control.tls_cert is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _api_token() -> str | None:
    token = os.environ.get(API_TOKEN_VARIABLE, "").strip()
    if not token.isascii() or not token.isprintable():
        fail(f"{API_TOKEN_VARIABLE} holds what no API token can")
    return token or None


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        fail(f"--url takes http://host:port or https://host:port, not {url!r}")
    return url
