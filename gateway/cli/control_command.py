"""How commands find a gateway, trust it, and end where it refuses or does not answer."""

from __future__ import annotations

import errno
import os
import signal
import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gateway.cli.control_client import ControlClient
from gateway.cli.settings import REFUSED, UNREACHABLE, USAGE, config_options, fail, load_settings
from gateway.cli.show import print_json, printable
from gateway.client.errors import Refused, Unreachable
from gateway.client.transport import checked_api_token, checked_url
from gateway.config.settings import Settings
from gateway.config.source import ConfigError
from gateway.config.values import split_listen
from gateway.tls import client_context, pinned_context
from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE, URL_VARIABLE

MISUSED = frozenset({"invalid", "KeyInvalid", "TokenInvalid", "too-large"})
"""Reasons of a gateway that say of a command that it was misused."""


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
        fail(f"'' names no {name}")


def configured_client(url: str | None, ca_bundle: Path | None, settings: Settings) -> ControlClient | None:
    """A client of the gateway at `url`, else of the one with these settings; None if they name no port. Exits where
    what is to be trusted cannot be read."""
    address = _checked(url) if url else _url_of(settings)
    if address is None:
        return None
    own = None if url else settings.control.tls_cert
    tls = _trust(ca_bundle, own) if address.startswith("https:") else None
    return ControlClient(address, _api_token(), tls, ca_bundle or own)


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
