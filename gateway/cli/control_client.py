"""How commands speak to a running gateway: its control API (docs/api.md), over HTTP without redirects or proxies."""

from __future__ import annotations

import errno
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import click

from gateway.cli.settings import REFUSED, UNREACHABLE, USAGE, config_options, fail, load_settings
from gateway.cli.show import print_json, printable
from gateway.client.blocking import SyncGatewayClient
from gateway.client.calls import fence_path, lease_path
from gateway.client.engine import Engine
from gateway.client.errors import Distrusted, Json, Refused, Unreachable
from gateway.client.transport import TIMEOUT_S, checked_api_token, checked_url
from gateway.config.settings import Settings
from gateway.config.source import ConfigError
from gateway.config.values import split_listen
from gateway.tls import client_context, pinned_context
from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE, URL_VARIABLE

__all__ = ["ControlClient", "Distrusted", "Json", "Refused", "Unreachable", "configured_client", "control_command"]

MAX_PAGE = 1000
MISUSED = frozenset({"invalid", "KeyInvalid", "TokenInvalid", "too-large"})
"""Reasons of a gateway that say of a command that it was misused."""
T = TypeVar("T")


class ControlClient:
    """The control API at `url`; an https:// one must satisfy `tls`. Every call raises `Refused` or `Unreachable`."""

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
        return self.ask("GET", fence_path(key))

    def check_alive(self) -> Json:
        return self.ask("GET", "/healthz")

    def check_ready(self) -> Json:
        return self.ask("GET", "/readyz")

    def raise_floor(self, key: str, token: int, reason: str) -> Json:
        return self.ask("POST", fence_path(key) + "/raise", {"token": str(token), "reason": reason})

    def settle(self, key: str, token: int | None, reason: str) -> Json:
        return self.ask("POST", fence_path(key) + "/settle", _said(token, reason))

    def seal(self, key: str, token: int | None, reason: str) -> Json:
        return self.ask("POST", fence_path(key) + "/seal", _said(token, reason))

    def lease_credentials(self, key: str, token: int) -> Json:
        """S3 credentials for a lease that is held."""
        return self.ask("POST", f"{lease_path(key)}/credentials", {"token": str(token)})

    def fences(self, prefix: str, limit: int | None) -> Json:
        """Known keys in order, from as many pages as it takes; `next` is where the limit cut."""
        return self.pages("/v1/fences", "fences", "after", limit, {"prefix": prefix} if prefix else {})

    def events(self, key: str, limit: int | None) -> Json:
        """A key's history, newest first."""
        return self.pages(fence_path(key) + "/events", "events", "before", limit, {})

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

    def begin_rebuild(self, bucket: str) -> Json:
        return self.ask("POST", f"/v1/buckets/{quote(bucket, safe='')}/rebuild", {})

    def rebuild(self, bucket: str, wait_s: float) -> Json:
        """How far it has come; answered when it is over, else after `wait_s`."""
        return self.ask("GET", f"/v1/buckets/{quote(bucket, safe='')}/rebuild?wait_s={wait_s:g}")

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


def _said(token: int | None, reason: str) -> Json:
    return {"reason": reason} if token is None else {"token": str(token), "reason": reason}


def control_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--url` and `--ca-bundle`, for commands that ask a gateway."""
    command = click.option(
        "--ca-bundle",
        envvar=CA_VARIABLE,
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="The authorities, in PEM, that vouch for an https:// control API; by default the system's, and for the "
        "configuration's own listener its control.tls_cert.",
    )(command)
    return click.option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        help="The control API; by default the configuration's control.listen, http://127.0.0.1:8081. "
        f"An API token is taken from {API_TOKEN_VARIABLE}.",
    )(command)


def control_command(command: Callable[..., None]) -> Callable[..., None]:
    """`connected`, with `--json`, as `as_json`: what the gateway says instead of an answer is then printed, too."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(connected(command))


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `control_options`, `--config` and `--set`; call it with `client`, and turn the client's failures
    into exit codes, and those of this machine, as of a full disk that its output goes to."""

    @wraps(command)
    def run(
        url: str | None, ca_bundle: Path | None, config: Path | None, assignments: tuple[str, ...], **arguments: Any
    ) -> None:
        for name, value in arguments.items():
            _check_text(name, value)
        client = configured_client(url, ca_bundle, _settings(config, assignments) if url is None else Settings())
        if client is None:
            fail("control.listen names no port: say --url")
        try:
            with client:
                command(client=client, **arguments)
        except (Refused, Unreachable) as error:
            if arguments.get("as_json") and error.problem:
                print_json(error.problem)
            elsewhere = url is None and isinstance(error, Unreachable) and not error.problem
            hint = f". If it listens elsewhere, say --url or set {URL_VARIABLE}" if elsewhere else ""
            fail(printable(str(error)) + hint, _status_of(error))
        except OSError as error:
            if error.errno == errno.EPIPE:  # click's to deal with
                raise
            fail(printable(str(error)), REFUSED)
        except KeyboardInterrupt:
            # By the signal, as a shell wants it told: with a status of our own, a refusal, its script would go on.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)

    return control_options(config_options(run))


def _status_of(error: Refused | Unreachable) -> int:
    if isinstance(error, Unreachable):
        return UNREACHABLE
    return USAGE if error.reason in MISUSED else REFUSED


def _check_text(name: str, value: object) -> None:
    """An exit with status 2 for words that no call can say: bytes that are no UTF-8, and names of nothing. What a
    command is to run is the user's own."""
    words = value if isinstance(value, tuple) and name != "command" else (value,)
    for word in words:
        if isinstance(word, str) and not word.isascii() and word != word.encode("utf-8", "replace").decode():
            fail(printable(f"{word!r} is no UTF-8"))
    if value == "" and name in ("key", "queue", "bucket"):
        fail(f"the {name} is empty")


def configured_client(url: str | None, ca_bundle: Path | None, settings: Settings) -> ControlClient | None:
    """A client of the gateway at `url`, else of the one with these settings; None if they name no port. Exits where
    what is to be trusted cannot be read."""
    address = _checked(url) if url else _url_of(settings)
    if address is None:
        return None
    own = None if url else settings.control.tls_cert
    tls = _trust(ca_bundle, own) if address.startswith("https:") else None
    return ControlClient(address, _api_token(), tls, ca_bundle)


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
    try:
        return checked_api_token(os.environ.get(API_TOKEN_VARIABLE))
    except ValueError as error:
        fail(f"{API_TOKEN_VARIABLE} {error}")


def _checked(url: str) -> str:
    try:
        return checked_url(url)
    except ValueError as error:
        fail(f"--url, or {URL_VARIABLE}: {error}")
